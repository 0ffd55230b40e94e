"""Evaluates each way to count popularity by its lists for held-out users.

The prior of a model and the baselines choose by this file, each with its own users and metric.
"""

from collections.abc import Callable

from pipelines.console import Advance
from pipelines.dataset.dataset import Dataset
from pipelines.dataset.heldout import HeldOut
from pipelines.dataset.popularity import Counting, countings, has_windows
from pipelines.rankers.evaluate import per_user
from pipelines.rankers.fits import Fitted, ranker_of


def counting_values(
    data: Dataset,
    held: HeldOut,
    metric: str,
    k: int,
    popular: Callable[[Counting], Fitted],
    *,
    advance: Advance = lambda _: None,
) -> dict[Counting, float]:
    """Returns the mean of a metric over held-out users for every counting that the data set allows.

    Args:
        data: the data set.
        held: at least one held-out user.
        metric: as in `per_user`.
        k: length of the lists.
        popular: fits the most popular items by a counting, on the events known before.
        advance: called after each counting.

    Raises:
        ValueError: another metric.
    """
    values = {}
    for counting in countings(windows=has_windows(data)):
        values[counting] = float(per_user(ranker_of(popular(counting), k), held, metric, k).mean())
        advance(1)
    return values
