"""The upload of a day's bundle to the store, where it may lie already, as it was before or after `towers forget`."""

import json
import shlex
from contextlib import suppress
from pathlib import Path

import polars as pl

from pipelines.bundles import publish
from pipelines.console import say
from pipelines.errors import DataError
from pipelines.forget.bundle import FORGOTTEN
from serving.bundle.active import ACTIVE, parsed_active
from serving.bundle.arrays import QUERY_IDS
from serving.bundle.manifest import MANIFEST, read_manifest
from serving.bundle.reader import Bundle
from serving.service.store import MissingError, Store


def upload(url: str, bundle: Path) -> None:
    """Publishes a bundle in a store; replaces another one of its name there, unless users were forgotten in that one.

    `towers forget` makes two bundles of one: it replaces that of the root and that of the store, each for itself. The
    one of the store then stays, or a user might come back.

    Args:
        url: of the root in the store.
        bundle: the directory, named like the day.

    Raises:
        DataError: `active.json` names the other one, or that one holds users who were forgotten in this one.
        BundleError: see `publish`.
    """
    store, name = Store(url), bundle.name
    with suppress(MissingError):
        before = store.read(f"{name}/{MANIFEST}")
        if before != (bundle / MANIFEST).read_bytes():
            if _stays(store, bundle, before):
                say(f"{store.place(name)}: stays, as users were forgotten in it; it may differ from {bundle}")
                return
            _refuse_replacement(store, name)
            store.remove(name)  # not over its objects: a kill would leave half of each
    publish.publish(bundle, url)


def _stays(store: Store, bundle: Path, before: bytes) -> bool:
    """Whether users were forgotten in the bundle of a store: it then answers as it is.

    Raises:
        DataError: it holds users who were forgotten in this one.
    """
    there, here = _forgotten(before), read_manifest(bundle).lineage.get(FORGOTTEN, 0)
    # Some have no vector, only a line of a tower's vocabulary: of these the counts tell.
    if there and here and (there < here or _users(store, bundle.name) - {*Bundle.open(bundle).query_ids}):
        raise DataError(
            f"{store.place(bundle.name)}: holds users whom `towers forget` removed from {bundle}: give it with "
            f"--bundle {store.url}, too; then give this command again"
        )
    return there > 0


def _users(store: Store, name: str) -> set[str]:
    """The ids of the users of a bundle in a store."""
    place = f"{name}/{QUERY_IDS}"
    try:
        return {*pl.read_parquet(store.read(place)).to_series()}
    except (MissingError, pl.exceptions.PolarsError) as error:
        raise DataError(f"{store.place(place)}: missing or damaged, so nobody can tell who is in it: {error}") from None


def _refuse_replacement(store: Store, name: str) -> None:
    """Refuses to replace a bundle that services may use."""
    if name in _named(store):
        raise DataError(
            f"{store.place(name)}: another bundle of this name, which {ACTIVE} names, so it is not replaced: `towers "
            f"bundles activate {name} --root {shlex.quote(store.url)}` makes it answer, and that ends the day"
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
