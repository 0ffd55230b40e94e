"""How alike two models are: the overlap of their lists, and the drift of their vectors.

Lists are ``[Q, k]`` item numbers, best first, padded with -1; both of a user's lists answer the same request.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import orthogonal_procrustes

from pipelines.rankers.evaluate import USERS, Lists

P = 0.9  # the persistence of rank-biased overlap: the first ten ranks have 86 % of the weight

Floats = NDArray[np.float64]
Vectors = NDArray[np.float32]
Numbers = NDArray[np.int64]


def list_agreement(one: Lists, other: Lists) -> tuple[Floats, Floats]:
    """Compares two lists of each user.

    Returns:
        [Q] the overlap: common items / length; [Q] the extrapolated rank-biased overlap with `P`. Both are 1 for equal
        lists and NaN where both are empty. The longer list's length counts, so a missing item is a difference; the
        window's rank-biased overlap (`serving.window.differences`) extrapolates the shorter list instead.
    """
    parts = [
        _block_agreement(one[start : start + USERS], other[start : start + USERS])
        for start in range(0, len(one), USERS)
    ]
    overlap, rbo = zip(*parts, strict=True)
    return np.concatenate(overlap), np.concatenate(rbo)


def _block_agreement(one: Lists, other: Lists) -> tuple[Floats, Floats]:
    users, k = one.shape
    # An item at ranks i and j is common to both lists from depth max(i, j) on. Memory grows with k, not with its
    # square: each item of each user is one key, and no item is twice in a list.
    (own, rank, keys), (_, other_rank, other_keys) = _keyed(one, other)
    _, place, other_place = np.intersect1d(keys, other_keys, assume_unique=True, return_indices=True)
    user, i, j = own[place], rank[place], other_rank[other_place]
    common = np.bincount(user * k + np.maximum(i, j), minlength=users * k).reshape(users, k).cumsum(axis=1)
    length = np.maximum((one >= 0).sum(axis=1), (other >= 0).sum(axis=1))
    depth = np.arange(1, k + 1)
    agreement = common / depth
    weights = np.where(depth <= length[:, None], P**depth, 0)
    last = np.where(length > 0, np.take_along_axis(agreement, np.maximum(length - 1, 0)[:, None], axis=1)[:, 0], np.nan)
    # Webber, Moffat & Zobel 2010, equation 30: beyond the last rank the agreement is taken to stay as it is there.
    return last, last * P**length + (1 - P) / P * (agreement * weights).sum(axis=1)


def _keyed(*lists: Lists) -> Iterator[tuple[Numbers, Numbers, Numbers]]:
    """Yields the user, the place and a key of each item of lists, without the padding."""
    items = 1 + max(int(each.max(initial=0)) for each in lists)
    for each in lists:
        user, rank = np.nonzero(each >= 0)
        yield user, rank, user * items + each[user, rank]


def drift(items: Vectors, other_items: Vectors, queries: Vectors, other_queries: Vectors) -> dict[str, Any]:
    """Measures how far vectors moved, apart from a rotation, which changes no score.

    The rotation that brings the items' unit vectors closest (orthogonal Procrustes; Schönemann 1966) is applied to
    items and queries alike. Where the dimensions differ, the shorter vectors are filled up with zeros.

    Args:
        items: [N, D] of one model.
        other_items: [N, E] of the other, of the same items.
        queries: [Q, D].
        other_queries: [Q, E] of the same users.

    Returns:
        ``items`` and ``queries``: the mean cosine of a vector with itself in the other model, None where there is none;
        ``cosines``: [N] of each item, NaN where a vector is zero.
    """
    width = max(items.shape[1], other_items.shape[1])
    moved, target, asked, goal = (_unit(vectors, width) for vectors in (items, other_items, queries, other_queries))
    rotation, _ = orthogonal_procrustes(moved, target)
    cosines = _cosines(moved @ rotation, target)
    return {"items": _mean(cosines), "queries": _mean(_cosines(asked @ rotation, goal)), "cosines": cosines}


def _unit(vectors: Vectors, width: int) -> Vectors:
    unit = np.zeros((len(vectors), width), np.float32)
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    np.divide(vectors, norms, out=unit[:, : vectors.shape[1]], where=norms > 0)
    return unit


def _cosines(one: Vectors, other: Vectors) -> Floats:
    known = one.any(axis=1) & other.any(axis=1)
    return np.where(known, np.einsum("nd,nd->n", one, other), np.nan)


def _mean(cosines: Floats) -> float | None:
    known = cosines[~np.isnan(cosines)]
    return float(known.mean()) if len(known) else None
