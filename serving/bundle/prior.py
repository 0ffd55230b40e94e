"""The prior in serving: recent popularity as two extra columns of the item and query vectors.

Recall searches ``[v_i, log q_now(i), log q_train(i)]`` with ``[u, w(h), -past]``, where
``w(h) = max(0, now + length log(1 + h))``. So the score of a query and an item stays one dot product. A query by
similarity alone (``vector`` or ``/similar``) gets weights of zero. `towers.model.prior` fits the weights. A prior
whose weights are zero changes no score: its counts only rank the popular items. Such a bundle of float32 has no extra
columns, and coded vectors, which are joined where they are read, get columns of zeros.
"""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from serving.bundle.manifest import PriorInfo
from serving.search.index import Floats

COLUMNS = 2
NO_PRIOR = -1  # instead of the length of a history: the query is by similarity alone
SMOOTHING = 0.1  # as `towers.model.prior.SMOOTHING`


def asked(prior: PriorInfo) -> NDArray[np.bool_]:
    """[2] which of its columns change a score of any query."""
    return np.array([prior.now > 0 or prior.length > 0, prior.past > 0])


def weighs(prior: PriorInfo) -> bool:
    """Whether it changes a score of any query."""
    return bool(asked(prior).any())


def log_share(counts: NDArray[np.floating[Any]] | float, mean: float) -> NDArray[np.float64]:
    """``log(c / mean + 0.1)``, the log shares of items with counts c."""
    shares: NDArray[np.float64] = np.log(np.asarray(counts, np.float64) / (mean or 1.0) + SMOOTHING)
    return shares


def count_of(shares: NDArray[np.floating[Any]], mean: float) -> NDArray[np.float64]:
    """The counts with these log shares; the inverse of `log_share`."""
    counts: NDArray[np.float64] = (np.exp(shares.astype(np.float64)) - SMOOTHING) * mean
    return counts


def query_columns(prior: PriorInfo, histories: NDArray[np.int64]) -> Floats:
    """The extra columns of query vectors.

    Args:
        prior: the weights.
        histories: [B] lengths of the queries' histories, `NO_PRIOR` for a query by similarity alone.

    Returns:
        [B, 2], divided by the columns' scale; see `item_columns`.
    """
    weights = np.zeros((len(histories), COLUMNS))
    asks = histories >= 0
    weights[asks, 0] = np.maximum(prior.now + prior.length * np.log1p(histories[asks]), 0.0)
    weights[asks, 1] = -prior.past
    columns: Floats = (weights / scale(prior)).astype(np.float32)
    return columns


def item_columns(prior: PriorInfo, shares: Floats) -> Floats:
    """The extra columns of item vectors: their log shares [R, 2] times the usual weight.

    A quantised index spends its bits where the numbers are large. So the columns hold what they usually add to a score,
    as the others do, and a query holds about 1. A column without a weight is zero: log shares are greater than the
    numbers of a cosine, and an index would spend its bits, and cut its leaves, on what no query asks for.
    """
    columns: Floats = (shares * np.where(asked(prior), scale(prior), 0.0)).astype(np.float32)
    return columns


def scale(prior: PriorInfo) -> NDArray[np.float64]:
    """[2] the weights of a query with a history of twenty items; 1 where not positive."""
    usual = np.array([prior.now + prior.length * math.log1p(20), prior.past])
    return np.where(usual > 0, usual, 1.0)


def recall_vectors(item_vectors: Floats, shares: Floats, prior: PriorInfo) -> Floats:
    """The vectors [..., D + 2] that recall searches, of items with vectors [..., D] and log shares [..., 2]."""
    joined: Floats = np.concatenate([item_vectors, item_columns(prior, shares)], axis=-1, dtype=np.float32)
    return joined
