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
from pipelines.dataset.popularity import (
    DAY_S,
    PLAIN,
    TICKS_PER_S,
    Counting,
    Doubles,
    countings,
    has_windows,
    item_counts,
)
from pipelines.rankers.cache import Cache
from pipelines.rankers.ease import Ease, EaseSettings, ease_weights
from pipelines.rankers.evaluate import Ranker, per_user
from pipelines.rankers.item_knn import PHASE as KNN_PHASE
from pipelines.rankers.item_knn import ItemKnn, nearest_items, nearest_of
from pipelines.rankers.ordered_knn import OrderedKnn
from pipelines.rankers.popular import Favourites, FavouriteSettings, Integers, Lists, Popular, by_popularity
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


Settings = Counting | KnnSettings | OrderedKnn | EaseSettings | FavouriteSettings


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
        self._counts: dict[Counting, Doubles] = {}
        self._linear: dict[float, NDArray[np.float32]] = {}
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
            case FavouriteSettings():
                return Favourites(self._order(settings.fallback))

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
        if settings.penalty not in self._linear:
            self._linear = {}  # before the next is fitted: each may be as large as 400 MB
            self._linear[settings.penalty] = self._ease_weights(settings.penalty)
        weights, order = self._linear[settings.penalty], self._order(settings.fallback)
        if not settings.popularity:
            return Ease(weights, order)
        counts = self._counted(settings.fallback)
        popularity = settings.popularity * np.log1p(counts / (counts.mean() or 1.0))
        return Ease(weights, order, popularity.astype(np.float32))

    def _ease_weights(self, penalty: float) -> NDArray[np.float32]:
        key = self._key(f"{penalty:g}")
        kept = None if self.cache is None else self.cache.read(f"ease-{self._name}", key)
        weights = None if kept is None else kept.get("weights")
        if weights is None:
            shape = (len(self.user_events), self.data.manifest.items)
            weights = ease_weights(self._users, self._items, shape, penalty)
            if self.cache is not None:
                self.cache.write(f"ease-{self._name}", key, {"weights": weights})
        return weights

    def _order(self, counting: Counting) -> Lists:
        """Returns all item numbers, most popular first."""
        return by_popularity(self._counted(counting))

    def _counted(self, counting: Counting) -> Doubles:
        """Returns the counts of all items."""
        if counting not in self._counts:
            manifest = self.data.manifest
            self._counts[counting] = item_counts(self._parts, manifest.items, counting, time_unit=manifest.time_unit)
        return self._counts[counting]

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
        kept = times > (times.max() if len(times) else 0) - days * DAY_S * TICKS_PER_S[unit]
        return self._users[kept], self._items[kept]

    @cached_property
    def _users(self) -> Int64s:
        return np.repeat(np.arange(len(self.user_events)), self.user_events)

    def _key(self, settings: str) -> str:
        return f"{VERSION} {self.data.manifest.fingerprint} {self._name} {settings}"
