"""Chooses the baselines' settings: fits on the training events, evaluates on the validation events.

The `Choice` depends only on the data set and is kept in its cache. Test events are never read.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, TypeVar

import numpy as np
from pydantic import TypeAdapter, ValidationError

from pipelines.console import progress, say
from pipelines.dataset.dataset import Dataset
from pipelines.dataset.heldout import HeldOut, heldout, heldout_users
from pipelines.dataset.popularity import PLAIN, Counting, countings, has_windows
from pipelines.rankers import ease
from pipelines.rankers import item_knn as knn
from pipelines.rankers.cache import Cache
from pipelines.rankers.ease import EaseSettings
from pipelines.rankers.evaluate import per_user
from pipelines.rankers.fits import Fits, KnnSettings, Settings, counting_values, ranker_of
from pipelines.rankers.ordered_knn import MOST_PAIRS, OrderedKnn, windows
from pipelines.rankers.ranker import EASE, EASE_RECENT, KNN, ORDERED, POPULARITY, RECENT, USERS_ALIKE

PHASE = "choice of baselines"
METRIC, K = "recall", 20
CHOSEN_BY = f"{METRIC}@{K}"
USERS, SEED = 2_000, 0  # of the validation sample
FITTED_ON = ("train",)
VERSION = 7  # of the search: a new version makes every data set be searched again
# Used without validation events; the strongest is then the first name below that was not left out.
DEFAULT_DAYS = 60
DEFAULT_ORDER = (EASE, KNN, ORDERED, RECENT, POPULARITY)

# The values of each item-kNN setting, in order. The search starts at the defaults and moves one setting at a time, as
# long as the result improves. Only shrinkage and days need a new count of co-occurrence.
KNN_NEIGHBOURS = (20, 50, 100, 200, 500)
KNN_LADDERS: Mapping[str, Sequence[Any]] = {
    "shrinkage": (0.0, 10.0, 30.0, 100.0, 300.0, 1_000.0),
    "neighbours": KNN_NEIGHBOURS,
    "half_life": (None, 20, 5, 2),
    "days": (None, 90, 30),
}
ORDERED_LADDERS: Mapping[str, Sequence[Any]] = {
    "backward": (0.0, 0.25, 0.5, 1.0),
    "shrinkage": (3.0, 10.0, 30.0, 100.0, 300.0),
    "half_life": (0.5, 1.0, 2.0, 5.0),
}
EASE_LADDER = (10.0, 30.0, 100.0, 300.0, 1_000.0, 3_000.0)
RECENT_LADDER, RECENT_START = (0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0), 0.1  # weights of popularity in EASE's scores
# Neighbours of all items in total, so that the search holds at most 400 MB per count.
MOST_NEIGHBOURS = 50_000_000

Climbed = TypeVar("Climbed", KnnSettings, OrderedKnn, EaseSettings)


@dataclass(frozen=True)
class Choice:
    """The chosen settings.

    Attributes:
        recent: how recent popularity counts; None if left out, as for the next four.
        item_knn: settings of item-kNN.
        ordered: settings of item-kNN in order.
        ease: settings of EASE.
        ease_recent: settings of EASE with recent popularity.
        validation: ranker -> its validation score; empty without validation events.
        users: size of the validation sample.
        left_out: ranker -> why it is left out.
        fixed: ranker -> why its settings are fixed although there are validation events.
    """

    recent: Counting | None
    item_knn: KnnSettings | None
    ordered: OrderedKnn | None
    ease: EaseSettings | None
    ease_recent: EaseSettings | None
    validation: dict[str, float]
    users: int
    left_out: dict[str, str]
    fixed: dict[str, str] = field(default_factory=dict)

    @property
    def strongest(self) -> str:
        """The ranker with the best validation score."""
        if self.validation:
            return max(self.validation, key=self.validation.__getitem__)
        return next(name for name in DEFAULT_ORDER if name not in self.left_out)

    @property
    def popular(self) -> Counting:
        """The popularity with the best validation score."""
        ways = {POPULARITY: PLAIN, USERS_ALIKE: Counting(users_alike=True), RECENT: self.recent or PLAIN}
        return ways[max(ways, key=lambda name: self.validation.get(name, 0.0))]

    @property
    def chosen_on(self) -> str:
        """What the strongest was chosen on."""
        if self.validation:
            return f"validation {CHOSEN_BY}"
        return "nothing: the data set has no validation events, so fixed settings are taken"


CHOICE = TypeAdapter(Choice)


def choose(data: Dataset) -> Choice:
    """Returns the settings of every baseline the data allow, from the data set's cache or by a search that fills it."""
    limits = f"{knn.MAX_ITEMS} {knn.MAX_PAIRS} {knn.MAX_SEARCH_PAIRS} {MOST_PAIRS} {ease.MAX_ITEMS}"
    kept_in, key = Cache.beside(data.path), f"{VERSION} {data.manifest.fingerprint} {limits}"
    kept = kept_in.read("choice", key)
    with suppress(KeyError, ValidationError):
        if kept is not None:
            choice = CHOICE.validate_json(str(kept["choice"]))
            say(f"{PHASE}: kept from an earlier command")
            return choice
    chosen = _search(data)
    kept_in.write("choice", key, {"choice": np.asarray(CHOICE.dump_json(chosen).decode())})
    return chosen


def _search(data: Dataset) -> Choice:
    lengths = [length for length in KNN_NEIGHBOURS if length * data.manifest.items <= MOST_NEIGHBOURS]
    fits, held = Fits(data, FITTED_ON, neighbours=max(lengths, default=0)), sample(data)
    left_out = _left_out(fits, data)
    near = windows(int(fits.user_events.sum()))
    ordered_ladders: dict[str, Sequence[Any]] = {"window": near, **ORDERED_LADDERS}
    ordered_start = OrderedKnn(window=max((each for each in near if each <= OrderedKnn.window), default=0))
    fixed: dict[str, str] = {}
    if not len(held.users):
        say(f"{PHASE}: fixed settings, for want of validation events")
        days = Counting(DEFAULT_DAYS)
        return Choice(
            recent=None if RECENT in left_out else days,
            item_knn=None if KNN in left_out else KnnSettings(),
            ordered=None if ORDERED in left_out else ordered_start,
            ease=None if EASE in left_out else EaseSettings(),
            ease_recent=None if EASE_RECENT in left_out else EaseSettings(fallback=days, popularity=RECENT_START),
            validation={},
            users=0,
            left_out=left_out,
        )
    ladders: dict[str, Sequence[Any]] = {**KNN_LADDERS, "neighbours": lengths}
    if RECENT in left_out:
        del ladders["days"]
    reason = None if KNN in left_out else knn.too_large_to_search(fits.user_events)
    most = len(countings(windows=has_windows(data)))
    if KNN not in left_out:
        most += 1 if reason else 1 + most_values(KnnSettings(), ladders)  # and one more fallback
    if ORDERED not in left_out:
        most += most_values(ordered_start, ordered_ladders)
    if EASE not in left_out:
        most += most_values(EaseSettings(), {"penalty": EASE_LADDER})
    if EASE_RECENT not in left_out:
        most += most_values(EaseSettings(popularity=RECENT_START), {"popularity": RECENT_LADDER})
    with progress(PHASE, total=most, unit="settings") as advance:

        def judged(settings: Settings) -> float:
            nonlocal most
            most -= 1
            advance(most >= 0)  # later passes, of which nobody knows how many, do not move the bar
            return float(per_user(ranker_of(fits.of(settings), K), held, METRIC, K).mean())

        values = counting_values(data, held, METRIC, K, fits.of, advance=advance)
        most -= len(values)
        popular = {counting: float(figures.mean()) for counting, figures in values.items()}
        best = max(popular, key=popular.__getitem__)
        validation = {POPULARITY: popular[Counting()], USERS_ALIKE: popular[Counting(users_alike=True)]}
        recent, item_knn, ordered, ease_settings, ease_recent = None, None, None, None, None
        if RECENT not in left_out:
            recent = max((each for each in popular if each.days), key=popular.__getitem__)
            validation[RECENT] = popular[recent]
        if KNN not in left_out and reason:
            item_knn, fixed[KNN] = KnnSettings(fallback=best), reason
            validation[KNN] = judged(item_knn)
        elif KNN not in left_out:
            fallbacks = {"fallback": tuple(dict.fromkeys((Counting(), best)))}
            item_knn, validation[KNN] = climb(KnnSettings(fallback=best), fallbacks | ladders, judged)
        if ORDERED not in left_out:
            ordered, validation[ORDERED] = climb(replace(ordered_start, fallback=best), ordered_ladders, judged)
        if EASE not in left_out:
            start = EaseSettings(fallback=best)
            ease_settings, validation[EASE] = climb(start, {"penalty": EASE_LADDER}, judged)
        if ease_settings is not None and recent is not None:
            start = replace(ease_settings, fallback=recent, popularity=RECENT_START)
            ease_recent, validation[EASE_RECENT] = climb(start, {"popularity": RECENT_LADDER}, judged)
    users = len(held.users)
    return Choice(recent, item_knn, ordered, ease_settings, ease_recent, validation, users, left_out, fixed)


def sample(data: Dataset, *, repeats: bool = False) -> HeldOut:
    """Returns the validation events of at most `USERS` users."""
    users = heldout_users(data, "valid", repeats=repeats)
    if len(users) > USERS:
        users = np.sort(np.random.default_rng(SEED).choice(users, USERS, replace=False))
    return heldout(data, "valid", users, repeats=repeats)


def _left_out(fits: Fits, data: Dataset) -> dict[str, str]:
    """Returns ranker -> why the data do not allow it."""
    items, events = data.manifest.items, int(fits.user_events.sum())
    timeless = "left out: no times in a unit that the split respects, so there are no windows"
    crowded = None if windows(events) else f"left out: {events:,} pairs of events in a row, more than {MOST_PAIRS:,}"
    reasons = {
        RECENT: None if has_windows(data) else timeless,
        KNN: knn.too_large(fits.user_events, items),
        ORDERED: crowded if data.manifest.timed else "left out: the events have no order that the split respects",
        EASE: f"left out: {items:,} items, more than {ease.MAX_ITEMS:,}" if items > ease.MAX_ITEMS else None,
    }
    reasons[EASE_RECENT] = reasons[EASE] or reasons[RECENT]
    return {name: reason for name, reason in reasons.items() if reason is not None}


def most_values(start: Climbed, ladders: Mapping[str, Sequence[Any]]) -> int:
    """The most of one pass of `climb`: the start's, and each ladder up to its end, or one up and all down."""
    most = 1
    for name, values in ladders.items():
        below = values.index(getattr(start, name))
        above = len(values) - 1 - below
        most += max(above, min(above, 1) + below)
    return most


def climb(
    start: Climbed, ladders: Mapping[str, Sequence[Any]], value: Callable[[Climbed], float]
) -> tuple[Climbed, float]:
    """Coordinate search: moves one setting at a time up or down its ladder as long as the value improves.

    Starts at settings that are on their ladders, values in order; asks for no value twice. Returns the best settings,
    beside which no step of a single one is better, and their value.
    """
    known = cache(value)
    best, begin = start, None
    while best != begin:
        begin = best
        for name, values in ladders.items():
            first = values.index(getattr(best, name))
            for step in (1, -1):
                place = first + step
                while 0 <= place < len(values):
                    tried = replace(best, **{name: values[place]})
                    if known(best) >= known(tried):
                        break
                    best, place = tried, place + step
                if getattr(best, name) != values[first]:
                    break
    return best, known(best)
