"""Our index, by the package that owns the modules `scann` here: `scann` or `scann-core`.

In: item vectors [N, D]; `vectors.npy`, in the folder above that of the index, holds them. Out: an index in a folder,
and searches in it.
"""

import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from serving.search.scann import ScannIndex
from serving.search.scann_parameters import ScannParameters

BUILDS: dict[str, dict[str, Any]] = {"ScannParameters.for_size": {}}
LEAVES, RESCORED = (5, 6, 8, 10, 12, 15, 17, 19, 24, 30, 38), (105, 112, 120, 125, 130, 135, 140, 150, 175, 200, 250)


def build(name: str, vectors: NDArray[np.float32]) -> Any:
    """An index of the vectors, made with all threads."""
    return ScannIndex.build(vectors)


def save(index: Any, path: Path) -> None:
    index.save(path)


def searches(name: str) -> Iterator[dict[str, Any]]:
    """The search settings."""
    grid = itertools.product(LEAVES, RESCORED)
    return ({"leaves_searched": leaves, "rescored": rescored} for leaves, rescored in grid)


def opened(path: Path, dimension: int) -> Any:
    """The index; a search of one query takes one thread."""
    # As a bundle maps them: np.memmap itself is slow to slice.
    vectors = np.asarray(np.load(path.parents[1] / "vectors.npy", mmap_mode="r"))
    return ScannIndex.load(path, vectors, ScannParameters.for_size(*vectors.shape))


def searcher(index: Any, settings: dict[str, Any], k: int) -> Callable[[NDArray[np.float32]], NDArray[np.int64]]:
    """Queries [B, D] to rows [B, k]."""
    chosen = index.with_parameters(replace(index.parameters, **settings))
    return lambda queries: chosen.search(queries, k)[0]
