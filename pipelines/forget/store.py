"""Lets `towers forget` reach a store: copies of its bundles, and a replacement of one that a kill cannot break.

The objects that change are first written beside the bundle, under a name that no bundle can have, with a plan as the
last. Only then are the old ones overwritten, the manifest last. So a kill leaves either the old bundle or all that is
needed to end the replacement. Services see a new manifest and copy the bundle again.
"""

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from pipelines.console import progress
from serving.background import no_pause
from serving.bundle.manifest import MANIFEST, read_manifest
from serving.errors import BundleError
from serving.service.fetch import Remote, fetch
from serving.service.store import MissingError, Store

DOWNLOAD = "download"
PLAN = "replacement.json"


class StoredBundles:
    """Copies of all bundles of a store.

    Attributes:
        bundles: the directories of the copies, by the bundle's name.

    Args:
        store: where they come from.
        bundles: as above, each the same as in the store.
    """

    def __init__(self, store: Store, bundles: dict[str, Path]) -> None:
        self.bundles = bundles
        self._store = store
        self._before = {name: (path / MANIFEST).read_bytes() for name, path in bundles.items()}
        self._files = {name: read_manifest(path).files for name, path in bundles.items()}

    def place(self, name: str) -> str:
        """The URL of a bundle, for messages."""
        return self._store.place(name)

    def replace(self, name: str) -> None:
        """Replaces a bundle in the store by its copy, which has changed.

        Raises:
            BundleError: another command has changed the bundle meanwhile; it was not replaced.
            StoreError: the store does not answer. The next `stored_bundles` ends or undoes the replacement.
        """
        store, copy, beside = self._store, self.bundles[name], _beside(name)
        files = [file for file, info in read_manifest(copy).files.items() if self._files[name].get(file) != info]
        for file in (*files, MANIFEST):
            store.put(copy / file, f"{beside}/{file}")
        plan = {"replaces": hashlib.sha256(self._before[name]).hexdigest(), "files": files}
        store.write(f"{beside}/{PLAN}", json.dumps(plan).encode())
        if not _end(store, name):
            raise BundleError(f"{store.place(name)}: another command has changed it meanwhile; give yours again")


@contextmanager
def stored_bundles(url: str) -> Iterator[StoredBundles]:
    """Ends replacements that were interrupted, and copies every bundle of a store to a temporary directory.

    Args:
        url: of the root.

    Raises:
        BundleError: there is no bundle, or one of them is partial, altered or not readable by this release.
        StoreError: the store does not answer.
        DiskFullError: the temporary directory has no room for them.
    """
    store = Store(url)
    for name in store.manifests():
        _end(store, name)
    manifests = store.manifests()
    if not manifests:
        raise BundleError(f"{store.url}: no bundles in it; give the root that services follow")
    with TemporaryDirectory(prefix="towers-") as folder:
        root = Path(folder).resolve()
        with progress(DOWNLOAD, total=len(manifests), unit="bundles") as advance:
            for name, content in manifests.items():
                fetch(store, Remote(name, content, store.objects(name)), root, verify=True, rest=no_pause)
                advance()
        yield StoredBundles(store, {name: root / name for name in manifests})


def _end(store: Store, name: str) -> bool:
    """Overwrites a bundle by what lies whole beside it, if that was made of this bundle; returns whether it did.

    What lies beside is removed in either case.
    """
    beside = _beside(name)
    ended = False
    with suppress(MissingError):
        plan = json.loads(store.read(f"{beside}/{PLAN}"))
        made_of_it = hashlib.sha256(store.read(f"{name}/{MANIFEST}")).hexdigest() == plan["replaces"]
        if made_of_it and store.objects(beside).keys() >= {*plan["files"], MANIFEST}:
            for file in (*plan["files"], MANIFEST):
                store.copy(f"{beside}/{file}", f"{name}/{file}")
            ended = True
    store.remove(beside)
    return ended


def _beside(name: str) -> str:
    return f".{name}.forget"
