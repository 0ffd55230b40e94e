"""iALS: matrix factorisation of implicit feedback by alternating least squares, a strong baseline when it is tuned.

In: which user took which item, a sparse matrix. Out: a vector for each user and each item after every sweep, and those
of new histories. The model is that of Hu, Koren & Volinsky, ICDM 2008, with the loss of Rendle, Krichene, Zhang and
Koren, Revisiting the performance of iALS on item recommendation benchmarks, RecSys 2022:

    sum over positives (<w_u, h_i> - 1)^2  +  a0 sum over all pairs <w_u, h_i>^2
    + reg (sum_u (n_u + a0 N) |w_u|^2  +  sum_i (n_i + a0 U) |h_i|^2)

with n_u the items of user u, n_i the users of item i, U users and N items (nu = 1 of the paper).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from scipy.linalg import lapack

Vectors = NDArray[np.floating[Any]]

# Rows solved at once: their matrices [B, d, d], and the gathered vectors [B, n, d], are at most this many numbers.
BATCH_NUMBERS = 8_388_608
# Rows of a batch are padded to its longest, which has at most this many times the entries of its shortest, and 4 more.
MOST_PADDING = 1.25


@dataclass(frozen=True)
class Ials:
    """Settings of iALS.

    Attributes:
        a0: weight of a pair that was not observed; a positive one has 1 + a0.
        reg: of the regularisation.
        dimension: d, of the vectors.
        deviation: of a number of an item's first vector, times sqrt(d).
        seed: of the first vectors.
        dtype: of vectors and solves; the sums over all rows are float64 in any case.
    """

    a0: float
    reg: float
    dimension: int = 64
    deviation: float = 0.1
    seed: int = 0
    dtype: type[np.float32 | np.float64] = np.float32

    def sweeps(self, taken: sp.csr_array) -> Iterator[tuple[Vectors, Vectors]]:
        """Yields the vectors of users [U, d] and of items [N, d] after each sweep, without end.

        A sweep solves the items, then the users; so the users are always those that `step` gives for the items.

        Args:
            taken: [U, N], 1 where the user took the item.
        """
        transposed = sp.csr_array(taken.T)
        rng = np.random.default_rng(self.seed)
        first = rng.normal(0, self.deviation / np.sqrt(self.dimension), (taken.shape[1], self.dimension))
        users = self.step(taken, first.astype(self.dtype))
        while True:
            items = self.step(transposed, users)
            users = self.step(taken, items)
            yield users, items

    def step(self, taken: sp.csr_array, vectors: Vectors) -> Vectors:
        """The vectors of one side that minimise the loss, given those of the other; so also those of new histories.

        ``(sum over the row's positives h h' + a0 H'H + reg (n + a0 N) I) w = sum over the row's positives h``.

        Args:
            taken: [R, N], 1 where the row has the column.
            vectors: [N, d], H, those of the columns.

        Returns:
            [R, d]; zeros for a row without entries.
        """
        rows, (columns, dimension) = taken.shape[0], vectors.shape
        wide = vectors.astype(np.float64)
        everywhere = (self.a0 * (wide.T @ wide)).astype(self.dtype)
        # The last row, of zeros, pads the short histories of a batch.
        padded = np.concatenate([vectors, np.zeros((1, dimension))]).astype(self.dtype)
        solve = lapack.sposv if self.dtype is np.float32 else lapack.dposv
        counts = np.diff(taken.indptr)
        found = np.zeros((rows, dimension), self.dtype)
        for batch in batches(counts, dimension):
            histories = _histories(taken, batch, columns)
            of_batch = padded[histories]  # [B, n, d]
            right = of_batch.sum(axis=1)
            left = np.matmul(of_batch.transpose(0, 2, 1), of_batch) + everywhere
            penalty = self.reg * (counts[batch] + self.a0 * columns)
            left[:, np.arange(dimension), np.arange(dimension)] += penalty[:, None].astype(self.dtype)
            for place, row in enumerate(batch):
                _, found[row], failed = solve(left[place], right[place], lower=True, overwrite_a=True)
                if failed:
                    raise ValueError(f"iALS with reg {self.reg:g}: a matrix is not positive definite; use a larger reg")
        return found


def batches(counts: NDArray[np.integer[Any]], dimension: int) -> Iterator[NDArray[np.intp]]:
    """Yields the rows that have entries, those of like numbers of entries together, so that memory is bounded."""
    order = np.argsort(counts, kind="stable")
    order = order[counts[order] > 0]
    ascending, start = counts[order], 0
    while start < len(order):
        longest = ascending[start] * MOST_PADDING + 4
        alike = int(np.searchsorted(ascending, longest, side="right")) - start
        fitting = BATCH_NUMBERS // (dimension * max(dimension, int(longest)))
        stop = start + max(1, min(alike, fitting))
        yield order[start:stop]
        start = stop


def _histories(taken: sp.csr_array, rows: NDArray[np.intp], padding: int) -> NDArray[np.int64]:
    """[B, n] the columns of some rows, the shorter ones padded."""
    counts = taken.indptr[rows + 1] - taken.indptr[rows]
    place = np.arange(counts.max())
    inside = place < counts[:, None]
    columns = np.full(inside.shape, padding, np.int64)
    columns[inside] = taken.indices[(taken.indptr[rows][:, None] + place)[inside]]
    return columns
