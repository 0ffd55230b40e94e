"""Faiss's inverted files, flat and by product quantisation with exact refinement, as its own wiki tunes them.

Source: Douze et al., The Faiss library, arXiv:2401.08281; https://github.com/facebookresearch/faiss/wiki (the index
factory, fast accumulation of PQ codes). `faiss-cpu` from PyPI. In: item vectors [N, D]. Out: an index in a file, and
searches in it by inner product.
"""

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import faiss
import numpy as np
from numpy.typing import NDArray

NPROBE, K_FACTOR = (4, 8, 12, 16, 24, 32, 48, 64), (1.25, 1.5, 2.0, 3.0)
BUILDS = {
    "IVF1024,Flat": {"nprobe": NPROBE},
    "IVF1024,SQ8": {"nprobe": NPROBE},
    "IVF1024,PQ32x4fs,RFlat": {"nprobe": NPROBE, "k_factor_rf": K_FACTOR},
    "IVF2048,PQ32x4fs,RFlat": {"nprobe": (*NPROBE, 96), "k_factor_rf": K_FACTOR},
    "IVF4096,PQ32x4fs,RFlat": {"nprobe": (*NPROBE, 96, 128), "k_factor_rf": K_FACTOR},
    "IVF8192,PQ32x4fs,RFlat": {"nprobe": (*NPROBE, 96, 128), "k_factor_rf": K_FACTOR},
    "IVF1024,PQ64x4fs,RFlat": {"nprobe": NPROBE, "k_factor_rf": K_FACTOR},
    "IVF4096,PQ64x4fs,RFlat": {"nprobe": NPROBE, "k_factor_rf": K_FACTOR},
}


def build(name: str, vectors: NDArray[np.float32]) -> Any:
    """An index of the vectors, made with all threads."""
    index = faiss.index_factory(vectors.shape[1], name, faiss.METRIC_INNER_PRODUCT)
    index.train(vectors)
    index.add(vectors)
    return index


def save(index: Any, path: Path) -> None:
    faiss.write_index(index, str(path))


def searches(name: str) -> Iterator[dict[str, Any]]:
    """The search settings of a build."""
    grid = BUILDS[name]
    return (dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values()))


def opened(path: Path, dimension: int) -> Any:
    """The index, on one thread."""
    faiss.omp_set_num_threads(1)
    return faiss.read_index(str(path))


def searcher(index: Any, settings: dict[str, Any], k: int) -> Callable[[NDArray[np.float32]], NDArray[np.int64]]:
    """Queries [B, D] to rows [B, k]."""
    faiss.ParameterSpace().set_index_parameters(index, ",".join(f"{name}={value}" for name, value in settings.items()))
    return lambda queries: index.search(queries, k)[1]
