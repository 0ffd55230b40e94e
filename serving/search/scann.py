"""Approximate top-k by ScaNN: quantised search inside ScaNN, exact scores outside it from the shared item vectors.

A saved index is a directory with relative paths and without pickle. ScaNN keeps no copy of the vectors: several workers
rescore from one memory-mapped file.
"""

import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from serving.errors import BundleError
from serving.search.exclusions import keep_first, shared_calls
from serving.search.index import Floats, Rows, best_first, best_of_one, checked_queries, is_in, rescore, unit_queries
from serving.search.scann_parameters import LEAVES_POWER, TUNED_K, ScannParameters
from serving.search.vector_codes import Vectors

ASSETS = "scann_assets.pbtxt"
# Queries that exclude at most COMMON rows search as many leaves as one that excludes none, and fetch as many extra
# candidates as the longest of them needs. That changes no result: ScaNN's first candidates are the same however many it
# is asked for, but where quantised scores tie at the last of them. Beyond COMMON, more leaves are searched, too: up to
# it that gained nothing (Gowalla: recall rose with exclusions).
COMMON = 256
# Few of thousands of excluded rows are among the first: extra candidates for a query that excludes more than COMMON,
# and for a second attempt if too few are left. Where that fails, too, an exact search finds far more of the right ones.
EXTRA = 512, 2_048
# Items that train each leaf's centre; ScaNN's `avq` then moves the centres so that the products with a leaf's items
# come out right (anisotropic, like the codes). With a million trained vectors a sixteenth of all leaves then held 0.956
# of the best hundred, instead of 0.94 with a sample of 100 per leaf and plain means.
SAMPLE_PER_LEAF, AVQ = 256, 2.0
# For a rebuild with the same parameters: at a million items 24 s instead of 40, recall@100 0.980 instead of 0.983.
SMALL_SAMPLE_PER_LEAF = 100


class ScannIndex:
    """A ScaNN searcher over row numbers. `build` and `load` make one.

    Args:
        searcher: a `ScannSearcher` without reordering and without document ids.
        item_vectors: [N, D], may be memory-mapped; the vectors it was built on.
        parameters: how to search it; see `with_parameters`.
    """

    def __init__(self, searcher: Any, item_vectors: Vectors, parameters: ScannParameters) -> None:
        self._searcher = searcher
        self.item_vectors = item_vectors
        self.parameters = parameters

    @classmethod
    def build(
        cls, item_vectors: Vectors, parameters: ScannParameters | None = None, *, sample_per_leaf: int = SAMPLE_PER_LEAF
    ) -> "ScannIndex":
        """Trains an index on all item vectors.

        Args:
            item_vectors: [N, D], finite.
            parameters: None takes `ScannParameters.for_size`.
            sample_per_leaf: items that train each leaf's centre, on average.

        Raises:
            BundleError: ScaNN is not installed on this platform.
        """
        pybind = scann_library()
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
    def load(cls, directory: Path, item_vectors: Vectors, parameters: ScannParameters) -> "ScannIndex":
        """Opens what `save` wrote.

        Raises:
            BundleError: ScaNN is not installed here, or the directory is not an index of these item vectors.
        """
        pybind = scann_library()
        try:
            assets = (directory / ASSETS).read_text(encoding="utf-8")
            _check_arrays(directory, len(item_vectors))
            # Not `load_searcher`: that unpickles a file of document ids if it finds one.
            searcher = pybind.ScannSearcher(pybind.scann_pybind.ScannNumpy(str(directory), assets))
        except (OSError, EOFError, RuntimeError, ValueError) as error:
            raise BundleError(f"{directory}: not a ScaNN index that this release opens: {error}") from None
        return cls(searcher, item_vectors, parameters)

    def save(self, directory: Path) -> None:
        """Writes the index into a new directory."""
        directory.mkdir(parents=True)
        self._searcher.serialize(str(directory), relative_path=True)

    def with_parameters(self, parameters: ScannParameters) -> "ScannIndex":
        """The same searcher with other `leaves_searched` and `rescored`."""
        return ScannIndex(self._searcher, self.item_vectors, parameters)

    def search(self, queries: Floats, k: int, excluded: Sequence[Rows] | None = None) -> tuple[Rows, Floats]:
        """Finds about the k best items of each query; see `Index.search`. Scores are exact, the choice is not.

        Fetches extra quantised candidates for those that are excluded, so that the number that get a score stays the
        same. A query of whose first candidates too many are excluded gets none: row -1, for an exact search to answer.
        """
        if queries.shape == (1, self.item_vectors.shape[1]) and k >= 1:
            rows, scores = self._search_one(queries[0], k, None if excluded is None else excluded[0])
            return rows[np.newaxis], scores[np.newaxis]
        queries = checked_queries(queries, self.item_vectors.shape[1], k)
        if not len(queries):
            return np.empty((0, k), np.int64), np.empty((0, k), np.float32)
        if excluded is None:
            wanted, leaves = self.effort(k)
            return self._best(queries, k, self._candidates(unit_queries(queries)[0], wanted, leaves))
        lengths = [len(left_out) for left_out in excluded]
        wanted, _ = self.effort(k)
        kept = np.full((len(queries), wanted), -1, np.int64)
        unit = unit_queries(queries)[0]
        few = [query for query, length in enumerate(lengths) if length <= COMMON]
        if few:
            self._fill(kept, few, unit, k, excluded, lengths)
        short = [query for query, length in enumerate(lengths) if length > COMMON]
        for extra in EXTRA:
            if short:
                self._fill(kept, short, unit, k, excluded, [extra] * len(lengths))
                short = [query for query in short if kept[query, -1] < 0 and extra < lengths[query]]
        kept[short] = -1
        return self._best(queries, k, kept)

    def _search_one(self, query: Floats, k: int, excluded: Rows | None) -> tuple[Rows, Floats]:
        """`search` for one query [D], without the overhead that only pays off for a batch."""
        doubles = query.astype(np.float64)
        length = math.sqrt(doubles.dot(doubles))
        if not math.isfinite(length):
            checked_queries(query[np.newaxis], len(query), k)
        unit = (doubles / (length or 1.0)).astype(np.float32)
        most = 0 if excluded is None else len(excluded)
        for extra in EXTRA if most > COMMON else (most,):
            wanted, leaves = self.effort(k, extra)
            found, _ = self._searcher.search(unit, min(len(self.item_vectors), wanted + extra), -1, leaves or -1)
            rows: Rows = found.astype(np.int64)
            if most and excluded is not None:
                rows = rows[~is_in(rows, excluded)][:wanted]
            if extra >= most or len(rows) == wanted:
                break
        else:
            rows = rows[:0]
        return best_of_one(self.item_vectors, doubles, rows, k)

    def _fill(
        self, kept: Rows, queries: Sequence[int], unit: Floats, k: int, excluded: Sequence[Rows], extra: Sequence[int]
    ) -> None:
        """Writes the candidates of some queries into their lines of `kept`: all of them are searched in equally many
        leaves, and each gets at least its `extra` candidates before those that are excluded for it are dropped."""
        items = len(self.item_vectors)
        wanted, leaves = self.effort(k, max(extra[query] for query in queries))
        for some in shared_calls(queries, extra):
            most = max(extra[query] for query in some)
            every = len(some) == len(unit)
            rows = self._candidates(unit if every else unit[some], min(items, wanted + most), leaves)
            keep_first(rows, some, excluded, kept, items)

    def _best(self, queries: Floats, k: int, rows: Rows) -> tuple[Rows, Floats]:
        return best_first(rows, rescore(self.item_vectors, queries, rows), k)

    def effort(self, k: int, extra: int = 0) -> tuple[int, int]:
        """How many candidates a search for k scores, and how many leaves it reads for them; `extra` are left out."""
        tuned = self.parameters
        wanted, leaves = tuned.rescored, tuned.leaves_searched
        if k > TUNED_K:
            wanted = math.ceil(wanted * (k / TUNED_K))
        further = extra if extra > COMMON else 0
        if k + further > TUNED_K:
            leaves = math.ceil(leaves * ((k + further) / TUNED_K) ** LEAVES_POWER)
        return min(len(self.item_vectors), max(k, wanted)), min(tuned.leaves, leaves)

    def candidates(self, queries: Floats, count: int, k: int) -> Rows:
        """The rows [B, count] that are best by quantised score, best first, in the leaves that a search for k reads.

        -1 where these hold fewer.
        """
        queries = checked_queries(queries, self.item_vectors.shape[1], count)
        return self._candidates(unit_queries(queries)[0], count, self.effort(k)[1])

    def _candidates(self, unit: Floats, count: int, leaves: int) -> Rows:
        """`candidates` for queries scaled to unit length, which keeps their order and avoids overflow in ScaNN."""
        search = self._searcher.search_batched_parallel
        found, distances = search(unit, final_num_neighbors=count, leaves_to_search=leaves or -1)
        rows: Rows = found.astype(np.int64)
        # Where the leaves hold fewer than wanted, ScaNN pads with row 0 and NaN.
        rows[np.isnan(distances)] = -1
        return rows


def _check_arrays(directory: Path, items: int) -> None:
    """Refuses arrays that ScaNN would take unchecked: a wrong header or length crashes the process there.

    Raises:
        BundleError: they do not have `items` rows.
        ValueError: a file is not an array.
    """
    for path in sorted(directory.glob("*.npy")):
        # Mapped: only the header is read.
        array = np.load(path, mmap_mode="r", allow_pickle=False)
        if array.size and len(array) != items:
            raise BundleError(f"{directory}: an index of {len(array)} items beside {items} item vectors")


def scann_library() -> Any:
    """ScaNN's own module.

    Raises:
        BundleError: it cannot be loaded here.
    """
    # ScaNN imports TensorFlow if installed; without this its start-up messages drown the command's own output.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    try:
        from scann.scann_ops.py import scann_ops_pybind
    except Exception as error:  # noqa: BLE001 - TensorFlow, which it imports, raises its own errors for libraries
        raise BundleError(
            f"ScaNN cannot be loaded on this platform ({error}); it publishes wheels for Linux (glibc) only, and 1.4.2 "
            "for ARM installs and does not import. Use the exact index instead: towers index --kind exact "
            '(kind="exact")'
        ) from None
    return scann_ops_pybind
