"""Training batches: their examples and features are a function of the step alone.

There is no state, so a resumed run sees the same batches.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from towers.data.batch import Batch, share
from towers.data.events import Events, Floats, Int64s
from towers.data.feature_tables import Array, FeatureTables, bagged
from towers.data.history import targets
from towers.data.impressions import NO_ITEM, Impressions
from towers.data.item_ranks import ItemRanks
from towers.data.shuffle import order_key, shuffled


@dataclass(frozen=True)
class Examples:
    """The batches of a training set.

    Attributes:
        events: the training events; each is an example.
        tables: looked-up features.
        catalogue: ranks of the items.
        batch_size: examples per batch; a smaller set is one batch.
        seed: of the order and the masks.
        weighted: weigh examples by their events' weights.
        recency: weight of a user's last event relative to their first; 1 weighs all alike. The events must be timed.
        balance: b; an example of a user with n events weighs n^-b: 0 weighs events alike, 1 users.
        positives: K, items of one example: its own and the user's next ones.
        known: L, the number of the user's other events, nearest to the example, whose items are listed with it.
        impressions: what users were shown and did not take, to be listed with the examples.
        worker, workers: of which part of each batch are made, of how many equal ones.
    """

    events: Events
    tables: FeatureTables
    catalogue: ItemRanks
    batch_size: int
    seed: int
    weighted: bool = False
    recency: float = 1.0
    balance: float = 0.0
    positives: int = 1
    known: int = 0
    impressions: Impressions | None = None
    worker: int = 0
    workers: int = 1

    def __len__(self) -> int:
        return len(self.events)

    @property
    def steps(self) -> int:
        """Steps per epoch. The last, partial batch is left out; each epoch's order leaves out another one."""
        return max(1, len(self) // self.batch_size)

    @cached_property
    def _width(self) -> int:
        """`known`, or the length of the longest list: with a great L for "all" the rest of each row would be empty."""
        return min(self.known, longest(self.events))

    def chosen(self, epoch: int, steps: range) -> Int64s:
        """The events [S, B] that are the examples of some steps, those of each in rising order."""
        end = min(steps.stop * self.batch_size, len(self))
        places = np.arange(steps.start * self.batch_size, end, dtype=np.int64)
        return np.sort(shuffled(places, len(self), order_key(self.seed, epoch)).reshape(len(steps), -1))

    def queries(self, example: Int64s) -> list[dict[str, Any]]:
        """The query features of examples [S, B], as input for a tower: those of each step."""
        features = self.tables.of_examples(self.events, example.ravel(), self.positives)
        return [bagged(columns) for columns in _by_step(features, len(example))]

    def batch(self, epoch: int, step: int) -> Batch:
        """The batch of one step; with several workers this one's part of it, the same size for each."""
        [batch] = self.batches(epoch, range(step, step + 1))
        return batch

    def batches(self, epoch: int, steps: range) -> list[Batch]:
        """The same of successive steps. A small batch costs more by NumPy's calls than by its examples."""
        chosen = share(self.chosen(epoch, steps), self.worker, self.workers)
        example, weight = chosen.ravel(), self.events.weight
        places, present = targets(self.events, example, self.positives)
        item = self._ranks(places, present, 0)
        known = self._known(example, item, present)
        ones = np.ones(places.shape, np.float32)
        columns = {
            "item": item,
            "present": present,
            "label": ones if weight is None else np.where(present, weight[places], 0).astype(np.float32),
            "known": known,
            "shown": self._not_taken(example, np.hstack([np.where(present, item, NO_ITEM), known]), epoch),
            "user": self.events.user[example].astype(np.int64),
            "weight": self._weight(example),
        }
        return [
            Batch(query=query, seed=np.array([self.seed, epoch * self.steps + step], np.int32), **own)
            for step, query, own in zip(steps, self.queries(chosen), _by_step(columns, len(steps)), strict=True)
        ]

    def _weight(self, example: Int64s) -> Floats:
        """[B]: an event's own weight if `weighted`, times two factors of its place in its user's list of n events.

        Recency R gives ``R^p ln R / (R - 1)``, p from 0 to 1, with mean 1; balance b gives ``n^-b``.
        """
        own = self.events.weight if self.weighted else None
        weight = np.ones(len(example)) if own is None else own[example].astype(np.float64)
        start, end = _range_of_user(self.events, example)
        if self.recency > 1:
            place = (example - start + 0.5) / (end - start)
            weight *= self.recency**place * (math.log(self.recency) / (self.recency - 1))
        if self.balance:
            weight *= (end - start).astype(np.float64) ** -self.balance
        return weight.astype(np.float32)

    def _known(self, example: Int64s, positive: Int64s, present: NDArray[np.bool_]) -> Int64s:
        """Items [B, L] of the user's other events around each example, none of them one of its positives [B, K].

        Whether a negative may equal a positive is `remove_accidental_hits`'s to say.
        """
        if not self._width:
            return np.zeros((len(example), 0), np.int64)
        start, end = _range_of_user(self.events, example)
        first = np.maximum(start, np.minimum(example - self._width // 2, end - self._width - 1))
        places = first[:, None] + np.arange(self._width)
        places += places >= example[:, None]
        there = places < end[:, None]
        known = self._ranks(np.where(there, places, example[:, None]), there, NO_ITEM)
        for own, exists in zip(positive.T, present.T, strict=True):
            known[(known == own[:, None]) & exists[:, None]] = NO_ITEM
        return known

    def _not_taken(self, example: Int64s, barred: Int64s, epoch: int) -> Int64s:
        """Items [B, n] that the user was shown and had not taken, none of them `barred` [B, L]."""
        if self.impressions is None:
            return np.zeros((len(example), 0), np.int64)
        time = np.zeros(len(example), np.int64) if self.events.time is None else self.events.time[example]
        key = order_key(self.seed, epoch)
        return self.impressions.of_examples(example, time, self.catalogue.ranks, barred, key)

    def _ranks(self, places: Int64s, present: Array, filler: int) -> Int64s:
        ranks: Int64s = np.where(present, self.catalogue.ranks[self.events.item[places]], filler)
        return ranks


@dataclass(frozen=True)
class UserExamples(Examples):
    """The batches of whole users: each is one example an epoch, all their items its positives.

    `positives` is `longest`: the others have their lists padded. The query features must be of the user, not
    of an event. With balance b an example of a user with n events weighs n^(1 - b), as much as n examples of one event.
    """

    def __len__(self) -> int:
        return len(self._firsts)

    @cached_property
    def _firsts(self) -> Int64s:
        """Each user's first event."""
        starts = self.events.offsets[:-1]
        return np.asarray(starts[starts < self.events.offsets[1:]], np.int64)

    def chosen(self, epoch: int, steps: range) -> Int64s:
        """The first events [S, B] of the users of some steps, those of each in rising order."""
        return self._firsts[super().chosen(epoch, steps)]

    def _weight(self, example: Int64s) -> Floats:
        start, end = _range_of_user(self.events, example)
        return super()._weight(example) * (end - start).astype(np.float32)


def longest(events: Events) -> int:
    """How many events the user with the most has; at least 1."""
    return int(np.diff(events.offsets).max(initial=1))


def _by_step(columns: Mapping[str, Array], steps: int) -> list[dict[str, Array]]:
    """Columns of S B examples in a row, as those of each step's B."""
    split = {name: rows.reshape(steps, len(rows) // steps, *rows.shape[1:]) for name, rows in columns.items()}
    return [{name: rows[step] for name, rows in split.items()} for step in range(steps)]


def _range_of_user(events: Events, example: Int64s) -> tuple[Int64s, Int64s]:
    user = events.user[example]
    return events.offsets[user], events.offsets[user + 1]
