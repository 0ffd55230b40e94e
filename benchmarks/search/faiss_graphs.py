"""Faiss's own graphs, over plain and over 8-bit vectors, made in the order of the rows.

A bundle's rows are those of popular items first, and a graph finds far more where these come first. Faiss shuffles the
rows of each call of `add`, so it gets them in parts.

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

PART = 1_000  # rows
# Links, codes for vectors, and efConstruction: 400 for few links, as hnswlib's fastest have, otherwise 200.
BUILDS = {"HNSW6": 400, "HNSW7": 400, "HNSW8": 400, "HNSW12": 200, "HNSW16": 200, "HNSW8_SQ8": 400}


def build(name: str, vectors: NDArray[np.float32]) -> Any:
    """An index of the vectors, made with all threads."""
    index = faiss.index_factory(vectors.shape[1], name, faiss.METRIC_INNER_PRODUCT)
    index.hnsw.efConstruction = BUILDS[name]
    index.train(vectors)
    for at in range(0, len(vectors), PART):
        index.add(vectors[at : at + PART])
    return index


def searches(name: str) -> Iterator[dict[str, Any]]:
    """The search settings of a build, each slower and better than the last."""
    return ({"efSearch": ef} for ef in EF)
