"""GF-CF: a graph filter in closed form, without training; the strongest of the cheap baselines on Gowalla.

In: which user took which item, a sparse matrix. Out: scores of all items for histories. Shen et al., How powerful is
graph convolution for recommendation?, CIKM 2021:

    s_u = r_u (N' N + w D^(-1/2) V V' D^(1/2)),   N = A^(-1/2) R D^(-1/2)

with R the matrix, A and D the counts of users and items, and V the first right singular vectors of N: a linear filter,
and an ideal low-pass filter beside it.
"""

from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from scipy.sparse.linalg import svds

RANK = 256  # as published


@dataclass(frozen=True)
class GraphFilter:
    """The two filters of a matrix of users and items.

    Attributes:
        linear: [N, N] sparse, N' N.
        roots: [N] the square roots of the items' counts; 1 for an item without a user.
        vectors: [rank, N] the first right singular vectors of N.
    """

    linear: sp.csr_array
    roots: NDArray[np.float32]
    vectors: NDArray[np.float32]

    @classmethod
    def of(cls, taken: sp.csr_array, rank: int = RANK, seed: int = 0) -> "GraphFilter":
        """Makes the filters.

        Args:
            taken: [U, N], 1 where the user took the item.
            rank: of the low-pass filter.
            seed: of the vector that the decomposition starts from.
        """
        users, items = (np.sqrt(np.maximum(taken.sum(axis=axis), 1)) for axis in (1, 0))
        scaled = sp.csr_array(sp.diags_array(1 / users) @ taken @ sp.diags_array(1 / items)).astype(np.float32)
        start = np.random.default_rng(seed).normal(size=min(taken.shape)).astype(np.float32)
        _, _, vectors = svds(scaled, min(rank, min(taken.shape) - 1), v0=start)
        return cls(sp.csr_array(scaled.T @ scaled), items.astype(np.float32), vectors.astype(np.float32))

    def scores(self, taken: sp.csr_array, weight: float) -> NDArray[np.float32]:
        """Returns the scores of all items for histories [B, N]; `weight` is that of the low-pass filter."""
        linear = np.asarray((taken @ self.linear).todense(), np.float32)
        low_pass = (taken @ (self.vectors / self.roots).T) @ (self.vectors * self.roots)
        return linear + np.float32(weight) * low_pass
