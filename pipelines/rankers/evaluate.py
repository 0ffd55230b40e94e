"""Evaluates rankers on held-out users in blocks, with the same users, targets and mask for every ranker.

A ranker maps held-out users to lists ``[Q, K]`` of item numbers. The result has one row per user, one column per
ranker, metric and k, and keeps the lists.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipelines.console import Advance, no_bar, progress
from pipelines.dataset.heldout import HeldOut
from pipelines.rankers.bootstrap import Bootstrap, bootstrap
from towers.evaluation import metrics

PHASE = "evaluate"
USERS = 1_024  # users ranked at once

# Columns besides the metrics: how many items a list has, how alike they are, and whether that is known (1) or not (0).
PLACES, SIMILARITY, ALIKE = "places", "similarity", "alike"

Lists = NDArray[np.integer[Any]]
Ranker = Callable[[HeldOut], Lists]


@dataclass(frozen=True)
class Evaluation:
    """The figures of all rankers.

    Attributes:
        rankers: their names.
        ks: list lengths evaluated, ascending.
        columns: [C] names, see `column`.
        values: float32 [Q, C]; NaN where a user has no such target.
        lists: ranker -> int32 [Q, min(max(ks), N)] item numbers, padded with -1.
        items: number of items.
        sums: names of the columns that hold a number of each list, besides the metrics.
    """

    rankers: tuple[str, ...]
    ks: tuple[int, ...]
    columns: tuple[str, ...]
    values: NDArray[np.float32]
    lists: Mapping[str, NDArray[np.int32]]
    items: int
    sums: tuple[str, ...]

    def exposure(self, ranker: str, k: int) -> NDArray[np.int64]:
        """How often each item is among the first k of a ranker's lists, [N]."""
        return metrics.exposure(self.lists[ranker], self.items, k)

    def of(self, name: str) -> NDArray[np.float32]:
        """One column, [Q]."""
        return self.values[:, self.columns.index(name)]

    def resampled(
        self,
        names: Iterable[str],
        users: NDArray[np.intp] | slice = slice(None),
        advance: Advance = no_bar,
    ) -> Bootstrap:
        """Resamples some users' figures of these metrics or groups, of all rankers."""
        columns = [column(*each) for each in product(self.rankers, names, self.ks)]
        places = [self.columns.index(each) for each in columns]
        return bootstrap(self.values[users][:, places].astype(np.float64), columns, advance=advance)

    def of_all(self, advance: Advance = no_bar) -> Bootstrap:
        """Resamples all users' figures of all metrics, and `sums`."""
        return self.resampled((*metrics.METRICS, *self.sums), advance=advance)


def column(ranker: str, metric: str, k: int) -> str:
    """The name of a column, for example ``"exact_recall@20"``."""
    return f"{ranker}_{metric}@{k}"


def evaluate(
    rankers: Mapping[str, Ranker],
    held: HeldOut,
    vectors: NDArray[np.float32],
    ks: Sequence[int],
    groups: Mapping[str, NDArray[np.bool_]] | None = None,
    numbers: Mapping[str, NDArray[np.float64]] | None = None,
) -> Evaluation:
    """Evaluates each ranker on each user.

    Args:
        rankers: by name; lists of at least ``min(max(ks), N)`` places, item numbers padded with -1.
        held: the users with their seen items and at least one target each.
        vectors: [N, D] item vectors of length 1, zeros for an item without one; for the similarity within lists.
        ks: list lengths to evaluate, ascending.
        groups: name -> [T] which targets are in it; the result has the recall on each group's targets.
        numbers: name -> [N] a number of each item; the result has its sum over each list.
    """
    groups, numbers = groups or {}, numbers or {}
    sums = (PLACES, SIMILARITY, ALIKE, *numbers)
    columns = tuple(column(*each) for each in product(rankers, (*metrics.METRICS, *groups, *sums), ks))
    place = {name: number for number, name in enumerate(columns)}
    values = np.empty((len(held.users), len(columns)), dtype=np.float32)
    longest = min(max(ks), len(vectors))
    kept = {ranker: np.full((len(held.users), longest), -1, np.int32) for ranker in rankers}
    # Place -1, of padding, is the last one.
    padded = {name: np.append(each, 0.0) for name, each in {PLACES: np.ones(len(vectors)), **numbers}.items()}
    with progress(PHASE, total=len(held.users), unit="users") as advance:
        for rows, block in _blocks(held):
            first, end = held.target_offsets[[rows.start, rows.stop]]
            masks = {name: mask[first:end] for name, mask in groups.items()}
            counts = {name: counts_by_user(mask, block.target_offsets) for name, mask in masks.items()}
            targets = np.diff(block.target_offsets)
            for ranker, rank in rankers.items():
                lists = rank(block)[:, :longest]
                kept[ranker][rows, : lists.shape[1]] = lists
                matches = metrics.matches(lists, block.target_offsets, block.target_items)
                hits = matches >= 0
                of_group = {name: hits & mask[matches] for name, mask in masks.items()}
                for k in ks:
                    for metric, measure in metrics.METRICS.items():
                        values[rows, place[column(ranker, metric, k)]] = measure(hits, targets, k)
                    for name, found in of_group.items():
                        values[rows, place[column(ranker, name, k)]] = metrics.recall(found, counts[name], k)
                similarity = metrics.intra_list_similarity(lists, vectors, ks)
                of_lists: dict[str, NDArray[Any]] = {
                    SIMILARITY: np.nan_to_num(similarity),
                    ALIKE: ~np.isnan(similarity),
                    **{name: _sums(each[kept[ranker][rows]], ks) for name, each in padded.items()},
                }
                for name, by_k in of_lists.items():
                    for k, figures in zip(ks, by_k.T, strict=True):
                        values[rows, place[column(ranker, name, k)]] = figures
            advance(len(block.users))
    return Evaluation(tuple(rankers), tuple(ks), columns, values, kept, len(vectors), sums)


def counts_by_user(mask: NDArray[np.bool_], offsets: NDArray[np.int64]) -> NDArray[np.int64]:
    """Returns how many of some targets, [T], each user has, [Q]; `offsets` [Q + 1] are the users' targets."""
    counts: NDArray[np.int64] = np.diff(np.concatenate([[0], np.cumsum(mask)])[offsets])
    return counts


def per_user(rank: Ranker, held: HeldOut, metric: str, k: int) -> NDArray[np.float64]:
    """Computes one metric of one ranker for each user, [Q].

    Args:
        rank: returns lists of at least k places.
        held: the users with their seen items and at least one target each.
        metric: one of `towers.evaluation.metrics.METRICS`.
        k: list length to evaluate.
    """
    figures = [np.zeros(0)]
    for _, part in _blocks(held):
        found = metrics.hits(rank(part), part.target_offsets, part.target_items)
        figures.append(metrics.METRICS[metric](found, np.diff(part.target_offsets), k))
    return np.concatenate(figures)


def _sums(numbers: NDArray[np.float64], ks: Sequence[int]) -> NDArray[np.float64]:
    """The sums of the first k of each row, [Q, ks]; the ks ascend."""
    inside = [k for k in ks if k < numbers.shape[1]]
    sums: NDArray[np.float64] = np.add.reduceat(numbers, [0, *inside], axis=1).cumsum(axis=1)
    return sums[:, np.minimum(np.arange(len(ks)), len(inside))]


def _blocks(held: HeldOut) -> Iterator[tuple[slice, HeldOut]]:
    """Yields the users in blocks, each with its rows."""
    for start in range(0, len(held.users), USERS):
        targets, seen = (offsets[start : start + USERS + 1] for offsets in (held.target_offsets, held.seen_offsets))
        users = held.users[start : start + USERS]
        yield (
            slice(start, start + len(users)),
            replace(
                held,
                users=users,
                target_offsets=targets - targets[0],
                target_items=held.target_items[targets[0] : targets[-1]],
                seen_offsets=seen - seen[0],
                seen_items=held.seen_items[seen[0] : seen[-1]],
                seen_times=None,
                seen_types=None,
            ),
        )
