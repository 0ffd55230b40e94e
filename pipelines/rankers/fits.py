"""Fits baselines on the events of some splits, each once: cached in memory during a search, on disk otherwise."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Protocol

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from pipelines.console import Advance, no_bar, progress, say
from pipelines.dataset.dataset import Dataset
from pipelines.dataset.heldout import HeldOut, seen, seen_times
from pipelines.dataset.popularity import DAY_S, PLAIN, TICKS_PER_S, Counting, countings, has_windows, item_counts
from pipelines.rankers import ease
from pipelines.rankers.cache import Cache
from pipelines.rankers.ease import Ease, ease_weights
from pipelines.rankers.evaluate import Ranker, per_user
from pipelines.rankers.item_knn import PHASE as KNN_PHASE
from pipelines.rankers.item_knn import ItemKnn, nearest_items, nearest_of
from pipelines.rankers.ordered_knn import OrderedKnn
from pipelines.rankers.popular import Integers, Lists, Popular, by_popularity
from towers.data.events import Int64s

VERSION = 3  # of the files on disk
KEPT = 3  # co-occurrence matrices in memory: the best so far and its neighbours on a ladder


@dataclass(frozen=True)
class KnnSettings:
    """Settings of item-kNN; the defaults do well on Gowalla and MovieLens-100k.

    Attributes:
        neighbours: how many each item keeps.
        shrinkage: added to the denominator of the cosine.
        damp_users: whether users with many items count less.
        half_life: of a history item's weight, in places from the end; None weights all items equally.
        days: count co-occurrence only over the last `days` days; None counts all events.
        fallback: the popularity that fills short lists and answers users without history.
    """

    neighbours: int = 100
    shrinkage: float = 100.0
    damp_users: bool = True
    half_life: int | None = None
    days: int | None = None
    fallback: Counting = PLAIN

    def __str__(self) -> str:
        return f"item-kNN of {self.neighbours} neighbours"


@dataclass(frozen=True)
class EaseSettings:
    """Settings of EASE.

    Attributes:
        penalty: L2 penalty on the weights, lambda in the paper.
        fallback: the popularity that answers users without history.
    """

    penalty: float = ease.PENALTY
    fallback: Counting = PLAIN

    def __str__(self) -> str:
        return f"EASE of lambda {self.penalty:g}"


Settings = Counting | KnnSettings | OrderedKnn | EaseSettings


class Fitted(Protocol):
    """A fitted baseline."""

    def lists(self, seen_offsets: Integers, seen_items: Integers, k: int, *, repeats: bool = False) -> Lists:
        """Returns the best k items of each query, unseen ones unless `repeats`: [Q, k], padded with -1."""


def ranker_of(fitted: Fitted, k: int) -> Ranker:
    """Returns a ranker that gives a fitted baseline's lists of k items."""
    return lambda held: fitted.lists(held.seen_offsets, held.seen_items, k, repeats=held.repeats)


def counting_values(
    data: Dataset,
    held: HeldOut,
    metric: str,
    k: int,
    popular: Callable[[Counting], Fitted],
    *,
    advance: Advance = no_bar,
) -> dict[Counting, NDArray[np.float64]]:
    """Returns a metric of each held-out user, [Q], for every counting that the data set allows.

    The prior of a model and the baselines choose by it, each with its own users and metric.

    Args:
        data: the data set.
        held: at least one held-out user.
        metric: as in `per_user`.
        k: length of the lists.
        popular: fits the most popular items by a counting, on the events known before.
        advance: called after each counting.
    """
    values = {}
    for counting in countings(windows=has_windows(data)):
        values[counting] = per_user(ranker_of(popular(counting), k), held, metric, k)
        advance(1)
    return values


class Fits:
    """Baselines fitted on the events of some splits.

    Args:
        data: the data set.
        splits: names in time order.
        cache: stores fitted matrices on disk; None keeps some in memory, for a search.
        neighbours: how many per item to keep in memory, at least as many as any settings will ask for.
    """

    def __init__(
        self, data: Dataset, splits: Sequence[str], *, cache: Cache | None = None, neighbours: int = 0
    ) -> None:
        self.data, self.splits, self.cache, self.neighbours = data, tuple(splits), cache, neighbours
        self._name = "-".join(splits)
        self._parts = [data.events(split) for split in splits]
        self._offsets, self._items = seen(data, splits)
        self._orders: dict[Counting, Lists] = {}
        self._nearest: dict[KnnSettings, sp.csr_array] = {}
        self._in_order: dict[OrderedKnn, sp.csr_array] = {}

    @property
    def user_events(self) -> Int64s:
        """[users] how many events each user has."""
        return np.diff(self._offsets)

    def of(self, settings: Settings) -> Fitted:
        """Returns the baseline with these settings."""
        match settings:
            case Counting():
                return Popular(self._order(settings))
            case KnnSettings():
                return self._item_knn(settings)
            case OrderedKnn():
                return self._ordered(settings)
            case EaseSettings():
                return self._ease(settings)

    def _item_knn(self, settings: KnnSettings) -> ItemKnn:
        if self.cache is None:
            similarity = sp.csr_array(self._searched(settings).T)
        else:
            similarity = self._kept(settings, self.cache)
        return ItemKnn(similarity, self._order(settings.fallback), settings.half_life)

    def _ordered(self, settings: OrderedKnn) -> ItemKnn:
        # On disk nothing is kept: a count takes seconds.
        matrix = replace(settings, half_life=1.0, fallback=PLAIN)
        if matrix not in self._in_order:
            self._in_order[matrix] = settings.similarity(self._offsets, self._items, self.data.manifest.items)
            if len(self._in_order) > KEPT:
                del self._in_order[next(iter(self._in_order))]
        return ItemKnn(self._in_order[matrix], self._order(settings.fallback), settings.half_life)

    def _ease(self, settings: EaseSettings) -> Ease:
        key = self._key(f"{settings.penalty:g}")
        kept = None if self.cache is None else self.cache.read(f"ease-{self._name}", key)
        weights = None if kept is None else kept.get("weights")
        if weights is None:
            shape = (len(self.user_events), self.data.manifest.items)
            weights = ease_weights(self._users, self._items, shape, settings.penalty)
            if self.cache is not None:
                self.cache.write(f"ease-{self._name}", key, {"weights": weights})
        return Ease(weights, self._order(settings.fallback))

    def _order(self, counting: Counting) -> Lists:
        """Returns all item numbers, most popular first."""
        if counting not in self._orders:
            manifest = self.data.manifest
            counts = item_counts(self._parts, manifest.items, counting, time_unit=manifest.time_unit)
            self._orders[counting] = by_popularity(counts)
        return self._orders[counting]

    def _searched(self, settings: KnnSettings) -> sp.csr_array:
        neighbours = max(self.neighbours, settings.neighbours)
        matrix = replace(settings, neighbours=neighbours, half_life=None, fallback=PLAIN)
        nearest = self._nearest.pop(matrix, None)
        # Reinserting moves it to the end: the least recently used goes first.
        self._nearest[matrix] = self._fit_knn(matrix) if nearest is None else nearest
        if len(self._nearest) > KEPT:
            del self._nearest[next(iter(self._nearest))]
        return nearest_of(self._nearest[matrix], settings.neighbours)

    def _kept(self, settings: KnnSettings, cache: Cache) -> sp.csr_array:
        """Returns the similarities of an `ItemKnn`, from the cache if it has them."""
        matrix = {name: value for name, value in asdict(settings).items() if name not in ("half_life", "fallback")}
        name, key = f"item-knn-{self._name}", self._key(str(matrix))
        kept, items = cache.read(name, key), self.data.manifest.items
        if kept is not None and {"data", "indices", "indptr"} <= kept.keys():
            say(f"{KNN_PHASE}: kept from an earlier command")
            return sp.csr_array((kept["data"], kept["indices"], kept["indptr"]), shape=(items, items))
        with progress(KNN_PHASE, total=items, unit="items") as advance:
            similarity = sp.csr_array(self._fit_knn(settings, advance).T)
        cache.write(name, key, {"data": similarity.data, "indices": similarity.indices, "indptr": similarity.indptr})
        return similarity

    def _fit_knn(self, settings: KnnSettings, advance: Advance = no_bar) -> sp.csr_array:
        users, items = self._within(settings.days)
        return nearest_items(
            users,
            items,
            (len(self.user_events), self.data.manifest.items),
            neighbours=settings.neighbours,
            shrinkage=settings.shrinkage,
            damp_users=settings.damp_users,
            advance=advance,
        )

    def _within(self, days: int | None) -> tuple[Integers, Integers]:
        """Returns users and items of the events of the last days."""
        if days is None:
            return self._users, self._items
        times, unit = seen_times(self.data, self.splits), self.data.manifest.time_unit
        if times is None or unit not in TICKS_PER_S:
            raise ValueError(f"a window of {days} days needs times in a unit, got {unit!r}")
        kept = times > times.max(initial=0) - days * DAY_S * TICKS_PER_S[unit]
        return self._users[kept], self._items[kept]

    @cached_property
    def _users(self) -> Int64s:
        return np.repeat(np.arange(len(self.user_events)), self.user_events)

    def _key(self, settings: str) -> str:
        return f"{VERSION} {self.data.manifest.fingerprint} {self._name} {settings}"
