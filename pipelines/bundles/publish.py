"""`towers bundles` for a root in an object store: publishes a bundle there, and opens the root for a choice.

The layout is that of a local root. A bundle's manifest is written after its files, and `active.json` in one object, so
that a service never finds a bundle that is not complete. Services verify every byte of what they copy.
"""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from pipelines.bundles.requirement import GATE, PUBLISH, gate
from pipelines.console import amount, phases, progress, say
from pipelines.errors import GateError
from pipelines.service.verify import PROBE, VERIFY, probed, refuse_changed, verify
from serving.bundle.active import ACTIVE, checked_name
from serving.bundle.manifest import MANIFEST, Manifest, read_manifest
from serving.bundle.versions import Versions
from serving.errors import BundleError
from serving.service.store import MissingError, Store, StoreError, refuse_partial

UPLOAD = "upload"
LOCAL = ("file", "local")  # schemes of fsspec


def publish(bundle: Path, url: str, name: str | None = None, override: str | None = None) -> str:
    """Verifies and probes a bundle, and writes it to a store; nothing answers from it before it is activated.

    The same bundle may be published again, which restores its objects.

    Args:
        bundle: the directory.
        url: of a root in a store.
        name: in the store; None takes the directory's.
        override: why it is published although the gate of the root that it lies in refuses it.

    Returns:
        Its name in the store.

    Raises:
        BundleError: it is damaged, fails a real search or was replaced meanwhile, or the store holds another bundle of
            that name.
        StoreError: the store cannot be read or written.
        GateError: it lies in a root with a gate, and has no valid blessing.
    """
    bundle = bundle.absolute()
    try:
        name = checked_name(bundle.name if name is None else name)
    except ValueError as error:
        raise BundleError(str(error)) from None
    store, fresh = Store(url), True
    read_manifest(bundle)  # before the store is asked: it may be no bundle
    with suppress(MissingError):
        if store.read(f"{name}/{MANIFEST}") != (bundle / MANIFEST).read_bytes():
            raise BundleError(f"{store.place(name)}: another bundle has this name; give a new one: --name")
        fresh = False
    with gate(Versions(bundle.parent), bundle.name, PUBLISH, override) as write_down:
        phases(PUBLISH, VERIFY, PROBE, UPLOAD)
        (opened,) = verify(bundle)
        manifest, content = opened.manifest, (bundle / MANIFEST).read_bytes()
        if read_manifest(bundle) != manifest:  # of an index, too: the files to upload are those of the manifest
            raise BundleError(f"{bundle}: another command changed it meanwhile; give the command again")
        probed(bundle)
        write_down()
        try:
            size = sum(info.bytes for info in manifest.files.values())
            with progress(UPLOAD, total=size / 1e6, unit="MB") as advance:
                for file, info in manifest.files.items():
                    # Before each: under its path may lie the file of another bundle by now, which must not replace
                    # what a service has a manifest of.
                    refuse_changed(opened, file)
                    store.put(bundle / file, f"{name}/{file}")
                    advance(info.bytes / 1e6)
            refuse_changed(opened)
        except BundleError as error:
            if fresh and not isinstance(error, StoreError):
                _clear(store, name)
            raise
        store.write(f"{name}/{MANIFEST}", content)
    say(f"published: {described(name, manifest)} in {store.url}")
    return name


def _clear(store: Store, name: str) -> None:
    """Removes what was uploaded of a bundle that is gone, unless another command has completed it meanwhile."""
    with suppress(StoreError):
        try:
            store.read(f"{name}/{MANIFEST}")
        except MissingError:
            store.remove(name)


def holds(url: str, bundle: Path) -> bool:
    """Whether a store has this bundle under the name of its directory; the manifest is the last object of one.

    Raises:
        StoreError: the store cannot be read.
    """
    with suppress(MissingError):
        return Store(url).read(f"{bundle.name}/{MANIFEST}") == (bundle / MANIFEST).read_bytes()
    return False


@dataclass(frozen=True)
class StoredRoot:
    """A local root that stands for one in a store, where only `active.json` can change.

    Attributes:
        versions: the local root, with the manifests and `active.json` of the store.
    """

    versions: Versions
    _store: Store

    @contextmanager
    def choosing(self, action: str, name: str, override: str | None) -> Iterator[str]:
        """Yields a short description of a bundle whose objects are all in the store. It has no gate to override.

        Raises:
            BundleError: the bundle is not in the store, or not whole.
            StoreError: the store cannot be read.
            GateError: see `refuse_gate`.
        """
        refuse_gate(self._store)
        manifest = read_manifest(self.versions.path(name))
        refuse_partial(self._store, name, manifest, self._store.objects(name))
        yield described(name, manifest)


def refuse_gate(store: Store) -> None:
    """Refuses the URL of a directory of this machine that has a gate, which only the root's path asks.

    Raises:
        GateError: it has one.
        StoreError: the store cannot be read.
    """
    scheme, _, path = store.url.partition("://")
    if scheme.rpartition("::")[2] in LOCAL:
        with suppress(MissingError):
            store.read(GATE)
            raise GateError(f"{store.place(GATE)}: this root has a gate; name the root by its path, {path}")


@contextmanager
def stored_root(url: str) -> Iterator[StoredRoot]:
    """Opens a root in a store; at the end writes `active.json` back if it has changed.

    Raises:
        StoreError: the store cannot be read or written.
        BundleError: another command has changed it meanwhile, or it is damaged.
    """
    store = Store(url)
    before = _active(store)
    with TemporaryDirectory(prefix="towers-") as folder:
        root = Path(folder).resolve()
        for name, content in store.manifests().items():
            (root / name).mkdir()
            (root / name / MANIFEST).write_bytes(content)
        file = root / ACTIVE
        if before is not None:
            file.write_bytes(before)
        try:
            yield StoredRoot(Versions(root), store)
        except BundleError as error:
            error.args = (str(error).replace(str(root), store.url),)
            raise
        after = file.read_bytes() if file.exists() else None
    if after is not None and after != before:
        # A store has no lock: this leaves an instant, not the time of a command.
        if _active(store) != before:
            raise BundleError(f"{store.place(ACTIVE)}: another command has changed it meanwhile; give yours again")
        store.write(ACTIVE, after)


def _active(store: Store) -> bytes | None:
    try:
        return store.active()
    except MissingError:
        return None


def described(name: str, manifest: Manifest) -> str:
    """Describes a bundle in a few words."""
    return f"{name} (model {manifest.model_version}, {amount(manifest.items, 'items')})"
