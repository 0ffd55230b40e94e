"""Computes a report's figures from an evaluation: means with intervals, paired differences, slices, new items.

Returns plain dictionaries for `report.json`; an estimate is ``{"value", "low", "high"}``.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipelines.rankers.bootstrap import Bootstrap, bootstrap
from pipelines.rankers.evaluate import NEW, Evaluation, column
from pipelines.rankers.ranker import BEST, EXACT
from towers.evaluation import metrics

Figures = dict[str, Any]


def figures(evaluation: Evaluation) -> Figures:
    """Returns each ranker's ``metrics``, exact search's ``differences`` to the others, and ``share_of_attainable``."""
    drawn = _bootstrap(evaluation, np.arange(len(evaluation.values)))
    content: Figures = {
        "metrics": {ranker: _estimates(drawn, evaluation, ranker) for ranker in evaluation.rankers},
        "differences": {
            f"{EXACT}_minus_{other}": {
                f"{metric}@{k}": drawn.difference(column(EXACT, metric, k), column(other, metric, k))
                for metric in metrics.METRICS
                for k in evaluation.ks
            }
            for other in evaluation.rankers
            if other not in (EXACT, BEST)
        },
    }
    if BEST in evaluation.rankers:
        content["share_of_attainable"] = {
            f"recall@{k}": drawn.ratio(column(EXACT, "recall", k), column(BEST, "recall", k)) for k in evaluation.ks
        }
    return content


def slice_figures(evaluation: Evaluation, chosen: NDArray[np.bool_], targets: NDArray[np.int64]) -> Figures:
    """Computes the same metrics over some of the users.

    Args:
        evaluation: of all users.
        chosen: [Q] which users.
        targets: [Q] each user's number of targets.
    """
    content: Figures = {"users": int(chosen.sum()), "targets": int(targets[chosen].sum()), "metrics": {}}
    if chosen.any():
        drawn = _bootstrap(evaluation, np.flatnonzero(chosen))
        content["metrics"] = {ranker: _estimates(drawn, evaluation, ranker) for ranker in evaluation.rankers}
    return content


def new_item_figures(evaluation: Evaluation, new_targets: NDArray[np.int64], targets: int) -> Figures:
    """Computes recall on the targets without a training event, over the users who have any.

    Args:
        evaluation: of all users.
        new_targets: [Q] each user's number of such targets.
        targets: number of all targets.
    """
    users = np.flatnonzero(new_targets)
    count = int(new_targets.sum())
    content: Figures = {"users": len(users), "targets": count, "share_of_targets": count / targets, "metrics": {}}
    if len(users):
        drawn = _bootstrap(evaluation, users)
        content["metrics"] = {
            ranker: {f"recall@{k}": drawn.estimate(column(ranker, NEW, k)) for k in evaluation.ks}
            for ranker in evaluation.rankers
        }
    return content


def exposure_figures(evaluation: Evaluation, popularity: NDArray[np.int64]) -> Figures:
    """``coverage``, the share of the catalogue recommended to anyone, and ``mean_popularity`` of the recommendations.

    Args:
        evaluation: of all users.
        popularity: [N] each item's events before the test.
    """
    return {
        "coverage": {
            ranker: {f"coverage@{k}": metrics.coverage(shown) for k, shown in by_k.items()}
            for ranker, by_k in evaluation.exposure.items()
        },
        "mean_popularity": {
            ranker: {f"popularity@{k}": metrics.mean_popularity(shown, popularity) for k, shown in by_k.items()}
            for ranker, by_k in evaluation.exposure.items()
        },
    }


def _bootstrap(evaluation: Evaluation, users: NDArray[np.intp]) -> Bootstrap:
    # Recall on new items is NaN for users without such targets. Those columns are read only where every user has one;
    # elsewhere 0 makes them harmless.
    values = evaluation.values[users].astype(np.float64)
    return bootstrap(np.nan_to_num(values, copy=False, nan=0.0), evaluation.columns)


def _estimates(drawn: Bootstrap, evaluation: Evaluation, ranker: str) -> Figures:
    return {
        f"{metric}@{k}": drawn.estimate(column(ranker, metric, k)) for metric in metrics.METRICS for k in evaluation.ks
    }
