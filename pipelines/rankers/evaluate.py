"""Evaluates rankers on held-out users in blocks, with the same users, targets and mask for every ranker.

A ranker maps held-out users to lists ``[Q, K]`` of item numbers. The result has one row per user, one column per
ranker, metric and k, and counts how often each item was recommended and how alike the items of a list are.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipelines.console import progress
from pipelines.dataset.heldout import HeldOut
from pipelines.rankers.bootstrap import Bootstrap, bootstrap
from towers.evaluation import metrics

PHASE = "evaluate"
USERS = 1_024  # users ranked at once

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
        exposure: ranker -> k -> [N] how often each item was recommended.
        similarity: ranker -> k -> mean `intra_list_similarity` of the lists that have one; NaN if none has.
    """

    rankers: tuple[str, ...]
    ks: tuple[int, ...]
    columns: tuple[str, ...]
    values: NDArray[np.float32]
    exposure: Mapping[str, Mapping[int, NDArray[np.int64]]]
    similarity: Mapping[str, Mapping[int, float]]

    def of(self, name: str) -> NDArray[np.float32]:
        """One column, [Q]."""
        return self.values[:, self.columns.index(name)]

    def resampled(self, names: Iterable[str], users: NDArray[np.intp] | slice = slice(None)) -> Bootstrap:
        """Resamples some users' figures of these metrics or groups, of all rankers."""
        columns = [column(*each) for each in product(self.rankers, names, self.ks)]
        places = [self.columns.index(each) for each in columns]
        return bootstrap(self.values[users][:, places].astype(np.float64), columns)

    @cached_property
    def of_all(self) -> Bootstrap:
        """All users' figures of all metrics, resampled once."""
        return self.resampled(metrics.METRICS)


def column(ranker: str, metric: str, k: int) -> str:
    """The name of a column, for example ``"exact_recall@20"``."""
    return f"{ranker}_{metric}@{k}"


def evaluate(
    rankers: Mapping[str, Ranker],
    held: HeldOut,
    vectors: NDArray[np.float32],
    ks: Sequence[int],
    groups: Mapping[str, NDArray[np.bool_]] | None = None,
) -> Evaluation:
    """Evaluates each ranker on each user.

    Args:
        rankers: by name; lists of at least ``max(ks)`` places, item numbers padded with -1.
        held: the users with their seen items and at least one target each.
        vectors: [N, D] item vectors of length 1, zeros for an item without one; for the similarity within lists.
        ks: list lengths to evaluate, ascending.
        groups: name -> [T] which targets are in it; the result has the recall on each group's targets.
    """
    groups = groups or {}
    columns = tuple(column(*each) for each in product(rankers, (*metrics.METRICS, *groups), ks))
    place = {name: number for number, name in enumerate(columns)}
    values = np.empty((len(held.users), len(columns)), dtype=np.float32)
    exposure = {ranker: {k: np.zeros(len(vectors), dtype=np.int64) for k in ks} for ranker in rankers}
    alike = {ranker: {k: np.zeros(2) for k in ks} for ranker in rankers}
    with progress(PHASE, total=len(held.users), unit="users") as advance:
        for rows, block in _blocks(held):
            first, end = held.target_offsets[[rows.start, rows.stop]]
            masks = {name: mask[first:end] for name, mask in groups.items()}
            counts = {name: counts_by_user(mask, block.target_offsets) for name, mask in masks.items()}
            targets = np.diff(block.target_offsets)
            for ranker, rank in rankers.items():
                lists = rank(block)
                matches = metrics.matches(lists, block.target_offsets, block.target_items)
                hits = matches >= 0
                of_group = {name: hits & mask[matches] for name, mask in masks.items()}
                for k in ks:
                    for metric, measure in metrics.METRICS.items():
                        values[rows, place[column(ranker, metric, k)]] = measure(hits, targets, k)
                    for name, found in of_group.items():
                        values[rows, place[column(ranker, name, k)]] = metrics.recall(found, counts[name], k)
                    exposure[ranker][k] += metrics.exposure(lists, len(vectors), k)
                for k, similarity in zip(ks, metrics.intra_list_similarity(lists, vectors, ks).T, strict=True):
                    some = ~np.isnan(similarity)
                    alike[ranker][k] += similarity[some].sum(), some.sum()
            advance(len(block.users))
    similarity_of = {
        ranker: {k: float(total / count) if count else float("nan") for k, (total, count) in by_k.items()}
        for ranker, by_k in alike.items()
    }
    return Evaluation(tuple(rankers), tuple(ks), columns, values, exposure, similarity_of)


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

    Raises:
        ValueError: the metric is unknown.
    """
    if metric not in metrics.METRICS:
        raise ValueError(f"metric: {metric!r}; allowed are {', '.join(metrics.METRICS)}")
    figures = [np.zeros(0)]
    for _, part in _blocks(held):
        found = metrics.hits(rank(part), part.target_offsets, part.target_items)
        figures.append(metrics.METRICS[metric](found, np.diff(part.target_offsets), k))
    return np.concatenate(figures)


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
            ),
        )
