"""Approximate top-k by ScaNN: quantised search inside ScaNN, exact scores outside it from the shared item vectors.

In: item vectors [N, D] and `ScannParameters`. Out: an `Index`, and a directory with relative paths and without pickle.
ScaNN keeps no copy of the vectors: several workers rescore from one memory-mapped file.
"""

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from serving.errors import BundleError
from serving.index import Floats, Rows, best_first, best_of_one, checked_queries, is_in, rescore, unit_queries

# Brute force below the first, as ScaNN's own rules say (docs/algorithms.md); below the second a finer quantisation.
EXACT_BELOW = 20_000
COARSE_FROM = 100_000
MOST_DOUBLED = 2_000  # leaves
ASSETS = "scann_assets.pbtxt"
# The tuned numbers of leaves and rescored candidates belong to this k. A larger k rescores in proportion; its leaves
# grow with the square root: at 200k items recall@1000 was then 0.975, 0.938 without, at a recall@100 of 0.993.
TUNED_K = 100
# Queries that exclude at most so many rows are searched in as many leaves as one that excludes none, with as many
# candidates more as the longest of them needs: what a query gets does not depend on that, as ScaNN's first candidates
# are the same however many it is asked for. Those that exclude more than the others share a call of their own where
# that saves more candidates than a call takes time for. Beyond, more leaves are looked into, too: up to here it gained
# nothing (Gowalla: recall rose with exclusions).
COMMON, CALL = 256, 1_500
FEW = 8  # lines
# Each leaf's centre from so many items; and those centres moved so that the products with a leaf's items come out right
# (anisotropic, as the codes), by ScaNN's `avq`. With a million trained vectors a sixteenth of all leaves then held
# 0.956 of the best hundred instead of 0.94 with a sample of 100 a leaf and plain means.
SAMPLE_PER_LEAF, AVQ = 256, 2.0
# For an index that is built again as it was: at a million items 24 s instead of 40, recall@100 0.980 instead of 0.983.
SMALL_SAMPLE_PER_LEAF = 100


@dataclass(frozen=True)
class ScannParameters:
    """How a ScaNN index is built and searched.

    Attributes:
        leaves: partitions of the tree, 0 for none. Fixed at build.
        dimensions_per_block: dimensions quantised together. Fixed at build.
        anisotropic_threshold: ScaNN's noise shaping, for dot products. Fixed at build.
        leaves_searched: partitions looked into per query.
        rescored: quantised candidates that get their exact score, per query, for k = 100.
    """

    leaves: int
    dimensions_per_block: int = 2
    anisotropic_threshold: float = 0.2
    leaves_searched: int = 0
    rescored: int = 2 * TUNED_K

    @classmethod
    def for_size(cls, items: int, dimension: int) -> "ScannParameters":
        """About 2 sqrt(N) leaves: with a million trained vectors 1.08 times as fast as sqrt(N) at equal recall. Of many
        more items sqrt(N) again, as the time to build grows with their square. Of few items, half of sqrt(N) and one
        dimension a block: their codes stay in a core's cache whatever their size, and half the candidates need a score.
        With 41,000 items that took 0.45 of the time.
        """
        few, root = items < COARSE_FROM, math.sqrt(items)
        leaves = round(root / 2 if few else min(2 * root, max(MOST_DOUBLED, root)))
        blocks = 2 if dimension > 1 and not few else 1
        return cls(leaves=leaves, dimensions_per_block=blocks, leaves_searched=math.ceil(leaves / 64))

    def exhaustive(self, items: int) -> "ScannParameters":
        """The same index, searched in full: equal to exact search."""
        return replace(self, leaves_searched=self.leaves, rescored=items)


class ScannIndex:
    """A ScaNN searcher over row numbers. `build` and `load` make one.

    Args:
        searcher: a `ScannSearcher` without reordering and without document ids.
        item_vectors: [N, D], may be memory-mapped; the vectors it was built on.
        parameters: how to search it; may be replaced at any time through `with_parameters`.
    """

    def __init__(self, searcher: Any, item_vectors: Floats, parameters: ScannParameters) -> None:
        self._searcher = searcher
        self.item_vectors = item_vectors
        self.parameters = parameters

    @classmethod
    def build(
        cls,
        item_vectors: Floats,
        parameters: ScannParameters | None = None,
        *,
        sample_per_leaf: int = SAMPLE_PER_LEAF,
    ) -> "ScannIndex":
        """Trains an index on all item vectors.

        Args:
            item_vectors: [N, D], finite.
            parameters: None takes `ScannParameters.for_size`.
            sample_per_leaf: items that train the centre of each leaf, on average.

        Raises:
            BundleError: ScaNN is not installed on this platform.
        """
        pybind = _scann()
        items, dimension = item_vectors.shape
        parameters = parameters or ScannParameters.for_size(items, dimension)
        builder = pybind.builder(np.asarray(item_vectors), TUNED_K, "dot_product")
        builder = builder.set_n_training_threads(0)  # all cores
        if parameters.leaves:
            sample = min(items, sample_per_leaf * parameters.leaves)
            searched = max(1, parameters.leaves_searched)
            builder = builder.tree(parameters.leaves, searched, training_sample_size=sample, avq=AVQ)
        builder = builder.score_ah(
            parameters.dimensions_per_block, anisotropic_quantization_threshold=parameters.anisotropic_threshold
        )
        return cls(builder.build(), item_vectors, parameters)

    @classmethod
    def load(cls, directory: Path, item_vectors: Floats, parameters: ScannParameters) -> "ScannIndex":
        """Opens what `save` wrote.

        Raises:
            BundleError: ScaNN is not installed here, or the directory is not an index of these item vectors.
        """
        pybind = _scann()
        try:
            assets = (directory / ASSETS).read_text(encoding="utf-8")
            _check_arrays(directory, len(item_vectors))
            # Not `load_searcher`: that unpickles a file of document ids where it finds one.
            searcher = pybind.ScannSearcher(pybind.scann_pybind.ScannNumpy(str(directory), assets))
        except (OSError, EOFError, RuntimeError, ValueError) as error:
            raise BundleError(f"{directory}: not a ScaNN index that this release opens: {error}") from None
        return cls(searcher, item_vectors, parameters)

    def save(self, directory: Path) -> None:
        """Writes the index into a new directory."""
        directory.mkdir(parents=True)
        self._searcher.serialize(str(directory), relative_path=True)

    def with_parameters(self, parameters: ScannParameters) -> "ScannIndex":
        """The same searcher, searched with other `leaves_searched` and `rescored`."""
        return ScannIndex(self._searcher, self.item_vectors, parameters)

    def search(self, queries: Floats, k: int, excluded: Sequence[Rows] | None = None) -> tuple[Rows, Floats]:
        """Finds about the k best items of each query; see `Index.search`. Scores are exact, the choice is not.

        Of the quantised candidates as many more are taken as are excluded, so that as many as ever get their score.
        """
        if len(queries) == 1 and queries.shape == (1, self.item_vectors.shape[1]) and k >= 1:
            rows, scores = self._search_one(queries[0], k, None if excluded is None else excluded[0])
            return rows[np.newaxis], scores[np.newaxis]
        queries = checked_queries(queries, self.item_vectors.shape[1], k)
        if not len(queries):
            return np.empty((0, k), np.int64), np.empty((0, k), np.float32)
        if excluded is None:
            wanted, leaves = self._effort(k, 0)
            return self._best(queries, k, self._candidates(unit_queries(queries)[0], wanted, leaves))
        lengths = [len(left_out) for left_out in excluded]
        if max(lengths) <= COMMON:
            return self._search(queries, k, excluded, lengths)
        alike: dict[int, list[int]] = {}
        for query, length in enumerate(lengths):
            alike.setdefault(_extra(length), []).append(query)
        rows, scores = np.empty((len(queries), k), np.int64), np.empty((len(queries), k), np.float32)
        for extra, some in alike.items():
            its_lengths = [lengths[query] if extra <= COMMON else extra for query in some]
            found = self._search(queries[some], k, [excluded[query] for query in some], its_lengths)
            rows[some], scores[some] = found
        return rows, scores

    def _search_one(self, query: Floats, k: int, excluded: Rows | None) -> tuple[Rows, Floats]:
        """As `_search` for one query [D]: what a batch may spend on every call is too much for one line."""
        doubles = query.astype(np.float64)
        length = math.sqrt(doubles.dot(doubles))
        if not math.isfinite(length):
            checked_queries(query[np.newaxis], len(query), k)
        extra = 0 if excluded is None else len(excluded)
        extra = extra if extra <= COMMON else _extra(extra)
        wanted, leaves = self._effort(k, extra)
        unit = (doubles / (length or 1.0)).astype(np.float32)
        found, _ = self._searcher.search(unit, min(len(self.item_vectors), wanted + extra), -1, leaves or -1)
        rows: Rows = found.astype(np.int64)
        if extra and excluded is not None:
            rows = rows[~is_in(rows, excluded)][:wanted]
        return best_of_one(self.item_vectors, doubles, rows, k)

    def _search(self, queries: Floats, k: int, excluded: Sequence[Rows], extra: Sequence[int]) -> tuple[Rows, Floats]:
        """Queries that are searched in equally many leaves, with so many candidates more of each at least."""
        items, unit = len(self.item_vectors), unit_queries(queries)[0]
        wanted, leaves = self._effort(k, max(extra))
        kept = np.full((len(queries), wanted), -1, np.int64)
        for some in _shared(extra):
            most = max(extra[query] for query in some)
            every = len(some) == len(queries)
            rows = self._candidates(unit if every else unit[some], min(items, wanted + most), leaves)
            _keep(rows, some, excluded, kept, items)
        return self._best(queries, k, kept)

    def _best(self, queries: Floats, k: int, rows: Rows) -> tuple[Rows, Floats]:
        return best_first(rows, rescore(self.item_vectors, queries, rows), k)

    def _effort(self, k: int, extra: int) -> tuple[int, int]:
        """How many candidates get their score, and in how many leaves they are looked for."""
        tuned = self.parameters
        wanted = min(len(self.item_vectors), max(k, math.ceil(tuned.rescored * max(1.0, k / TUNED_K))))
        further = extra if extra > COMMON else 0
        leaves = math.ceil(tuned.leaves_searched * math.sqrt(max(1.0, (k + further) / TUNED_K)))
        return wanted, min(tuned.leaves, leaves)

    def candidates(self, queries: Floats, count: int) -> Rows:
        """The rows [B, count] that are best by their quantised scores, best first; -1 where the leaves hold fewer."""
        queries = checked_queries(queries, self.item_vectors.shape[1], count)
        return self._candidates(unit_queries(queries)[0], count, self.parameters.leaves_searched)

    def _candidates(self, unit: Floats, count: int, leaves: int) -> Rows:
        """Of queries of unit length: the same order, and no overflow inside ScaNN."""
        search = self._searcher.search_batched_parallel
        found, distances = search(unit, final_num_neighbors=count, leaves_to_search=leaves or -1)
        rows: Rows = found.astype(np.int64)
        # Where the leaves hold fewer than wanted, ScaNN fills with row 0 and NaN.
        rows[np.isnan(distances)] = -1
        return rows


def _shared(extra: Sequence[int]) -> list[Sequence[int]]:
    """Places of the queries, by the call of ScaNN that they share; each asks for as much as the longest of its own."""
    if len(extra) * max(extra) < CALL:
        return [range(len(extra))]
    groups: list[Sequence[int]] = []
    order = np.argsort(extra, kind="stable")
    rising = np.array(extra)[order]
    while len(order) > 1:
        saved = np.arange(1, len(order)) * (rising[-1] - rising[:-1])
        cut = int(saved.argmax()) + 1
        if saved[cut - 1] < CALL:
            break
        groups.append(order[cut:].tolist())
        order, rising = order[:cut], rising[:cut]
    return [*groups, order.tolist()] if groups else [range(len(extra))]


def _keep(rows: Rows, queries: Sequence[int], excluded: Sequence[Rows], kept: Rows, items: int) -> None:
    """Puts the first of each line that are not excluded for its query into the line of that query in `kept`."""
    # One mask of all items pays for itself over a batch: five times faster for each line.
    hidden = np.zeros(items, np.bool_) if len(rows) >= FEW else None
    for line, query in zip(rows, queries, strict=True):
        left_out, out = excluded[query], kept[query]
        if hidden is None:
            left = line[~is_in(line, left_out)]
        else:
            hidden[left_out] = True
            # Row -1 reads the last item, and stays -1 or goes.
            left = line[~hidden[line]]
            hidden[left_out] = False
        out[: len(left)] = left[: len(out)]


def _extra(excluded: int) -> int:
    """Candidates beyond the usual ones where so many are excluded: powers of two, so that few calls do for them all."""
    return COMMON if excluded <= COMMON else 1 << (excluded - 1).bit_length()


def _check_arrays(directory: Path, items: int) -> None:
    """Refuses arrays that ScaNN would take as they are: a wrong header or length ends the process there.

    Raises:
        BundleError: they are not of so many rows.
        ValueError: a file is no array.
    """
    for path in sorted(directory.glob("*.npy")):
        # Mapped: only the header is read.
        array = np.load(path, mmap_mode="r", allow_pickle=False)
        if array.size and len(array) != items:
            raise BundleError(f"{directory}: an index of {len(array)} items beside {items} item vectors")


def _scann() -> Any:
    # ScaNN imports TensorFlow where it finds it; without this its start-up notes drown the command's own lines.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    try:
        from scann.scann_ops.py import scann_ops_pybind
    except Exception as error:  # noqa: BLE001 - TensorFlow, which it imports, has errors of its own for a library
        raise BundleError(
            f"ScaNN cannot be loaded on this platform ({error}); it publishes wheels for Linux (glibc) and macOS only, "
            "and 1.4.2 for ARM Linux installs and does not import. Use the exact index instead: "
            'towers index --kind exact (kind="exact")'
        ) from None
    return scann_ops_pybind
