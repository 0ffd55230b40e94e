"""Approximate top-k by ScaNN: quantised search inside ScaNN, exact scores outside it from the shared item vectors.

In: item vectors [N, D] and `ScannParameters`. Out: an `Index`, and a directory with relative paths and without pickle.
ScaNN keeps no copy of the vectors: several workers rescore from one memory-mapped file.
"""

import math
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from serving.errors import BundleError
from serving.index import Floats, Rows, best_first, checked_queries, rescore, unit_queries

# ScaNN's own rules (docs/algorithms.md): brute force below the first, quantisation without a tree below the second.
EXACT_BELOW = 20_000
TREE_FROM = 100_000
ASSETS = "scann_assets.pbtxt"
# The tuned numbers of leaves and rescored candidates belong to this k. A larger k rescores in proportion; its leaves
# grow with the square root: at 200k items recall@1000 was then 0.975, 0.938 without, at a recall@100 of 0.993.
TUNED_K = 100


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
        """ScaNN's rules for N items of D dimensions: no tree below 100k, then about sqrt(N) leaves."""
        leaves = round(math.sqrt(items)) if items >= TREE_FROM else 0
        blocks = 2 if dimension > 1 else 1
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
        cls, item_vectors: Floats, parameters: ScannParameters | None = None, *, threads: int = 0
    ) -> "ScannIndex":
        """Trains an index on all item vectors.

        Args:
            item_vectors: [N, D], finite.
            parameters: None takes `ScannParameters.for_size`.
            threads: training threads, 0 for all cores.

        Raises:
            BundleError: ScaNN is not installed on this platform.
        """
        pybind = _scann()
        items, dimension = item_vectors.shape
        parameters = parameters or ScannParameters.for_size(items, dimension)
        builder = pybind.builder(np.asarray(item_vectors), TUNED_K, "dot_product").set_n_training_threads(threads)
        if parameters.leaves:
            sample = min(items, 100_000)
            builder = builder.tree(parameters.leaves, max(1, parameters.leaves_searched), training_sample_size=sample)
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
            # Not `load_searcher`: that unpickles a file of document ids where it finds one.
            searcher = pybind.ScannSearcher(pybind.scann_pybind.ScannNumpy(str(directory), assets))
        except (OSError, RuntimeError, ValueError) as error:
            raise BundleError(f"{directory}: not a ScaNN index that this release opens: {error}") from None
        if searcher.size() != len(item_vectors):
            raise BundleError(
                f"{directory}: an index of {searcher.size()} items beside {len(item_vectors)} item vectors"
            )
        return cls(searcher, item_vectors, parameters)

    def save(self, directory: Path) -> None:
        """Writes the index into a new directory."""
        directory.mkdir(parents=True)
        self._searcher.serialize(str(directory), relative_path=True)

    def with_parameters(self, parameters: ScannParameters) -> "ScannIndex":
        """The same searcher, searched with other `leaves_searched` and `rescored`."""
        return ScannIndex(self._searcher, self.item_vectors, parameters)

    def search(self, queries: Floats, k: int) -> tuple[Rows, Floats]:
        """Finds about the k best items of each query; see `Index.search`. Scores are exact, the choice is not."""
        items, dimension = self.item_vectors.shape
        queries = checked_queries(queries, dimension, k)
        if not len(queries):
            return np.empty((0, k), np.int64), np.empty((0, k), np.float32)
        larger = max(1.0, k / TUNED_K)
        wanted = min(items, max(k, math.ceil(self.parameters.rescored * larger)))
        leaves = min(self.parameters.leaves, math.ceil(self.parameters.leaves_searched * math.sqrt(larger))) or -1
        search = self._searcher.search_batched_parallel if len(queries) > 1 else self._searcher.search_batched
        # Of unit length: the same order, and no overflow inside ScaNN.
        unit, _ = unit_queries(queries)
        found, distances = search(unit, final_num_neighbors=wanted, leaves_to_search=leaves)
        # Where the leaves hold fewer than wanted, ScaNN fills with row 0 and NaN.
        rows = np.where(np.isnan(distances), -1, found.astype(np.int64))
        return best_first(rows, rescore(self.item_vectors, queries, rows), k)


def _scann() -> Any:
    # ScaNN imports TensorFlow where it finds it; without this its start-up notes drown the command's own lines.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    try:
        from scann.scann_ops.py import scann_ops_pybind
    except ImportError as error:
        raise BundleError(
            f"ScaNN cannot be loaded on this platform ({error}); it publishes wheels for Linux (glibc, x86-64 and "
            'arm64) and macOS only. Use the exact index instead: towers index --kind exact (kind="exact")'
        ) from None
    return scann_ops_pybind
