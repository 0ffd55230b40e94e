"""Lets `towers forget` reach stores: copies of their bundles, and a replacement of one that a kill cannot break.

The objects that change are first written beside the bundle, under a name that no bundle can have, with a plan as the
last. Only then are the old ones overwritten, the manifest last. So a kill leaves either the old bundle or all that is
needed to end the replacement. Services see a new manifest and copy the bundle again.
"""

import hashlib
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory, gettempdir
from uuid import uuid4

from pipelines.console import progress
from pipelines.forget.left_overs import refuse_left_overs
from serving.background import no_pause
from serving.bundle.manifest import MANIFEST, read_manifest
from serving.bundle.reader import Bundle
from serving.errors import BundleError
from serving.files.staging import remove_left_overs, sibling
from serving.service.fetch import Remote, fetch
from serving.service.store import MissingError, Store, StoreError

DOWNLOAD = "download"
COPIES = "towers-forget"  # beside which the copies lie, as unfinished output
PLAN = "replacement.json"
SUFFIX = ".forget"


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
        store, copy, beside, token = self._store, self.bundles[name], _beside(name), uuid4().hex
        files = [file for file, info in read_manifest(copy).files.items() if self._files[name].get(file) != info]
        for file in (*files, MANIFEST):
            store.put(copy / file, f"{beside}/{token}/{file}")
        plan = {"replaces": hashlib.sha256(self._before[name]).hexdigest(), "token": token, "files": files}
        # A store has no lock: this leaves an instant, not the time of an upload.
        if PLAN not in store.objects(beside):
            store.write(f"{beside}/{PLAN}", json.dumps(plan).encode())
        if _end(store, name) != token:
            raise BundleError(f"{store.place(name)}: another command has changed it meanwhile; give yours again")


@contextmanager
def stored_bundles(urls: Sequence[str]) -> Iterator[list[StoredBundles]]:
    """Ends replacements that were interrupted, and copies every bundle of some stores to a temporary directory.

    Args:
        urls: of the roots.

    Raises:
        BundleError: a bundle is partial, altered or not readable by this release.
        StoreError: a store does not answer, or holds no bundle.
        DataError: copies of another machine or container lie in the temporary directory.
        DiskFullError: the temporary directory has no room for them.
    """
    stores = [Store(url) for url in dict.fromkeys(url.rstrip("/") for url in urls)]
    place = Path(gettempdir()).resolve() / COPIES
    remove_left_overs(place.parent, place.name)  # with the user, if the process was killed
    refuse_left_overs(place.parent, place.name)
    ours = sibling(place, "partial")
    ours.mkdir(mode=0o700, exist_ok=True)
    try:
        with TemporaryDirectory(dir=ours) as folder:
            yield [_copied(store, Path(folder) / str(number)) for number, store in enumerate(stores)]
    finally:
        with suppress(OSError):  # another thread may use it
            ours.rmdir()


def _copied(store: Store, root: Path) -> StoredBundles:
    for name in store.folders():
        if name.startswith(".") and name.endswith(SUFFIX):
            _end(store, name[1 : -len(SUFFIX)])
    manifests = store.manifests()
    if not manifests:
        raise StoreError(f"{store.url}: no bundles in it; give the root that services follow")
    root.mkdir()
    with progress(DOWNLOAD, total=len(manifests), unit="bundles") as advance:
        for name, content in manifests.items():
            fetch(store, Remote(name, content, store.objects(name)), root, verify=True, rest=no_pause)
            try:
                Bundle.open(root / name, verify=False)  # the digests were compared
            except BundleError as error:
                raise BundleError(str(error).replace(str(root / name), store.place(name))) from None
            advance()
    return StoredBundles(store, {name: root / name for name in manifests})


def _end(store: Store, name: str) -> str | None:
    """Overwrites a bundle by what lies whole beside it, if that was made of this bundle; returns the token of that.

    What lies beside is removed in either case.
    """
    beside, ended = _beside(name), None
    with suppress(MissingError):
        plan = json.loads(store.read(f"{beside}/{PLAN}"))
        new, files = f"{beside}/{plan['token']}", (*plan["files"], MANIFEST)
        made_of_it = hashlib.sha256(store.read(f"{name}/{MANIFEST}")).hexdigest() == plan["replaces"]
        if made_of_it and store.objects(new).keys() >= set(files):
            for file in files:
                store.copy(f"{new}/{file}", f"{name}/{file}")
            ended = plan["token"]
    store.remove(beside)
    return ended


def _beside(name: str) -> str:
    return f".{name}{SUFFIX}"
