"""Figures of rankers on held-out users, in blocks of users: the same users, targets and mask for every ranker.

In: rankers (held-out users to lists ``[Q, K]`` of item numbers) and held-out users. Out: one row per user, one column
per ranker, metric and k, and how often each item was recommended.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipelines.heldout import HeldOut
from pipelines.progress import progress
from towers import metrics

USERS = 1_024  # ranked at once

Lists = NDArray[np.integer[Any]]
Ranker = Callable[[HeldOut], Lists]

# Recall on targets that had no training event.
NEW = "new_recall"
NAMES = (*metrics.METRICS, NEW)


@dataclass(frozen=True)
class Evaluation:
    """What rankers reached.

    Attributes:
        rankers: their names.
        ks: lengths at which lists were judged, rising.
        columns: [C] names, see `column`.
        values: float32 [Q, C]; NaN where a user has no target of the kind.
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
    """Measures each ranker on each user.

    Args:
        rankers: by name; lists of at least ``max(ks)`` places, item numbers, -1 where a list has ended.
        held: the users, what each has seen, and their targets, at least one each.
        new: [N] which items had no training event.
        ks: lengths at which lists are judged, rising.
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
    """One figure of one ranker for each user, [Q].

    Args:
        rank: lists of at least k places.
        held: the users, what each has seen, and their targets, at least one each.
        metric: one of `towers.metrics.METRICS`, or ``precision``, hits@k / k.
        k: length at which the lists are judged.

    Raises:
        ValueError: another metric.
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
    """Some users at a time, and their places."""
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
