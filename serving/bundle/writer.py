"""Writes a bundle: stages every file, computes digests, reads everything back, then publishes it by one rename."""

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
from serving.bundle.array_writer import Progress, Strings, copy_vectors, no_progress, write_ids, write_prior
from serving.bundle.manifest import MANIFEST, FeatureSpec, FileInfo, LiveInfo, Manifest, PriorInfo, write_manifest
from serving.bundle.profiles import write_profiles
from serving.bundle.reader import ITEM_ID, QUERY_ID, Bundle
from serving.errors import BundleError
from serving.files.staging import staged
from serving.search.vector_codes import VectorType

WRITE, READ_BACK = "write", "read back"
SECTIONS = ("data", "features", "model", "loss", "train")  # of a recipe, which readers of a bundle look into


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
    vectors: VectorType = "float32",
    event_types: Sequence[str] = (),
    seen_types: ArrayLike | None = None,
    live: LiveInfo | None = None,
    prior: PriorInfo | None = None,
    item_prior: NDArray[np.float32] | None = None,
    popular_counts: ArrayLike | None = None,
    segmented_by: str | None = None,
    popular_segments: pl.DataFrame | None = None,
    profiles: Iterable[Mapping[str, Any]] | None = None,
    overwrite: bool = False,
    check: Callable[[], object] | None = None,
    progress: Progress = no_progress,
) -> Manifest:
    """Writes, verifies and publishes a bundle, complete or not at all.

    Args:
        out: the bundle directory.
        model_version: the model's version; every answer of the service carries it.
        metric: "cosine" means that the vectors are already normalised.
        query_features: the raw inputs of the query tower.
        candidate_features: the raw inputs of the candidate tower.
        item_ids: [N] ids in row order.
        item_vectors: float32 [N, D], may be memory-mapped; copied in blocks.
        item_attributes: N rows in row order; a column `item_id`, if any, is kept.
        popularity: [N], training events of each item; without one it counts as unknown to the query tower.
        query_ids: [Q] users known at export.
        query_vectors: float32 [Q, D], like `item_vectors`.
        seen_offsets: [Q + 1].
        seen_items: item rows, those of user u at ``seen_offsets[u]:seen_offsets[u + 1]``, newest last.
        write_towers: called with the directory; creates `query_tower/` and `candidate_tower/` in it.
        libraries: library versions by name.
        lineage: where the model came from (data set digest, recipe, run, commit); "config" is the recipe of towers.
        training: a summary of the training.
        vectors: the type that the item vectors are stored as.
        event_types: the types of the seen events, each at the place that is its number.
        seen_types: the numbers of their types, -1 for none; None if there are no types.
        live: which live changes it includes.
        prior: the weights of `item_prior`.
        item_prior: float32 [N, 2], log shares of the items now and in training.
        popular_counts: [N], the counts that rank popular items; None takes `popularity`.
        segmented_by: the user column whose values are the segments.
        popular_segments: `segment` (String), `rows` (List of item rows, best first) and `counts` (List), one row each.
        profiles: the request features of each of the Q users that do not change with a request; see `Profiles`.
        overwrite: replace an existing bundle.
        check: see `staged`.
        progress: shows `WRITE`, then, after `write_towers`, `READ_BACK`.

    Raises:
        OutputExistsError: `out` exists.
        BundleError: the arguments do not make a readable bundle.
    """
    recipe = lineage.get("config", {})
    if not isinstance(recipe, Mapping) or not all(isinstance(recipe.get(each, {}), Mapping) for each in SECTIONS):
        raise BundleError(f'lineage: "config" is for a recipe of towers, by sections; name yours otherwise: {recipe!r}')
    with staged(out, overwrite=overwrite, marker=MANIFEST, check=check) as directory:
        directory.mkdir()
        items, queries = len(item_vectors), len(query_vectors)
        has_prior, has_profiles = prior is not None and item_prior is not None, profiles is not None
        # Of items: ids, attributes, vectors and the prior; of users: ids, vectors, seen items and profiles.
        total = (3 + has_prior) * items + (3 + has_profiles) * queries
        with progress(WRITE, total, "rows") as advance:
            write_ids(directory / files.ITEM_IDS, ITEM_ID, item_ids)
            advance(items)
            write_ids(directory / files.QUERY_IDS, QUERY_ID, query_ids)
            advance(queries)
            item_attributes.write_parquet(directory / files.ITEM_ATTRIBUTES)
            advance(items)
            copy_vectors(item_vectors, directory / files.ITEM_VECTORS, advance, vectors)
            copy_vectors(query_vectors, directory / files.QUERY_VECTORS, advance)
            np.save(directory / files.POPULARITY, np.asarray(popularity, np.int64), allow_pickle=False)
            if popular_counts is not None:
                _write_popular_counts(directory, popular_counts)
            if prior is not None and item_prior is not None:
                write_prior(directory, item_vectors, vectors, prior, item_prior, advance)
            np.save(directory / files.SEEN_OFFSETS, np.asarray(seen_offsets, np.int64), allow_pickle=False)
            np.save(directory / files.SEEN_ITEMS, np.asarray(seen_items, np.int32), allow_pickle=False)
            if seen_types is not None:
                np.save(directory / files.SEEN_TYPES, np.asarray(seen_types, np.int16), allow_pickle=False)
            advance(queries)
            if popular_segments is not None:
                popular_segments.write_parquet(directory / files.POPULAR_SEGMENTS)
            if profiles is not None:
                write_profiles(directory, profiles, advance)
        write_towers(directory)

        def manifest(digests: dict[str, FileInfo]) -> Manifest:
            return Manifest(
                model_version=model_version,
                created_at=datetime.now(UTC),
                dimension=item_vectors.shape[1],
                metric=metric,
                vectors=vectors,
                items=items,
                queries=queries,
                query_features=tuple(query_features),
                candidate_features=tuple(candidate_features),
                files=digests,
                libraries=dict(libraries),
                lineage=dict(lineage),
                training=dict(training),
                live=live,
                prior=prior,
                segmented_by=segmented_by,
                event_types=tuple(event_types),
            )

        return _read_back(directory, files.files_under(directory), manifest, progress)


def version_after(version: str, change: str) -> str:
    """Returns the model version of a bundle that was made from one of `version`; the data set's part stays.

    Args:
        version: that of the bundle before.
        change: what tells the change from any other.
    """
    digest = hashlib.sha256(f"{version} {change}".encode()).hexdigest()
    return f"{version.partition('-')[0]}-{digest[:8]}"


def replace_prior(
    bundle: Bundle,
    directory: Path,
    prior: PriorInfo,
    item_prior: NDArray[np.float32],
    popular_counts: ArrayLike,
    progress: Progress = no_progress,
) -> Manifest:
    """Writes a copy of a bundle with another prior and without an index; all other files stay the same.

    Not complete or absent: the caller publishes the copy.

    Args:
        bundle: an opened bundle with a prior.
        directory: where to write, which does not exist yet.
        prior: its weights.
        item_prior: float32 [N, 2].
        popular_counts: [N].
        progress: shows `WRITE`, then `READ_BACK`.

    Raises:
        FileExistsError: `directory` exists.
        BundleError: the prior does not fit the bundle.
    """
    old = bundle.manifest
    changed = [files.ITEM_PRIOR, files.POPULAR_COUNTS, files.RECALL_VECTORS]
    kept = {
        name: file for name, file in old.files.items() if name not in changed and not name.startswith(f"{files.INDEX}/")
    }

    def manifest(added: dict[str, FileInfo]) -> Manifest:
        live = old.live
        if live is not None and prior.until is not None:
            # The new counts hold no live events; which ones a fold must add, their times tell.
            live = live.model_copy(update={"events": 0})
        return old.model_copy(
            update={
                "model_version": version_after(old.model_version, added[files.ITEM_PRIOR].sha256),
                "created_at": datetime.now(UTC),
                "files": dict(sorted({**kept, **added}.items())),
                "index": None,
                "prior": prior,
                "live": live,
            }
        )

    directory.mkdir()
    with progress(WRITE, sum(file.bytes for file in kept.values()) / 1e6, "MB") as advance:
        for name, file in kept.items():
            (directory / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(bundle.path / name, directory / name)
            advance(file.bytes / 1e6)
    _write_popular_counts(directory, popular_counts)
    write_prior(directory, np.asarray(bundle.item_vectors), old.vectors, prior, item_prior)
    written = [path for name in changed if (path := directory / name).exists()]
    return _read_back(directory, written, manifest, progress)


def _read_back(
    directory: Path, written: Sequence[Path], manifest: Callable[[dict[str, FileInfo]], Manifest], progress: Progress
) -> Manifest:
    """Writes the manifest with the digests of the files just written, then compares every file with it."""
    megabytes = [path.stat().st_size / 1e6 for path in (*sorted(written), *files.files_under(directory))]
    sizes = iter(megabytes)
    with progress(READ_BACK, sum(megabytes), "MB") as advance:

        def rest() -> None:
            advance(next(sizes, 0.0))

        write_manifest(manifest(files.digests(directory, written, rest)), directory / MANIFEST)
        return Bundle.open(directory, rest=rest).manifest


def _write_popular_counts(directory: Path, counts: ArrayLike) -> None:
    np.save(directory / files.POPULAR_COUNTS, np.asarray(counts, np.float32), allow_pickle=False)
