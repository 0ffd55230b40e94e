"""Copies one bundle of a store into a hidden folder, verifies it and renames it; right files are never read twice."""

import hashlib
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from serving.background import Rest
from serving.bundle.arrays import digest, files_under, verify_files
from serving.bundle.manifest import MANIFEST, FileInfo, read_manifest
from serving.errors import BundleError
from serving.files.disk_full import DiskFullError, telling_full_disk
from serving.files.staging import publish, remove
from serving.service.store import Store, refuse_partial

PARTIAL = ".fetch"


class Remote(NamedTuple):
    """A bundle in a store: its name, the content of its manifest, and what the store lists of it."""

    name: str
    manifest: bytes
    objects: dict[str, dict[str, Any]]


def fetch(store: Store, remote: Remote, root: Path, *, verify: bool, rest: Rest) -> None:
    """Copies a bundle to `root/NAME`, which until then stays as it is; after an interruption the next call goes on.

    Args:
        store: the store.
        remote: the bundle.
        root: an existing directory.
        verify: whether a copy that is there already is compared by content, not only by size.
        rest: called after each block or file.

    Raises:
        BundleError: the bundle in the store is partial or altered, or not readable by this release.
        StoreError: the store does not answer.
        DiskFullError: there is no room for it; what was copied is removed.
    """
    folder, staging = root / remote.name, staging_of(root, remote.name)
    if _is_whole(folder, remote.manifest, verify, rest):
        return
    try:
        with telling_full_disk(folder):
            _fill(store, remote, folder, staging, rest)
            publish(staging, folder)
    except DiskFullError:
        remove(staging)
        raise
    except BundleError as error:
        # The user knows the store, not the hidden folder.
        error.args = (str(error).replace(str(staging), store.place(remote.name)),)
        raise


def staging_of(root: Path, name: str) -> Path:
    """The hidden folder of a copy that is not complete."""
    return root / f".{name}{PARTIAL}"


def _fill(store: Store, remote: Remote, folder: Path, staging: Path, rest: Rest) -> None:
    staging.mkdir(exist_ok=True)
    (staging / MANIFEST).write_bytes(remote.manifest)
    manifest = read_manifest(staging)
    refuse_partial(store, remote.name, manifest, remote.objects)
    for path in files_under(staging):
        if path.relative_to(staging).as_posix() not in {*manifest.files, MANIFEST}:
            path.unlink()
    lacking = {name: info for name, info in manifest.files.items() if not _holds(staging / name, info)}
    size, free = sum(info.bytes for info in lacking.values()), shutil.disk_usage(staging).free
    if size > free:
        raise DiskFullError(folder, f"no space left for this bundle: it takes {size:,} bytes, {free:,} are free")
    for name, info in lacking.items():
        path = staging / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if _holds(folder / name, info):
            shutil.copyfile(folder / name, path)
        else:
            _download(store, f"{remote.name}/{name}", info, path, rest)
        rest()
    verify_files(staging, manifest, content=False, rest=rest)


def _download(store: Store, name: str, info: FileInfo, path: Path, rest: Rest) -> None:
    read = hashlib.sha256()
    with path.open("wb") as file:
        for block in store.blocks(name):
            read.update(block)
            file.write(block)
            rest()
    if read.hexdigest() != info.sha256:
        path.unlink()
        raise BundleError(f"{store.place(name)}: altered: its SHA-256 is not the manifest's")


def _is_whole(folder: Path, manifest: bytes, verify: bool, rest: Rest) -> bool:
    with suppress(OSError, BundleError):
        if (folder / MANIFEST).read_bytes() == manifest:
            verify_files(folder, read_manifest(folder), content=verify, rest=rest)
            return True
    return False


def _holds(path: Path, info: FileInfo) -> bool:
    return path.is_file() and path.stat().st_size == info.bytes and digest(path) == info
