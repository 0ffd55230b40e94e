"""Which popularity is in fashion: each way to count, judged by its lists for held-out users.

In: a data set, held-out users, a metric. Out: what each `Counting` reaches. The prior of a model and the
baselines choose by this file, each on its own users and metric.
"""

from collections.abc import Callable

from pipelines.dataset import Dataset
from pipelines.evaluation.blocks import per_user
from pipelines.evaluation.fits import Fitted, ranker_of
from pipelines.heldout import HeldOut
from pipelines.popularity import Counting, countings, has_windows
from pipelines.progress import Advance


def counting_values(
    data: Dataset,
    held: HeldOut,
    metric: str,
    k: int,
    popular: Callable[[Counting], Fitted],
    *,
    advance: Advance = lambda _: None,
) -> dict[Counting, float]:
    """The mean of a metric over held-out users, for every way to count that the data set allows.

    Args:
        data: the data set.
        held: the users, at least one.
        metric: as in `per_user`.
        k: length of the lists.
        popular: the popular items by a count, of the events that are known before.
        advance: is told of each way to count.

    Raises:
        ValueError: another metric.
    """
    values = {}
    for counting in countings(windows=has_windows(data)):
        values[counting] = float(per_user(ranker_of(popular(counting), k), held, metric, k).mean())
        advance(1)
    return values
