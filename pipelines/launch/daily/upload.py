"""The upload of a day's bundle to the store, where it may lie already as it was before `towers forget`."""

import json
from contextlib import suppress
from pathlib import Path

from pipelines.bundles import publish
from pipelines.errors import DataError
from pipelines.forget.bundle import FORGOTTEN
from serving.bundle.active import ACTIVE, parsed_active
from serving.bundle.manifest import MANIFEST, read_manifest
from serving.service.store import MissingError, Store


def upload(url: str, bundle: Path) -> None:
    """Publishes a bundle in a store; replaces another one of its name there.

    `towers forget` makes two bundles of one: it replaces that of the root and that of the store, each for itself.

    Args:
        url: of the root in the store.
        bundle: the directory, named like the day.

    Raises:
        DataError: `active.json` names the other one, or a user was forgotten in it who is in this one.
        BundleError: see `publish`.
    """
    store, name = Store(url), bundle.name
    with suppress(MissingError):
        before = store.read(f"{name}/{MANIFEST}")
        if before != (bundle / MANIFEST).read_bytes():
            _refuse_replacement(store, bundle, before)
            store.remove(name)  # not over its objects: a kill would leave half of each
    publish.publish(bundle, url)


def _refuse_replacement(store: Store, bundle: Path, before: bytes) -> None:
    """Refuses to replace a bundle that services may use, or in which a user was forgotten who would be back."""
    name, place = bundle.name, store.place(bundle.name)
    if name in _named(store):
        raise DataError(
            f"{place}: another bundle of this name, which {ACTIVE} names, so it is not replaced: `towers bundles "
            f"activate {name} --root {store.url}` makes it answer, and that ends the day"
        )
    if _forgotten(before) > read_manifest(bundle).lineage.get(FORGOTTEN, 0):
        raise DataError(
            f"{place}: a user was forgotten in it who is still in {bundle}: forget the user there, too, or remove "
            f"{place}; then give the command again"
        )


def _named(store: Store) -> set[str]:
    """The names of the bundles that answer from a store, or did before."""
    try:
        now = parsed_active(store.active(), store.place(ACTIVE))
    except MissingError:
        return set()
    return {now.active, *now.previous, *([now.canary.bundle] if now.canary else [])}


def _forgotten(manifest: bytes) -> int:
    """How many users were forgotten in the bundle of a manifest; none in one that is damaged."""
    try:
        return int(json.loads(manifest)["lineage"][FORGOTTEN])
    except (ValueError, LookupError, TypeError, RecursionError):
        return 0
