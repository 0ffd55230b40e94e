"""Computes the popularity prior of a recipe: which counting it uses, its log shares, and what a run stores.

The chosen counting is the one whose most popular items score best on validation by themselves; the same list answers
a query about which nothing is known. Where counting events is not proven better than counting users alike in the same
window, users count alike: a metric is a mean over users, and of all lists the one by the mean over users of each
item's share expects the best. A random validation cannot always tell the two apart, and a later test can."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from pipelines.dataset.dataset import Dataset
from pipelines.dataset.heldout import HeldOut
from pipelines.dataset.popularity import Counting, Doubles, item_counts
from pipelines.rankers.fits import counting_values
from pipelines.rankers.popular import Popular, by_popularity
from towers.config.recipe import Config
from towers.config.sections import PriorConfig
from towers.evaluation.climb import beyond_chance
from towers.model.prior import Shares, log_share, prior_of
from towers.model.two_tower import TwoTower

DECIMALS = 6  # of a prior weight and of a norm exponent


def choose_counting(config: Config, data: Dataset, held: HeldOut, splits: Sequence[str]) -> Counting:
    """Returns the recipe's counting, or for 'validation' the one that does best on held-out users; see above.

    Args:
        config: a recipe with a prior.
        data: the data set.
        held: the held-out users.
        splits: the splits whose events are known before.
    """
    given = config.model.prior
    if isinstance(given, PriorConfig):
        return Counting(given.days, given.users_alike)
    name, _, depth = config.train.metric.partition("@")

    def popular(counting: Counting) -> Popular:
        return Popular(by_popularity(counts_of(data, splits, counting)))

    values = counting_values(data, held, name, int(depth), popular)
    best = max(values, key=lambda counting: float(values[counting].mean()))
    alike = replace(best, users_alike=True)
    return best if beyond_chance(values[best] - values[alike]) else alike


def counts_of(data: Dataset, splits: Sequence[str], counting: Counting) -> Doubles:
    """Counts each item in the events of some splits, [N]; the window ends at their last event."""
    parts = [data.events(split) for split in splits]
    return item_counts(parts, data.manifest.items, counting, time_unit=data.manifest.time_unit)


def shares_of(data: Dataset, known: Sequence[str], trained: Sequence[str], counting: Counting) -> Shares:
    """Returns the items' log shares: `now` from the known splits, `past` from the trained ones."""
    return Shares(
        log_share(counts_of(data, known, counting)),
        log_share(counts_of(data, trained, Counting())),
    )


def prior_config(model: TwoTower, counting: Counting) -> PriorConfig:
    """Returns a trained model's prior in the form of a recipe."""
    prior = prior_of(model)
    now, past, length = (0.0, 0.0, 0.0) if prior is None else (prior.now, prior.past, prior.length)
    return PriorConfig(
        days=counting.days,
        users_alike=counting.users_alike,
        now=round(now, DECIMALS),
        past=round(past, DECIMALS),
        length=round(length, DECIMALS),
    )


def kept_prior(config: Config, model: TwoTower, counting: Counting | None) -> dict[str, Any] | None:
    """Returns what an export needs of the prior, the counting and the weights; None without a prior.

    Args:
        config: the resolved recipe.
        model: the trained model.
        counting: what validation chose; None if it chose none.
    """
    if counting is not None:
        return prior_config(model, counting).model_dump()
    given = config.model.prior
    return given.model_dump() if isinstance(given, PriorConfig) else None


def chosen_on_validation(model: Mapping[str, Any], stages: Sequence[Mapping[str, Any]]) -> str:
    """Says which norm exponent and prior validation chose; empty if it chose neither, or nothing tells.

    Args:
        model: `[model]` of the recipe.
        stages: of the training, in order: the first one chose.
    """
    first = stages[0] if stages else {}
    exponent, prior = first.get("norm_exponent"), first.get("prior")
    found = []
    if model.get("norm_exponent") == "validation" and exponent is not None:
        found.append(f"norm_exponent {exponent:.4g}")
    if model.get("prior") == "validation" and prior is not None:
        weights = ", ".join(f"{name} {prior[name]:.4g}" for name in ("now", "past", "length"))
        found.append(f"prior by {Counting(prior['days'], prior['users_alike'])} ({weights})")
    return "; ".join(found)
