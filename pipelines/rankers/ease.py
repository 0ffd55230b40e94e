"""EASE: a closed-form linear item-item model, a strong baseline for small catalogues."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.linalg
import scipy.sparse as sp
from numpy.typing import NDArray

from pipelines.dataset.popularity import PLAIN, Counting
from pipelines.rankers.item_knn import history
from pipelines.rankers.popular import Integers, Lists, Popular

PENALTY = 300.0
MAX_ITEMS = 10_000  # the inverse takes half a minute and 2 GB
BLOCK = 1_024  # queries scored at once
WIDTH = 256  # of the vectors that hold most of the scores


@dataclass(frozen=True)
class EaseSettings:
    """Settings of EASE.

    Attributes:
        penalty: L2 penalty on the weights, lambda in the paper.
        fallback: the popularity that answers users without history.
        popularity: weight w of what that popularity adds to the scores, ``w log(1 + c / mean c)`` of its counts c.
    """

    penalty: float = PENALTY
    fallback: Counting = PLAIN
    popularity: float = 0.0

    def __str__(self) -> str:
        return f"EASE of lambda {self.penalty:g}" + (f" with {self.fallback}" if self.popularity else "")


@dataclass(frozen=True)
class Ease:
    """The weights that predict each item of a user from the user's other items with the least squared error.

    ``B = I - P / diag(P)`` by columns with ``P = (X'X + penalty I)^-1``, X [users, N] 1 where the user took the item;
    the score of item j is the sum of B_ij over the items i of the history. Source: Steck, WWW 2019.

    Attributes:
        weights: float32 [N, N], B; its diagonal is 0.
        order: [N] item numbers, most popular first, for users without history.
        popularity: float32 [N], added to the scores of every user with a history.
    """

    weights: NDArray[np.float32]
    order: Lists
    popularity: NDArray[np.float32] | None = None

    def lists(self, seen_offsets: Integers, seen_items: Integers, k: int, *, repeats: bool = False) -> Lists:
        """The k unseen items with the highest scores; arguments and result as in `ItemKnn.lists`."""
        items, queries = len(self.order), len(seen_offsets) - 1
        taken = history(seen_offsets, seen_items, items)
        found: Lists = Popular(self.order).lists(seen_offsets, seen_items, k, repeats=repeats)
        for start in range(0, queries, BLOCK):
            part = taken[start : start + BLOCK]
            asked = np.flatnonzero(np.diff(part.indptr))
            scores = np.asarray(part[asked] @ self.weights)
            if self.popularity is not None:
                scores += self.popularity
            if not repeats:
                row, column = part[asked].nonzero()
                scores[row, column] = -np.inf
            found[start + asked, : min(k, items)] = highest(scores, k)
        return found


def highest(scores: NDArray[np.floating[Any]], k: int) -> Lists:
    """The items with the k highest of each row's scores, best first: [B, min(k, N)]; -1 where a score is infinite.

    Args:
        scores: [B, N], minus infinity for what must not be in the list.
        k: at least 1.
    """
    items = scores.shape[1]
    deep = min(k, items)
    best = np.argpartition(-scores, deep - 1, axis=1)[:, :deep] if deep < items else np.argsort(-scores, axis=1)
    value = np.take_along_axis(scores, best, axis=1)
    place = np.argsort(-value, axis=1, kind="stable")
    value = np.take_along_axis(value, place, axis=1)
    return np.where(np.isinf(value), -1, np.take_along_axis(best, place, axis=1)).astype(np.int32)


def ease_weights(users: Integers, items: Integers, shape: tuple[int, int], penalty: float) -> NDArray[np.float32]:
    """B of `Ease`.

    Args:
        users: [E] user numbers.
        items: [E] item numbers; an item that a user took twice counts once.
        shape: number of users and of items, N.
        penalty: on the squares of the weights, above 0.

    Returns:
        float32 [N, N].
    """
    return _weights(_gram(_taken(users, items, shape)), penalty)


def _weights(gram: NDArray[np.float64], penalty: float) -> NDArray[np.float32]:
    gram[np.diag_indices_from(gram)] += penalty
    # Cholesky takes half the work of a general inverse. The matrix is symmetric, so row- or column-major is the same.
    factor, _ = scipy.linalg.lapack.dpotrf(gram.T, lower=1, overwrite_a=1)
    inverse, _ = scipy.linalg.lapack.dpotri(factor, lower=1, overwrite_c=1)
    inverse = np.tril(inverse)
    inverse += np.tril(inverse, -1).T
    weights: NDArray[np.float32] = (-inverse / np.diag(inverse)).astype(np.float32)
    weights[np.diag_indices_from(weights)] = 0
    return weights


def ease_factors(
    users: Integers, items: Integers, shape: tuple[int, int], penalty: float
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """The scores of `Ease` for the users that it was fitted on, as products of vectors of at most `WIDTH` numbers.

    Arguments as of `ease_weights`.

    Returns:
        float32 [users, R] and [N, R]: the best approximation of that rank to ``X B``, of least squared error.
    """
    taken = _taken(users, items, shape)
    gram = _gram(taken)
    weights = _weights(gram.copy(), penalty)
    squares = weights.T @ gram.astype(np.float32) @ weights
    last = shape[1] - 1
    _, vectors = scipy.linalg.eigh(squares, subset_by_index=[max(0, last - WIDTH + 1), last], overwrite_a=True)
    return taken.astype(np.float32) @ (weights @ vectors), vectors


def _taken(users: Integers, items: Integers, shape: tuple[int, int]) -> sp.csr_array:
    """X: 1 where the user took the item."""
    taken = sp.csr_array((np.ones(len(items)), (users, items)), shape=shape)
    taken.sum_duplicates()
    taken.data[:] = 1
    return taken


def _gram(taken: sp.csr_array) -> NDArray[np.float64]:
    """X'X: how many users took both items."""
    counts: NDArray[np.float64] = sp.csr_array(taken.T @ taken).toarray()
    return counts
