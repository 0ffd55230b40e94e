"""usearch: HNSW graphs like hnswlib's, with kernels for each processor.

Source: https://github.com/unum-cloud/usearch (connectivity is the M of Malkov and Yashunin, expansion their ef).
In: item vectors [N, D]. Out: an index in a file, and searches in it.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from usearch.index import Index

from benchmarks.search.hnswlib_index import EF

BUILDS = {
    "connectivity=8, expansion_add=200": {"connectivity": 8, "expansion_add": 200},
    "connectivity=12, expansion_add=200": {"connectivity": 12, "expansion_add": 200},
}


def build(name: str, vectors: NDArray[np.float32]) -> Any:
    """An index of the vectors, made with all threads."""
    index = Index(ndim=vectors.shape[1], metric="ip", dtype="f32", **BUILDS[name])
    index.add(np.arange(len(vectors)), vectors)
    return index


def save(index: Any, path: Path) -> None:
    index.save(str(path))


def searches(name: str) -> Iterator[dict[str, Any]]:
    """The search settings of a build, each slower and better than the last."""
    return ({"expansion": ef} for ef in EF)


def opened(path: Path, dimension: int) -> Any:
    """The index."""
    index = Index(ndim=dimension, metric="ip", dtype="f32")
    index.load(str(path))
    return index


def searcher(index: Any, settings: dict[str, Any], k: int) -> Callable[[NDArray[np.float32]], NDArray[np.int64]]:
    """Queries [B, D] to rows [B, k], on one thread."""
    index.expansion_search = settings["expansion"]
    return lambda queries: index.search(queries, k, threads=1).keys.astype(np.int64)
