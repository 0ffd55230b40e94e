"""Fits the baselines a model must beat, and states whether it beats the strongest, in one sentence.

Popularity, item-kNN, with and without order, and EASE, with and without recent popularity, have settings chosen on
validation. The verdict has the paired interval of the difference.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipelines.dataset.dataset import Dataset
from pipelines.dataset.heldout import heldout
from pipelines.dataset.popularity import Counting
from pipelines.rankers.bootstrap import FEWEST, Estimate, bootstrap, opposite, texts
from pipelines.rankers.cache import Cache
from pipelines.rankers.choice import CHOSEN_BY, FITTED_ON, METRIC, Choice, K, choose, sample
from pipelines.rankers.evaluate import Ranker, per_user
from pipelines.rankers.fits import Fits, Settings, ranker_of
from pipelines.rankers.popular import FavouriteSettings
from pipelines.rankers.ranker import (
    EASE,
    EASE_RECENT,
    EXACT,
    FAVOURITES,
    KNN,
    ORDERED,
    POPULARITY,
    RECENT,
    USERS_ALIKE,
)
from towers.data.events import Int32s

STRONGEST, FIXED = "strongest baseline", "baseline fixed without validation"
BETTER, MAYBE_BETTER, MAYBE_WORSE, WORSE = "proven better", "not proven better", "not proven worse", "worse"


@dataclass(frozen=True)
class Baselines:
    """The fitted baselines of a data set.

    Attributes:
        choice: their chosen settings.
        rankers: name -> ranker.
        settings: name -> its settings; `str` gives the display name.
    """

    choice: Choice
    rankers: dict[str, Ranker]
    settings: dict[str, Settings]

    def content(self) -> dict[str, Any]:
        """The `baselines` section of `report.json`."""
        return {
            name: {
                "title": str(self.settings[name]),
                "settings": asdict(self.settings[name]),
                "validation": {CHOSEN_BY: self.choice.validation[name]} if name in self.choice.validation else {},
            }
            for name in self.rankers
        } | {
            "left_out": self.choice.left_out,
            "fixed": self.choice.fixed,
            "validation_users": self.choice.users,
        }


def baselines_of(data: Dataset, splits: Sequence[str], k: int, *, repeats: bool = False) -> Baselines:
    """Fits every baseline that the data allow; settings and matrices are cached beside the data set.

    Args:
        data: the data set.
        splits: the splits they are fitted on, in time order.
        k: length of the lists.
        repeats: items that a user took before may be in the lists: one more baseline knows them, and the strongest is
            chosen by such lists. The settings of the others are as without.
    """
    choice, fits = choose(data), Fits(data, splits, cache=Cache.beside(data.path))
    wanted = {
        POPULARITY: Counting(),
        USERS_ALIKE: Counting(users_alike=True),
        RECENT: choice.recent,
        KNN: choice.item_knn,
        ORDERED: choice.ordered,
        EASE: choice.ease,
        EASE_RECENT: choice.ease_recent,
        FAVOURITES: FavouriteSettings(choice.popular) if repeats else None,
    }
    settings = {name: each for name, each in wanted.items() if each is not None}
    if repeats:
        choice = _judged_again(data, choice, settings)
    return Baselines(choice, {name: ranker_of(fits.of(each), k) for name, each in settings.items()}, settings)


def _judged_again(data: Dataset, choice: Choice, settings: Mapping[str, Settings]) -> Choice:
    """Returns the choice with the validation scores of these settings where repeats count."""
    held, fits = sample(data, repeats=True), Fits(data, FITTED_ON, cache=Cache.beside(data.path))
    if not len(held.users):
        return choice
    scores = {name: per_user(ranker_of(fits.of(each), K), held, METRIC, K) for name, each in settings.items()}
    validation = {name: float(each.mean()) for name, each in scores.items()}
    return replace(choice, validation=validation, users=len(held.users))


@dataclass(frozen=True)
class Verdict:
    """The model compared with the strongest baseline.

    Attributes:
        metric: for example ``"recall@20"``.
        value: the model's value.
        baseline: name of the strongest baseline.
        baseline_title: its display name.
        baseline_value: its value.
        difference: the model minus the baseline, paired by user.
        users: by how many users they are judged, or items of a similarity report.
        kind: what the baseline is: the strongest on what chose it, not on what the figures are of.
        higher: the highest baseline by these figures, if that is another one: ``baseline``, ``title``, ``value`` and
            ``difference``.
    """

    metric: str
    value: float
    baseline: str
    baseline_title: str
    baseline_value: float
    difference: Estimate
    users: int
    kind: str = STRONGEST
    higher: Mapping[str, Any] | None = None

    @property
    def below(self) -> bool:
        """Whether the model is below the baseline."""
        return self.difference["value"] < 0

    @property
    def conclusion(self) -> str:
        """Whether the interval lies above 0, below 0, or contains 0; of few users none proves a difference."""
        if self.users >= FEWEST and self.difference["low"] > 0:
            return BETTER
        if self.users >= FEWEST and self.difference["high"] < 0:
            return WORSE
        return MAYBE_WORSE if self.below else MAYBE_BETTER

    @property
    def text(self) -> str:
        """One readable line; a negative difference is given as how far the model is below."""
        value, low, high = texts(opposite(self.difference) if self.below else self.difference)
        side = "below" if self.below else "above"
        few = f" (only {self.users} to judge by)" if self.users < FEWEST else ""
        return (
            f"{self.metric} {self.value:.4f}: {side} the {self.kind} ({self.baseline_title}: "
            f"{self.baseline_value:.4f}) by {value} ({low} to {high}): {self.conclusion}{few}{self._other}"
        )

    @property
    def _other(self) -> str:
        if self.higher is None:
            return ""
        value, low, high = texts(self.higher["difference"], "+")
        named = f"{self.higher['title']} ({self.higher['value']:.4f})"
        return f"; higher here is {named}, the model minus it {value} ({low} to {high})"

    def content(self) -> dict[str, Any]:
        """The `verdict` section of `report.json`."""
        return asdict(self) | {"conclusion": self.conclusion, "text": self.text}


def report_verdict(
    figures: Mapping[str, Any], metric: str, strongest: str, titles: Mapping[str, str], kind: str, users: int
) -> Verdict:
    """Builds the verdict of a report.

    Args:
        figures: the report's `metrics` and `differences`.
        metric: for example ``"recall@20"``.
        strongest: name of the baseline that the model is compared with.
        titles: name -> display name, of every baseline.
        kind: see `Verdict`.
        users: see `Verdict`.
    """
    values = {ranker: figures["metrics"][ranker][metric]["value"] for ranker in (EXACT, *titles)}
    differences = {ranker: figures["differences"][f"{EXACT}_minus_{ranker}"][metric] for ranker in titles}
    highest = max(titles, key=values.__getitem__)
    higher = None
    if values[highest] > values[strongest]:
        higher = {
            "baseline": highest,
            "title": titles[highest],
            "value": values[highest],
            "difference": differences[highest],
        }
    title, other = titles[strongest], values[strongest]
    return Verdict(metric, values[EXACT], strongest, title, other, differences[strongest], users, kind, higher)


def validation_verdict(data: Dataset, users: Int32s, model_values: NDArray[np.floating[Any]], metric: str) -> str:
    """Compares the model with the strongest baseline on validation, in a sentence for the end of a training.

    The baselines are fitted on the training events, but their settings and the strongest of them are chosen on these
    same validation events, so the comparison favours the baseline slightly.

    Args:
        data: the data set.
        users: numbers of the users evaluated.
        model_values: [Q] the model's value for each, in the order of ``heldout(data, "valid", users)``.
        metric: ``recall@k``, ``ndcg@k``, ``precision@k``, ``hit_rate@k`` or ``mrr@k``.
    """
    name, _, depth = metric.partition("@")
    held = heldout(data, "valid", users)
    baselines = baselines_of(data, ("train",), int(depth))
    values = {EXACT: np.asarray(model_values, np.float64)} | {
        ranker: per_user(rank, held, name, int(depth)) for ranker, rank in baselines.rankers.items()
    }
    strongest = max(baselines.rankers, key=lambda ranker: values[ranker].mean())
    drawn = bootstrap(np.stack([values[EXACT], values[strongest]], axis=1), (EXACT, strongest))
    value, other, title = (
        float(values[EXACT].mean()),
        float(values[strongest].mean()),
        str(baselines.settings[strongest]),
    )
    return Verdict(metric, value, strongest, title, other, drawn.difference(EXACT, strongest), len(held.users)).text
