"""hnswlib: hierarchical navigable small world graphs, with M and ef_construction as its authors recommend, and less.

Source: Malkov and Yashunin, TPAMI 2020, arXiv:1603.09320; https://github.com/nmslib/hnswlib (ALGO_PARAMS.md: M of 12 to
48, 16 for most uses; ef at least k). In: item vectors [N, D]. Out: an index in a file, and searches in it.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import hnswlib
import numpy as np
from numpy.typing import NDArray

EF = (100, 105, 110, 120, 150, 180, 220, 270, 330, 400)
SHUFFLED = "M=16, ef_construction=200, rows shuffled"  # what its graphs owe to popular items coming first
BUILDS = {
    "M=6, ef_construction=200": {"M": 6, "ef_construction": 200},  # fewer links than its authors recommend
    "M=6, ef_construction=400": {"M": 6, "ef_construction": 400},
    "M=7, ef_construction=400": {"M": 7, "ef_construction": 400},
    "M=8, ef_construction=200": {"M": 8, "ef_construction": 200},
    "M=12, ef_construction=200": {"M": 12, "ef_construction": 200},
    "M=16, ef_construction=200": {"M": 16, "ef_construction": 200},
    SHUFFLED: {"M": 16, "ef_construction": 200},
}


def build(name: str, vectors: NDArray[np.float32]) -> Any:
    """An index of the vectors, made with all threads."""
    index = hnswlib.Index("ip", vectors.shape[1])
    index.init_index(len(vectors), random_seed=1, **BUILDS[name])
    rows = np.arange(len(vectors))
    if name == SHUFFLED:
        rows = np.random.default_rng(1).permutation(rows)
        vectors = vectors[rows]
    index.add_items(vectors, rows)
    return index


def save(index: Any, path: Path) -> None:
    index.save_index(str(path))


def searches(name: str) -> Iterator[dict[str, Any]]:
    """The search settings of a build, each slower and better than the last."""
    return ({"ef": ef} for ef in EF)


def opened(path: Path, dimension: int) -> Any:
    """The index, on one thread."""
    index = hnswlib.Index("ip", dimension)
    index.load_index(str(path))
    index.set_num_threads(1)
    return index


def searcher(index: Any, settings: dict[str, Any], k: int) -> Callable[[NDArray[np.float32]], NDArray[np.int64]]:
    """Queries [B, D] to rows [B, k]."""
    index.set_ef(settings["ef"])
    return lambda queries: index.knn_query(queries, k)[0].astype(np.int64)
