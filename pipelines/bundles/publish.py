"""`towers bundles` for a root in an object store: publishes a bundle there and chooses which one answers.

The layout is that of a local root. A bundle's manifest is written after its files, and `active.json` in one object, so
that a service never finds a bundle that is not complete. Services verify every byte of what they copy.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from pipelines.bundles.activate import described, show_table
from pipelines.bundles.requirement import gate
from pipelines.console import phases, progress, say
from pipelines.service.verify import PROBE, VERIFY, probed, verify
from serving.bundle.active import ACTIVE, Active, checked_name
from serving.bundle.manifest import MANIFEST, read_manifest
from serving.bundle.versions import Versions
from serving.errors import BundleError
from serving.service.store import MissingError, Store, refuse_partial

UPLOAD = "upload"


def publish(bundle: Path, url: str, name: str | None = None, override: str | None = None) -> str:
    """Verifies and probes a bundle, and writes it to a store; nothing answers from it before it is activated.

    The same bundle may be published again, which mends its objects.

    Args:
        bundle: the directory.
        url: of a root in a store.
        name: in the store; None takes the directory's.
        override: why it is published although the gate of the root that it lies in refuses it.

    Returns:
        Its name in the store.

    Raises:
        BundleError: it is damaged, fails a real search, or the store holds another bundle of that name.
        StoreError: the store cannot be read or written.
        GateError: it lies in a root with a gate, and has no valid blessing.
    """
    bundle = bundle.absolute()
    try:
        name = checked_name(bundle.name if name is None else name)
    except ValueError as error:
        raise BundleError(str(error)) from None
    store, manifest = Store(url), read_manifest(bundle)
    content = (bundle / MANIFEST).read_bytes()
    _refuse_another(store, name, content)
    with gate(Versions(bundle.parent), bundle.name, "publish", override) as write_down:
        phases("publish", VERIFY, PROBE, UPLOAD)
        verify(bundle)
        probed(bundle)
        write_down()
        with progress(UPLOAD, total=sum(info.bytes for info in manifest.files.values()) / 1e6, unit="MB") as advance:
            for file, info in manifest.files.items():
                store.put(bundle / file, f"{name}/{file}")
                advance(info.bytes / 1e6)
        store.write(f"{name}/{MANIFEST}", content)
    say(f"published: {described(name, manifest)} in {store.url}")
    return name


def show(url: str) -> None:
    """Prints the bundles of a store as a table, newest first.

    Raises:
        StoreError: the store cannot be read.
        BundleError: its `active.json` is damaged.
    """
    with _changed(Store(url)) as versions:
        show_table(versions.list(), url)


def activate(url: str, name: str) -> Active:
    """Makes the services of a store answer from another bundle.

    Raises:
        BundleError: it is not in the store, or not whole.
        StoreError: the store cannot be read or written.
    """
    store = Store(url)
    with _changed(store) as versions:
        told = _checked(store, versions, name)
        active = versions.activate(name)
    say(f"active: {told}{f', after {active.previous[0]}' if active.previous else ''}")
    return active


def rollback(url: str) -> str:
    """Makes the services of a store answer from the previously active bundle again.

    Raises:
        BundleError: there is none, or it is not whole.
        StoreError: the store cannot be read or written.
    """
    store = Store(url)
    with _changed(store) as versions:
        now = versions.read()
        name = versions.before(now)
        told = _checked(store, versions, name)
        versions.rollback(expected=name)
    say(f"active: {told}, back from {now.active}")
    return name


def canary(url: str, name: str, share: float) -> Active:
    """Makes the services of a store answer a share of the users, in (0, 1], from another bundle.

    Raises:
        BundleError: as `activate`, or the share is wrong, or the bundle is already active.
        StoreError: the store cannot be read or written.
    """
    store = Store(url)
    with _changed(store) as versions:
        told = _checked(store, versions, name)
        active = versions.set_canary(name, share)
    say(f"canary: {told} for {share:.2%} of the users, beside {active.active}")
    return active


def clear_canary(url: str) -> Active:
    """Makes the services of a store answer every user from the active bundle.

    Raises:
        BundleError: no bundle is active.
        StoreError: the store cannot be read or written.
    """
    with _changed(Store(url)) as versions:
        active = versions.clear_canary()
    say(f"no canary: {active.active} answers every user")
    return active


@contextmanager
def _changed(store: Store) -> Iterator[Versions]:
    """Yields a local root with the manifests and `active.json` of a store; writes the latter back if it changes."""
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
            yield Versions(root)
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


def _checked(store: Store, versions: Versions, name: str) -> str:
    """Refuses a bundle whose objects are not all in the store; returns a short description."""
    manifest = read_manifest(versions.path(name))
    refuse_partial(store, name, manifest, store.objects(name))
    return described(name, manifest)


def _refuse_another(store: Store, name: str, content: bytes) -> None:
    try:
        there = store.read(f"{name}/{MANIFEST}")
    except MissingError:
        return
    if there != content:
        raise BundleError(f"{store.place(name)}: another bundle has this name; give a new one: --name")
