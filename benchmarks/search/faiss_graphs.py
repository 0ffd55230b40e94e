"""Faiss's own graphs, over plain and over 8-bit vectors.

Source: Malkov and Yashunin, TPAMI 2020, arXiv:1603.09320, as in Douze et al., The Faiss library, arXiv:2401.08281.
`faiss-cpu` from PyPI. In: item vectors [N, D]. Out: an index in a file, and searches in it by inner product.
"""

from collections.abc import Iterator
from typing import Any

import faiss
import numpy as np
from numpy.typing import NDArray

from benchmarks.search.faiss_index import opened as opened
from benchmarks.search.faiss_index import save as save
from benchmarks.search.faiss_index import searcher as searcher
from benchmarks.search.hnswlib_index import EF

EF_CONSTRUCTION = 200
BUILDS = ("HNSW6", "HNSW8", "HNSW12", "HNSW16", "HNSW32", "HNSW8_SQ8", "HNSW16_SQ8")  # links, and codes for vectors


def build(name: str, vectors: NDArray[np.float32]) -> Any:
    """An index of the vectors, made with all threads."""
    index = faiss.index_factory(vectors.shape[1], name, faiss.METRIC_INNER_PRODUCT)
    index.hnsw.efConstruction = EF_CONSTRUCTION
    index.train(vectors)
    index.add(vectors)
    return index


def searches(name: str) -> Iterator[dict[str, Any]]:
    """The search settings of a build, each slower and better than the last."""
    return ({"efSearch": ef} for ef in EF)
