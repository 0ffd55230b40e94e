"""Computes the figures of what is recommended, over the lists of all users, with intervals.

Novelty, popularity and similarity are means, with the interval of every other mean. Coverage and Gini are of all lists
together: a resample holds some users twice and others not at all, so it covers less, and is less even, than as many
different users, and the percentiles of resamples leave out the figure itself. Its interval is therefore the normal one
around the figure, with the bootstrap's standard error.
Source: Efron & Tibshirani, An Introduction to the Bootstrap, 1993, chapters 6 (so few resamples do) and 13.
"""

from itertools import pairwise
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from pipelines.console import Advance
from pipelines.rankers.bootstrap import LEVEL, Bootstrap, Estimate, resampled
from pipelines.rankers.evaluate import ALIKE, PLACES, SIMILARITY, Evaluation, column
from towers.evaluation import metrics

RESAMPLES = 100
INTERVAL = f"{LEVEL:.0%} normal, by the standard error of {RESAMPLES} of these resamples"
NOVELTY, POPULARITY = "novelty", "popularity"
# Key in `report.json` -> name of the figure.
OF_LISTS = {
    "coverage": "coverage",
    "gini": "gini",
    "novelty": NOVELTY,
    "mean_popularity": POPULARITY,
    "similarity": SIMILARITY,
}
# Name of a figure that is a mean -> the column that counts what it is a mean of.
COUNTS = {NOVELTY: PLACES, POPULARITY: PLACES, SIMILARITY: ALIKE}


def numbers(popularity: NDArray[np.int64], users: int) -> dict[str, NDArray[np.float64]]:
    """Returns the numbers of each item, [N], whose means over recommended items are figures: for `evaluate`.

    Args:
        popularity: [N] each item's events before the test.
        users: number of users of these events.
    """
    return {NOVELTY: metrics.self_information(popularity, users), POPULARITY: popularity.astype(np.float64)}


def list_figures(evaluation: Evaluation, drawn: Bootstrap, advance: Advance = lambda _: None) -> dict[str, Any]:
    """Returns ``coverage``, ``gini``, ``novelty``, ``mean_popularity``, ``similarity``: estimates of each ranker and k.

    Args:
        evaluation: of all users, with `numbers`; a mean of nothing is None.
        drawn: its `of_all`.
        advance: of `pipelines.console.progress`, in resamples: `RESAMPLES` for each ranker.
    """
    content: dict[str, Any] = {key: {ranker: {} for ranker in evaluation.rankers} for key in OF_LISTS}
    for ranker in evaluation.rankers:
        for k, estimates in zip(evaluation.ks, _of_catalogue(evaluation, ranker, advance), strict=True):
            estimates |= {
                name: drawn.mean(column(ranker, name, k), column(ranker, count, k)) for name, count in COUNTS.items()
            }
            for key, name in OF_LISTS.items():
                content[key][ranker][f"{name}@{k}"] = estimates[name]
    return content


def _of_catalogue(evaluation: Evaluation, ranker: str, advance: Advance) -> list[dict[str, Estimate | None]]:
    """Coverage and Gini at each k."""
    lists, items, ks = evaluation.lists[ranker], evaluation.items, evaluation.ks
    replicates = np.empty((RESAMPLES, len(ks), 2))
    # No item has more places than there are users; short numbers make the product several times as fast.
    kind = np.min_scalar_type(len(lists))
    # Each part holds the places between one k and the next: counts at a k are those before, and the part's own.
    parts = [_incidence(lists[:, low:high], items, kind) for low, high in pairwise([0, *ks])]
    for rows, drawn in resampled(len(lists), RESAMPLES, width=items):
        weights = np.ascontiguousarray(drawn.T, dtype=kind)
        counts = np.zeros((items, weights.shape[1]), kind)
        for place, part in enumerate(parts):
            counts += part.T @ weights
            by_resample = np.ascontiguousarray(counts.T)
            replicates[rows, place] = [(metrics.coverage(each), metrics.gini(each)) for each in by_resample]
        advance(len(drawn))
    spread = NormalDist().inv_cdf(0.5 + LEVEL / 2) * replicates.std(axis=0, ddof=1)
    shown = [evaluation.exposure(ranker, k) for k in ks]
    return [
        {"coverage": _around(metrics.coverage(each), half[0]), "gini": _around(metrics.gini(each), half[1])}
        for each, half in zip(shown, spread, strict=True)
    ]


def _incidence(lists: NDArray[np.int32], items: int, kind: np.dtype[Any]) -> csr_array:
    """1 for each item that a list holds, [Q, N]."""
    held = lists >= 0
    ends = np.concatenate([[0], np.cumsum(held.sum(axis=1))])
    return csr_array((np.ones(ends[-1], kind), lists[held], ends), shape=(len(lists), items))


def _around(value: float, half: float) -> Estimate:
    """The interval around a figure from 0 to 1."""
    return {"value": value, "low": max(value - float(half), 0.0), "high": min(value + float(half), 1.0)}
