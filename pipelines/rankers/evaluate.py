"""Evaluates rankers on held-out users in blocks, with the same users, targets and mask for every ranker.

A ranker maps held-out users to lists ``[Q, K]`` of item numbers. The result has one row per user, one column per
ranker, metric and k, and counts how often each item was recommended.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipelines.console import progress
from pipelines.dataset.heldout import HeldOut
from towers.evaluation import metrics

USERS = 1_024  # users ranked at once

Lists = NDArray[np.integer[Any]]
Ranker = Callable[[HeldOut], Lists]

# Recall on targets without a training event.
NEW = "new_recall"
NAMES = (*metrics.METRICS, NEW)


@dataclass(frozen=True)
class Evaluation:
    """The figures of all rankers.

    Attributes:
        rankers: their names.
        ks: list lengths evaluated, ascending.
        columns: [C] names, see `column`.
        values: float32 [Q, C]; NaN where a user has no such target.
        exposure: ranker -> k -> [N] how often each item was recommended.
    """

    rankers: tuple[str, ...]
    ks: tuple[int, ...]
    columns: tuple[str, ...]
    values: NDArray[np.float32]
    exposure: Mapping[str, Mapping[int, NDArray[np.int64]]]

    def of(self, name: str) -> NDArray[np.float32]:
        """One column, [Q]."""
        return self.values[:, self.columns.index(name)]


def column(ranker: str, metric: str, k: int) -> str:
    """The name of a column, for example ``"exact_recall@20"``."""
    return f"{ranker}_{metric}@{k}"


def evaluate(rankers: Mapping[str, Ranker], held: HeldOut, new: NDArray[np.bool_], ks: Sequence[int]) -> Evaluation:
    """Evaluates each ranker on each user.

    Args:
        rankers: by name; lists of at least ``max(ks)`` places, item numbers padded with -1.
        held: the users with their seen items and at least one target each.
        new: [N] which items have no training event.
        ks: list lengths to evaluate, ascending.
    """
    columns = tuple(column(ranker, metric, k) for ranker in rankers for metric in NAMES for k in ks)
    place = {name: number for number, name in enumerate(columns)}
    values = np.empty((len(held.users), len(columns)), dtype=np.float32)
    exposure = {ranker: {k: np.zeros(len(new), dtype=np.int64) for k in ks} for ranker in rankers}
    with progress("report", total=len(held.users), unit="users") as advance:
        for rows, block in _blocks(held):
            fresh = new[block.target_items]
            fresh_offsets = np.concatenate([[0], np.cumsum(fresh)])[block.target_offsets]
            for ranker, rank in rankers.items():
                lists = rank(block)
                found = metrics.hits(lists, block.target_offsets, block.target_items)
                found_new = metrics.hits(lists, fresh_offsets, block.target_items[fresh])
                for k in ks:
                    for metric, measure in metrics.METRICS.items():
                        figures = measure(found, np.diff(block.target_offsets), k)
                        values[rows, place[column(ranker, metric, k)]] = figures
                    figures = metrics.recall(found_new, np.diff(fresh_offsets), k)
                    values[rows, place[column(ranker, NEW, k)]] = figures
                    exposure[ranker][k] += metrics.exposure(lists, len(new), k)
            advance(len(block.users))
    return Evaluation(tuple(rankers), tuple(ks), columns, values, exposure)


def per_user(rank: Ranker, held: HeldOut, metric: str, k: int) -> NDArray[np.float64]:
    """Computes one metric of one ranker for each user, [Q].

    Args:
        rank: returns lists of at least k places.
        held: the users with their seen items and at least one target each.
        metric: one of `towers.evaluation.metrics.METRICS`, or ``precision``, hits@k / k.
        k: list length to evaluate.

    Raises:
        ValueError: the metric is unknown.
    """
    if metric not in (*metrics.METRICS, "precision"):
        raise ValueError(f"metric: {metric!r}; allowed are {', '.join((*metrics.METRICS, 'precision'))}")
    figures = []
    for _, part in _blocks(held):
        found = metrics.hits(rank(part), part.target_offsets, part.target_items)
        if metric == "precision":
            figures.append(found[:, :k].sum(axis=1) / k)
        else:
            figures.append(metrics.METRICS[metric](found, np.diff(part.target_offsets), k))
    return np.concatenate([np.zeros(0), *figures])


def _blocks(held: HeldOut) -> Iterator[tuple[slice, HeldOut]]:
    """Yields the users in blocks, each with its rows."""
    for start in range(0, len(held.users), USERS):
        targets, seen = (offsets[start : start + USERS + 1] for offsets in (held.target_offsets, held.seen_offsets))
        users = held.users[start : start + USERS]
        yield (
            slice(start, start + len(users)),
            HeldOut(
                users=users,
                target_offsets=targets - targets[0],
                target_items=held.target_items[targets[0] : targets[-1]],
                seen_offsets=seen - seen[0],
                seen_items=held.seen_items[seen[0] : seen[-1]],
                dropped_targets=0,
            ),
        )
