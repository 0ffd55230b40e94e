"""Removes a user from a bundle: id, stored vector, seen items, and the user's row of each tower.

The bundle is replaced under its name, so services open it again, and a rollback to it finds no trace of the user.
"""

import shutil
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import numpy as np

from pipelines.service.verify import refuse_changed
from serving.bundle import arrays as files
from serving.bundle.array_writer import write_blocks, write_ids
from serving.bundle.manifest import MANIFEST, FeatureSpec, Manifest, read_manifest, write_manifest
from serving.bundle.profiles import write_profiles
from serving.bundle.reader import QUERY_ID, Bundle
from serving.bundle.writer import version_after
from serving.files.access import keep_all_access
from serving.files.lock import exclusive
from serving.files.staging import staged

FORGOTTEN = "forgotten_users"  # key of the lineage


def forget_in_bundle(path: Path, user: str, *, dry_run: bool) -> dict[str, int]:
    """Removes a user from a bundle.

    Args:
        path: the bundle.
        user: the user's id.
        dry_run: only count.

    Returns:
        What was found, by name; zeros for a user who is not in it.

    Raises:
        BundleError: it is damaged, or was replaced meanwhile.
        BusyError: another process is removing a user from it, or building its index.
        FileNotFoundError: it was removed meanwhile.
    """
    with exclusive(path, f"{path}: another command is changing it; give yours again later", create=False):
        bundle = Bundle.open(path)
        row = bundle.query_rows.find(user)
        towers = _towers(bundle, user)
        found = {
            "stored users": int(row >= 0),
            "seen items": len(bundle.seen(row)) if row >= 0 else 0,
            "rows of towers": len(towers),
        }
        if dry_run or not any(found.values()):
            return found
        with staged(path, overwrite=True, marker=MANIFEST, check=partial(refuse_changed, bundle)) as directory:
            shutil.copytree(path, directory, ignore=partial(_left_overs, path))
            if row >= 0:
                _remove_row(bundle, row, directory)
            for name, known in towers.items():
                from pipelines.forget.tower import forget_in_tower  # loads TensorFlow

                forget_in_tower(directory / name, *known)
            _write_manifest(bundle.manifest, directory, queries=len(bundle.query_names) - int(row >= 0))
            keep_all_access(directory, path)
            Bundle.open(directory)
        return found


def _left_overs(bundle: Path, folder: str, names: Sequence[str]) -> list[str]:
    """Of the names in a folder of a bundle those that killed commands left: the next one removes them."""
    return [name for name in names if name.startswith(".")] if Path(folder) == bundle else []


def other_tower(path: Path) -> bool:
    """Whether a bundle has a tower of users that `towers export` did not write: no user is found in such a one."""
    manifest = read_manifest(path)
    of_users = any(spec.kind == kind for _, kind, _, specs in _sides(manifest) for spec in specs)
    return of_users and "config" not in manifest.lineage


def _sides(manifest: Manifest) -> tuple[tuple[str, str, str, tuple[FeatureSpec, ...]], ...]:
    """Of each tower its directory, the kind of its features that are made of users, its side, and its features."""
    return (
        (files.QUERY_TOWER, "id", "query", manifest.query_features),
        (files.CANDIDATE_TOWER, "neighbours", "candidate", manifest.candidate_features),
    )


def _towers(bundle: Bundle, user: str) -> dict[str, tuple[str, int, list[int]]]:
    """The towers that know the user, by directory: the file of the vocabulary, the line, the features that read it."""
    sides = _sides(bundle.manifest)
    # Features made of users share the vocabulary of the users' ids, which lies beside each tower that reads it.
    names = [f"{side}.{spec.name}.txt" for _, kind, side, specs in sides for spec in specs if spec.kind == kind]
    found = {}
    for tower, kind, _, specs in sides:
        # The times of a history are an input, but no feature of their own.
        features = [spec for spec in specs if spec.kind != "history_times"]
        encoders = [place for place, spec in enumerate(features) if spec.kind == kind]
        for asset in (bundle.path / tower / "assets" / name for name in names if encoders):
            lines = asset.read_bytes().split(b"\n") if asset.is_file() else []
            if user.encode() in lines:
                found[tower] = asset.name, lines.index(user.encode()), encoders
    return found


def _remove_row(bundle: Bundle, row: int, directory: Path) -> None:
    """Writes the files of the stored users without one of them."""
    count = len(bundle.query_names)
    kept = np.delete(np.arange(count), row)
    write_ids(directory / files.QUERY_IDS, QUERY_ID, bundle.query_ids.gather(kept))
    shape = len(kept), bundle.manifest.dimension
    write_blocks(directory / files.QUERY_VECTORS, shape, lambda part: bundle.query_vectors[kept[part]])
    offsets = files.open_array(bundle.path, files.SEEN_OFFSETS, np.int64, (count + 1,))
    items = files.open_array(bundle.path, files.SEEN_ITEMS, np.int32, (None,))
    begin, end = offsets[row], offsets[row + 1]
    np.save(directory / files.SEEN_OFFSETS, np.concatenate([offsets[: row + 1], offsets[row + 2 :] - (end - begin)]))
    np.save(directory / files.SEEN_ITEMS, np.concatenate([items[:begin], items[end:]]))
    if bundle.manifest.event_types:
        types = files.open_array(bundle.path, files.SEEN_TYPES, np.int16, (len(items),))
        np.save(directory / files.SEEN_TYPES, np.concatenate([types[:begin], types[end:]]))
    if bundle.profiles is not None:
        profiles = bundle.profiles
        write_profiles(directory, (profiles[each] for each in kept.tolist()))


def _write_manifest(old: Manifest, directory: Path, *, queries: int) -> None:
    names = [path for path in files.files_under(directory) if path != directory / MANIFEST]
    digests = files.digests(directory, names)
    manifest = old.model_copy(
        update={
            "model_version": version_after(old.model_version, digests[files.QUERY_IDS].sha256),
            "created_at": datetime.now(UTC),
            "queries": queries,
            "files": digests,
            "lineage": old.lineage | {FORGOTTEN: old.lineage.get(FORGOTTEN, 0) + 1},
        }
    )
    write_manifest(manifest, directory / MANIFEST)
