"""The prior of a recipe on a data set: which popularity is in fashion, its log shares, and what a run keeps of it.

In: a data set, held-out users. Out: a `Counting`, `Shares`, a `PriorConfig`. The counting is the one whose most popular
items validate best by themselves; the same list answers a query of which nothing is known. On MovieLens-100k at five
cut-offs that chose better than the likelihood of the whole model did (recall@20 0.178 and 0.172).
"""

from collections.abc import Sequence

from pipelines.dataset import Dataset
from pipelines.evaluation.countings import counting_values
from pipelines.evaluation.popular import Popular, by_popularity
from pipelines.heldout import HeldOut
from pipelines.popularity import Counting, Doubles, has_windows, item_counts
from towers.config import Config, PriorConfig
from towers.model import TwoTower
from towers.prior import Shares, log_share, prior_of

DECIMALS = 6  # of a weight, and of a norm exponent


def has_prior(config: Config, data: Dataset) -> bool:
    """Whether a training has a prior: the recipe asks for one, and the events have times that the split respects."""
    return config.model.prior != "off" and has_windows(data)


def choose_counting(config: Config, data: Dataset, held: HeldOut, splits: Sequence[str]) -> Counting:
    """The recipe's counting, or with 'validation' the one whose most popular items do best on held-out users.

    Args:
        config: a recipe with a prior.
        data: the data set.
        held: the users.
        splits: the events known before.
    """
    given = config.model.prior
    if isinstance(given, PriorConfig):
        return Counting(given.days, given.users_alike)
    name, _, depth = config.train.metric.partition("@")

    def popular(counting: Counting) -> Popular:
        return Popular(by_popularity(counts_of(data, splits, counting)))

    values = counting_values(data, held, name, int(depth), popular)
    return max(values, key=values.__getitem__)


def counts_of(data: Dataset, splits: Sequence[str], counting: Counting) -> Doubles:
    """Counts of the items in the events of some splits, [N]; the window ends with the last of them."""
    parts = [data.events(split) for split in splits]
    return item_counts(parts, data.manifest.items, counting, time_unit=data.manifest.time_unit)


def shares_of(data: Dataset, known: Sequence[str], trained: Sequence[str], counting: Counting) -> Shares:
    """Log shares of the items: now in the events of the known splits, past in those that trained."""
    return Shares(
        log_share(counts_of(data, known, counting)),
        log_share(counts_of(data, trained, Counting())),
    )


def prior_config(model: TwoTower, counting: Counting) -> PriorConfig:
    """A trained model's prior as a recipe gives it."""
    prior = prior_of(model)
    now, past, length = (0.0, 0.0, 0.0) if prior is None else (prior.now, prior.past, prior.length)
    return PriorConfig(
        days=counting.days,
        users_alike=counting.users_alike,
        now=round(now, DECIMALS),
        past=round(past, DECIMALS),
        length=round(length, DECIMALS),
    )
