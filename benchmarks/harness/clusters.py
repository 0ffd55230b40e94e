"""Vectors in clusters, as those of a trained model are: what an index is measured on without training."""

import numpy as np
from numpy.typing import NDArray

from serving.search.index import Floats

DIMENSION, CLUSTERS, NOISE = 64, 1_000, 0.9


def clustered(rng: np.random.Generator, count: int) -> tuple[Floats, NDArray[np.int64]]:
    """Unit vectors [count, 64] around random centres, and the cluster of each [count]."""
    centres = rng.standard_normal((CLUSTERS, DIMENSION)).astype(np.float32)
    cluster = rng.integers(0, CLUSTERS, count)
    every = centres[cluster] + np.float32(NOISE) * rng.standard_normal((count, DIMENSION)).astype(np.float32)
    every /= np.linalg.norm(every, axis=1, keepdims=True)
    return every, cluster
