"""Writes a bundle: stages every file, computes digests, reads everything back, then publishes it by one rename.

`replace_index` replaces the index of a published bundle; the rename of the manifest is the moment of change.
"""

import hashlib
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import numpy as np
import polars as pl
from numpy.typing import ArrayLike, NDArray

from serving.bundle import arrays as files
from serving.bundle.array_writer import Strings, copy_vectors, write_blocks, write_ids
from serving.bundle.manifest import (
    MANIFEST,
    FeatureSpec,
    FileInfo,
    IndexInfo,
    LiveInfo,
    Manifest,
    PriorInfo,
    read_manifest,
    write_manifest,
)
from serving.bundle.prior import COLUMNS, recall_vectors
from serving.bundle.profiles import write_profiles
from serving.bundle.reader import ITEM_ID, QUERY_ID, Bundle
from serving.errors import BundleError
from serving.files.staging import flush_to_disk, remove, staged


def write_bundle(
    out: Path,
    *,
    model_version: str,
    metric: Literal["dot", "cosine"],
    query_features: Sequence[FeatureSpec],
    candidate_features: Sequence[FeatureSpec],
    item_ids: Strings,
    item_vectors: NDArray[np.float32],
    item_attributes: pl.DataFrame,
    popularity: ArrayLike,
    query_ids: Strings,
    query_vectors: NDArray[np.float32],
    seen_offsets: ArrayLike,
    seen_items: ArrayLike,
    write_towers: Callable[[Path], None],
    libraries: Mapping[str, str],
    lineage: Mapping[str, Any],
    training: Mapping[str, Any],
    live: LiveInfo | None = None,
    prior: PriorInfo | None = None,
    item_prior: NDArray[np.float32] | None = None,
    popular_counts: ArrayLike | None = None,
    segmented_by: str | None = None,
    popular_segments: pl.DataFrame | None = None,
    profiles: Iterable[Mapping[str, Any]] | None = None,
    overwrite: bool = False,
) -> Manifest:
    """Writes, verifies and publishes a bundle, complete or not at all.

    Args:
        out: the bundle directory.
        model_version: the model's version; every answer of the service carries it.
        metric: "cosine" means that the vectors are already normalised.
        query_features: the raw inputs of the query tower.
        candidate_features: the raw inputs of the candidate tower.
        item_ids: [N] ids in row order, by descending popularity.
        item_vectors: float32 [N, D], may be memory-mapped; copied in blocks.
        item_attributes: N rows in row order; a column `item_id`, if any, is kept.
        popularity: [N], training events of each item.
        query_ids: [Q] users known at export.
        query_vectors: float32 [Q, D], like `item_vectors`.
        seen_offsets: [Q + 1].
        seen_items: item rows, those of user u at ``seen_offsets[u]:seen_offsets[u + 1]``, newest last.
        write_towers: called with the directory; creates `query_tower/` and `candidate_tower/` in it.
        libraries: library versions by name.
        lineage: where the model came from (data set digest, recipe, run, commit).
        training: a summary of the training.
        live: which live changes it includes.
        prior: the weights of `item_prior`.
        item_prior: float32 [N, 2], log shares of the items now and in training.
        popular_counts: [N], the counts that rank popular items; None takes `popularity`.
        segmented_by: the user column whose values are the segments.
        popular_segments: `segment` (String), `rows` (List of item rows, best first) and `counts` (List), one row each.
        profiles: the request features of each of the Q users that do not change with a request; see `Profiles`.
        overwrite: replace an existing bundle.

    Raises:
        OutputExistsError: `out` exists.
        BundleError: the arguments do not make a readable bundle.
    """
    with staged(out, overwrite=overwrite, marker=MANIFEST) as directory:
        directory.mkdir()
        write_ids(directory / files.ITEM_IDS, ITEM_ID, item_ids)
        write_ids(directory / files.QUERY_IDS, QUERY_ID, query_ids)
        item_attributes.write_parquet(directory / files.ITEM_ATTRIBUTES)
        copy_vectors(item_vectors, directory / files.ITEM_VECTORS)
        copy_vectors(query_vectors, directory / files.QUERY_VECTORS)
        np.save(directory / files.POPULARITY, np.asarray(popularity, np.int64), allow_pickle=False)
        _write_prior(directory, item_vectors, prior, item_prior, popular_counts)
        np.save(directory / files.SEEN_OFFSETS, np.asarray(seen_offsets, np.int64), allow_pickle=False)
        np.save(directory / files.SEEN_ITEMS, np.asarray(seen_items, np.int32), allow_pickle=False)
        if popular_segments is not None:
            popular_segments.write_parquet(directory / files.POPULAR_SEGMENTS)
        if profiles is not None:
            write_profiles(directory, profiles)
        write_towers(directory)
        for tower in (files.QUERY_TOWER, files.CANDIDATE_TOWER):
            if not (directory / tower / "saved_model.pb").is_file():
                raise BundleError(f"{directory / tower}: write_towers left no SavedModel there")
        manifest = Manifest(
            model_version=model_version,
            created_at=datetime.now(UTC),
            dimension=item_vectors.shape[1],
            metric=metric,
            items=len(item_vectors),
            queries=len(query_vectors),
            query_features=tuple(query_features),
            candidate_features=tuple(candidate_features),
            files=files.digests(directory, files.files_under(directory)),
            libraries=dict(libraries),
            lineage=dict(lineage),
            training=dict(training),
            live=live,
            prior=prior,
            segmented_by=segmented_by,
        )
        write_manifest(manifest, directory / MANIFEST)
        return Bundle.open(directory).manifest


def replace_prior(
    bundle: Bundle, out: Path, prior: PriorInfo, item_prior: NDArray[np.float32], popular_counts: ArrayLike
) -> Manifest:
    """Writes a copy of a bundle with another prior and without an index; all other files stay the same.

    Args:
        bundle: an opened bundle with a prior.
        out: the new bundle.
        prior: its weights.
        item_prior: float32 [N, 2].
        popular_counts: [N].

    Raises:
        OutputExistsError: `out` exists.
        BundleError: the prior does not fit the bundle.
    """
    changed = (files.ITEM_PRIOR, files.RECALL_VECTORS, files.POPULAR_COUNTS)
    old = bundle.manifest
    kept = {
        name: file for name, file in old.files.items() if name not in changed and not name.startswith(f"{files.INDEX}/")
    }
    with staged(out) as directory:
        directory.mkdir()
        for name in kept:
            (directory / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(bundle.path / name, directory / name)
        _write_prior(directory, bundle.item_vectors, prior, item_prior, popular_counts)
        added = files.digests(directory, [directory / name for name in changed])
        version = hashlib.sha256(f"{old.model_version} {added[files.ITEM_PRIOR].sha256}".encode()).hexdigest()
        manifest = old.model_copy(
            update={
                "model_version": f"{old.model_version.partition('-')[0]}-{version[:8]}",
                "created_at": datetime.now(UTC),
                "files": dict(sorted({**kept, **added}.items())),
                "index": None,
                "prior": prior,
            }
        )
        write_manifest(manifest, directory / MANIFEST)
        return Bundle.open(directory).manifest


def replace_index(bundle: Path, info: IndexInfo, directory: Path | None = None) -> Manifest:
    """Replaces the index of a published bundle: its directory first, then the manifest in one rename.

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
    for each in (bundle / files.INDEX).glob("*"):
        if path is None or each != bundle / path:
            remove(each)
    return manifest


def _move_in(bundle: Path, directory: Path) -> tuple[str, dict[str, FileInfo]]:
    inner = files.digests(directory, files.files_under(directory))
    name = hashlib.sha256("".join(f"{path} {file.sha256}\n" for path, file in inner.items()).encode()).hexdigest()[:16]
    path = f"{files.INDEX}/{name}"
    place = bundle / path
    place.parent.mkdir(exist_ok=True)
    flush_to_disk(directory)
    # The same content may exist already, from this index or from a run that was killed before its manifest.
    if place.exists() and files.digests(place, files.files_under(place)) == inner:
        remove(directory)
    else:
        remove(place)
        directory.rename(place)
    flush_to_disk(place.parent)
    return path, {f"{path}/{inside}": file for inside, file in inner.items()}


def _write_prior(
    directory: Path,
    vectors: NDArray[np.float32],
    prior: PriorInfo | None,
    item_prior: NDArray[np.float32] | None,
    popular_counts: ArrayLike | None,
) -> None:
    """Writes what is given: popular counts [N], log shares [N, 2], and the vectors that recall searches [N, D + 2]."""
    if popular_counts is not None:
        np.save(directory / files.POPULAR_COUNTS, np.asarray(popular_counts, np.float32), allow_pickle=False)
    if prior is None or item_prior is None:
        return
    shares = np.asarray(item_prior, np.float32)
    if shares.shape != (len(vectors), COLUMNS):
        raise BundleError(f"{files.ITEM_PRIOR}: must be [{len(vectors)}, {COLUMNS}], got {list(shares.shape)}")
    np.save(directory / files.ITEM_PRIOR, shares, allow_pickle=False)
    shape = len(vectors), vectors.shape[1] + COLUMNS
    path = directory / files.RECALL_VECTORS
    write_blocks(path, shape, lambda part: recall_vectors(vectors[part], shares[part], prior))
