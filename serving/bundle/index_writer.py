"""Replaces the index of a published bundle; the rename of the manifest is the moment of change."""

import hashlib
from pathlib import Path

from serving.bundle import arrays as files
from serving.bundle.manifest import MANIFEST, FileInfo, IndexInfo, Manifest, read_manifest, write_manifest
from serving.files.access import keep_access, keep_all_access
from serving.files.staging import flush_to_disk, remove, staged


def replace_index(bundle: Path, info: IndexInfo, directory: Path | None = None) -> Manifest:
    """Moves the directory of the new index in, then replaces the manifest in one rename.

    The old index is removed last. A reader sees one of them, complete; a kill in between leaves the old one in force.

    Args:
        bundle: the bundle directory.
        info: kind, parameters and measurements; its path is set here.
        directory: the new index, on the bundle's file system; moved into the bundle. None for an exact index.

    Raises:
        BundleError: the manifest cannot be read.
    """
    old = read_manifest(bundle)
    kept = {name: file for name, file in old.files.items() if not name.startswith(f"{files.INDEX}/")}
    path, added = (None, {}) if directory is None else _move_in(bundle, directory)
    manifest = old.model_copy(
        update={
            "files": dict(sorted({**kept, **added}.items())),
            "index": IndexInfo(kind=info.kind, path=path, parameters=info.parameters, measured=info.measured),
        }
    )
    with staged(bundle / MANIFEST, overwrite=True) as staging:
        write_manifest(manifest, staging)
        keep_access(staging, bundle / MANIFEST)
    for each in (bundle / files.INDEX).glob("*"):
        if path is None or each != bundle / path:
            remove(each)
    return manifest


def _move_in(bundle: Path, directory: Path) -> tuple[str, dict[str, FileInfo]]:
    inner = files.digests(directory, files.files_under(directory))
    name = hashlib.sha256("".join(f"{path} {file.sha256}\n" for path, file in inner.items()).encode()).hexdigest()[:16]
    path = f"{files.INDEX}/{name}"
    place = bundle / path
    if not place.parent.exists():
        place.parent.mkdir()
        keep_access(place.parent, bundle)
    keep_all_access(directory, place)
    flush_to_disk(directory)
    # The same content may exist already, from this index or from a run that was killed before its manifest.
    if place.exists() and files.digests(place, files.files_under(place)) == inner:
        remove(directory)
    else:
        remove(place)
        directory.rename(place)
    flush_to_disk(place.parent)
    return path, {f"{path}/{inside}": file for inside, file in inner.items()}
