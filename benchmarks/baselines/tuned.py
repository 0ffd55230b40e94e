"""Chooses the settings of each baseline on the validation sample, and measures it on the test.

In: a task, a store of what is finished. Out: for each baseline its settings, its figure on validation, and those on the
test.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import islice
from typing import Any, TypeVar

import numpy as np
import scipy.sparse as sp

from benchmarks.baselines.gf_cf import RANK, GraphFilter
from benchmarks.baselines.ials import Ials, Vectors
from benchmarks.baselines.task import Task
from benchmarks.harness.resumable import Store
from pipelines.dataset.heldout import HeldOut, seen
from pipelines.dataset.popularity import Counting
from pipelines.rankers import choice
from pipelines.rankers.choice import EASE_LADDER, ORDERED_LADDERS, choose
from pipelines.rankers.ease import BLOCK, PENALTY, Ease, ease_weights, highest
from pipelines.rankers.evaluate import Lists, Ranker
from pipelines.rankers.fits import Fits, Settings, ranker_of
from pipelines.rankers.item_knn import history
from pipelines.rankers.ordered_knn import WINDOWS, OrderedKnn
from pipelines.rankers.popular import by_popularity
from pipelines.rankers.ranker import EASE, KNN, KNOWN, ORDERED, POPULARITY
from serving.search.exact import ExactIndex

IALS, GF_CF = "ials", "gf_cf"
TRAIN = KNOWN[:1]
EASE_ITEMS = 13_000  # a fit takes a minute; the product's own bound is lower
LADDERS: Mapping[str, Sequence[float]] = {
    "a0": (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0),
    "reg": (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3),
}
START = Ials(a0=0.03, reg=0.003)
MOST_SWEEPS, PATIENCE = 16, 2  # sweeps of a setting, and those without a better figure on validation that end it
WEIGHTS = (0.0, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)  # of the low-pass filter of GF-CF; 0.3 was published for Gowalla
LONGEST = 64  # sweeps of the best setting, where it still rises
Result = dict[str, Any]
Run = Callable[[Mapping[str, Any], Callable[[], Result]], Result]


@dataclass(frozen=True)
class Penalty:
    """The setting of EASE."""

    penalty: float


Climbed = TypeVar("Climbed", Ials, OrderedKnn, Penalty)


def baselines(task: Task, store: Store, only: str | None = None) -> dict[str, Result]:
    """The baselines that the data allow, or one of them, by name: `settings`, `validation`, `test`; the store keeps
    them."""
    base = {"data": task.data.manifest.fingerprint, "figures": list(task.figures), "refit": task.refit}
    made = {POPULARITY: popularity, KNN: item_knn, EASE: ease, GF_CF: gf_cf, IALS: ials}
    if task.data.manifest.items > EASE_ITEMS:
        del made[EASE]
    if task.data.manifest.timed:
        made[ORDERED] = ordered_knn

    def run(baseline: str, settings: Mapping[str, Any], function: Callable[[], Result]) -> Result:
        return store.run({**base, "baseline": baseline, **settings}, function)

    if only is not None and only not in made:
        why = (
            f"{task.data.manifest.items:,} items, more than {EASE_ITEMS:,}"
            if only == EASE
            else "the events have no order"
        )
        raise ValueError(f"{only}: {why}")
    asked = made if only is None else {only: made[only]}
    return {name: run(name, {}, partial(function, task, partial(run, name))) for name, function in asked.items()}


def popularity(task: Task, run: Run) -> Result:
    """The better of counting events alike and users alike; `as_reported` is the former on train + validation."""

    def rank(settings: Settings, splits: Sequence[str]) -> Ranker:
        return ranker_of(Fits(task.data, splits).of(settings), task.k)

    tried = {each: task.validated(rank(each, TRAIN)) for each in (Counting(), Counting(users_alike=True))}
    best = max(tried, key=tried.__getitem__)
    return {
        "settings": asdict(best),
        "validation": tried[best],
        "test": task.tested(rank(best, task.fitted_on)),
        "as_reported": task.tested(rank(Counting(), KNOWN)),
        "tried": {str(each): value for each, value in tried.items()},
    }


def item_knn(task: Task, run: Run) -> Result:
    """item-kNN with the settings that `towers report` chooses; `as_reported` is fitted on train + validation, too."""
    settings = choose(task.data).item_knn
    if settings is None:
        raise ValueError("item-kNN: the data set is larger than towers report allows it to be")

    def rank(splits: Sequence[str]) -> Ranker:
        return ranker_of(Fits(task.data, splits).of(settings), task.k)

    test = task.tested(rank(task.fitted_on))
    return {
        "settings": asdict(settings),
        "validation": task.validated(rank(TRAIN)),
        "test": test,
        "as_reported": test if task.refit else task.tested(rank(KNOWN)),
    }


def ordered_knn(task: Task, run: Run) -> Result:
    """item-kNN in order, of its settings the one where a climb ends; `as_reported` is fitted on train + validation."""

    def rank(settings: OrderedKnn, splits: Sequence[str]) -> Ranker:
        return ranker_of(Fits(task.data, splits).of(settings), task.k)

    def tried(settings: OrderedKnn) -> float:
        made = run(asdict(settings), lambda: {"validation": task.validated(rank(settings, TRAIN))})
        return float(made["validation"])

    best, values = climb(OrderedKnn(), {"window": WINDOWS, **ORDERED_LADDERS}, tried)
    return {
        "settings": asdict(best),
        "validation": values[best],
        "test": task.tested(rank(best, task.fitted_on)),
        "as_reported": task.tested(rank(best, KNOWN)),
        "tried": [{**asdict(each), "validation": value} for each, value in values.items()],
    }


def ease(task: Task, run: Run) -> Result:
    """EASE, of all penalties on a ladder the one where a climb ends."""

    def rank(penalty: float, splits: Sequence[str]) -> Ranker:
        taken = matrix(task, splits)
        weights = ease_weights(*taken.nonzero(), taken.shape, penalty)
        order = by_popularity(np.bincount(taken.indices, minlength=taken.shape[1]))
        return ranker_of(Ease(weights, order), task.k)

    def tried(penalty: float) -> float:
        made = run({"penalty": penalty}, lambda: {"validation": task.validated(rank(penalty, TRAIN))})
        return float(made["validation"])

    best, values = climb(Penalty(PENALTY), {"penalty": EASE_LADDER}, lambda each: tried(each.penalty))
    return {
        "settings": asdict(best),
        "validation": values[best],
        "test": task.tested(rank(best.penalty, task.fitted_on)),
        "tried": [{**asdict(each), "validation": value} for each, value in values.items()],
    }


def gf_cf(task: Task, run: Run) -> Result:
    """GF-CF, of all weights of its low-pass filter the best."""
    filters = GraphFilter.of(matrix(task, TRAIN))
    tried = {weight: task.validated(filtered(filters, weight, task.k)) for weight in WEIGHTS}
    best = max(tried, key=tried.__getitem__)
    measured = filters if task.fitted_on == TRAIN else GraphFilter.of(matrix(task, task.fitted_on))
    return {
        "settings": {"weight": best, "rank": RANK},
        "validation": tried[best],
        "test": task.tested(filtered(measured, best, task.k)),
        "tried": [{"weight": weight, "validation": value} for weight, value in tried.items()],
    }


def filtered(filters: GraphFilter, weight: float, k: int) -> Ranker:
    """Ranks by the scores of a graph filter, without what the user took."""

    def rank(held: HeldOut) -> Lists:
        items = len(filters.roots)
        taken = history(held.seen_offsets, held.seen_items, items)
        lists = np.full((len(held.users), k), -1, np.int32)
        for start in range(0, len(lists), BLOCK):
            part = taken[start : start + BLOCK]
            scores = filters.scores(part, weight)
            scores[part.nonzero()] = -np.inf
            lists[start : start + BLOCK, : min(k, items)] = highest(scores, k)
        return lists

    return rank


def ials(task: Task, run: Run) -> Result:
    """iALS; of the sweeps of each setting the one that is best on validation counts, and the best setting goes on."""

    curves: dict[Ials, list[float]] = {}

    def tried(settings: Ials) -> float:
        own = {"a0": settings.a0, "reg": settings.reg}
        curves[settings] = run(own, lambda: curve(task, settings))["validation"]
        return max(curves[settings])

    best, values = climb(START, LADDERS, tried)
    last = curves[best]
    if len(last) == MOST_SWEEPS:
        last = run({"a0": best.a0, "reg": best.reg, "sweeps": LONGEST}, lambda: curve(task, best, LONGEST))[
            "validation"
        ]
    count = int(np.argmax(last)) + 1
    _, items = next(islice(best.sweeps(matrix(task, task.fitted_on)), count - 1, None))
    return {
        "settings": {"a0": best.a0, "reg": best.reg, "sweeps": count, "dimension": best.dimension, "seed": best.seed},
        "validation": max(last),
        "curve": last,
        "test": task.tested(folded(best, items, task.k)),
        "tried": [{"a0": each.a0, "reg": each.reg, "validation": curves[each]} for each in values],
    }


def curve(task: Task, settings: Ials, most: int = MOST_SWEEPS) -> Result:
    """The figure on validation after each sweep, until it no longer rises."""
    taken = matrix(task, TRAIN)
    values: list[float] = []
    for _, items in settings.sweeps(taken):
        values.append(task.validated(folded(settings, items, task.k)))
        if len(values) == most or len(values) - np.argmax(values) > PATIENCE:
            break
    return {"validation": values}


def folded(settings: Ials, items: Vectors, k: int) -> Ranker:
    """Ranks by the vectors of items and, for each user, one more user step over all that is known of them by then."""
    index = ExactIndex(np.asarray(items, np.float32))

    def rank(held: HeldOut) -> Lists:
        taken = history(held.seen_offsets, held.seen_items, len(items))
        offsets, masked = held.masked
        return index.search(settings.step(taken, items), k, np.split(masked, offsets[1:-1]))[0]

    return rank


def matrix(task: Task, splits: Sequence[str]) -> sp.csr_array:
    """[users, items] 1 where the user took the item in these splits."""
    return history(*seen(task.data, splits), task.data.manifest.items)


def climb(
    start: Climbed, ladders: Mapping[str, Sequence[float]], value: Callable[[Climbed], float]
) -> tuple[Climbed, dict[Climbed, float]]:
    """`pipelines.rankers.choice.climb`; returns the best place, and the value of each that was tried, in this order."""
    values: dict[Climbed, float] = {}

    def kept(place: Climbed) -> float:
        values[place] = value(place)
        return values[place]

    best, _ = choice.climb(start, ladders, kept)
    return best, values
