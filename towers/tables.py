"""Looked-up features of a whole data set, and the gather that turns users and items into a batch of them.

In: arrays that `FeatureEncoder.lookup` gave for every user, item and event, once. Out: features by name for the rows of
a batch, `[B]`, `[B, L]` or `[B, 2]`, ready for `Tower`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from towers.events import Events, Int32s, Int64s
from towers.features import MISSING, Bag

Array = NDArray[Any]
SECONDS_PER_HOUR, HOURS_PER_DAY, DAYS_PER_WEEK = 3600, 24, 7
EPOCH_WEEKDAY = 3  # 1970-01-01 was a Thursday, Monday = 0


@dataclass(frozen=True)
class HistoryTable:
    """Attributes: `rows` [N], the history table's row of each item; `length`, most items of one history."""

    rows: Int32s
    length: int


@dataclass(frozen=True)
class Tables:
    """Looked-up features of a data set.

    Attributes:
        users: by feature, of every user: [U], [U, L] or [U, 2].
        items: by feature, of every item.
        context: by feature, of every training event.
        clocks: by feature, "hour" or "weekday".
        histories: by feature.
        missing: by context feature, what `lookup` gives for a missing value.
        ticks_per_second: of the events' times.
    """

    users: Mapping[str, Array]
    items: Mapping[str, Array]
    context: Mapping[str, Array] = field(default_factory=dict)
    clocks: Mapping[str, str] = field(default_factory=dict)
    histories: Mapping[str, HistoryTable] = field(default_factory=dict)
    missing: Mapping[str, Array] = field(default_factory=dict)
    ticks_per_second: int = 1

    def of_examples(self, events: Events, example: Int64s, positives: int = 1) -> dict[str, Array]:
        """Query features of training events `example` [B], each as it stood before its event.

        Args:
            positives: the example's item and so many less one that follow it are what it is to find.
        """
        user = events.user[example]
        features = {name: table[user] for name, table in self.users.items()}
        features |= {name: table[example] for name, table in self.context.items()}
        for name, kind in self.clocks.items():
            seconds = events.time[example] // self.ticks_per_second if events.time is not None else None
            features[name] = clock_rows(kind, seconds, len(example))
        for name, history in self.histories.items():
            features[name] = example_histories(events, example, history, positives)
        return features

    def of_users(self, user: Int32s, offsets: Int64s, items: Int32s) -> dict[str, Array]:
        """Query features of `user` [Q] outside any event: context and clock are missing.

        Args:
            offsets: [Q + 1]; the history of query q is ``items[offsets[q]:offsets[q + 1]]``, newest last.
        """
        features = {name: table[user] for name, table in self.users.items()}
        for name, value in self.missing.items():
            features[name] = np.broadcast_to(value, (len(user), *value.shape))
        for name, kind in self.clocks.items():
            features[name] = clock_rows(kind, None, len(user))
        for name, history in self.histories.items():
            features[name] = windows(offsets[:-1], offsets[1:], items, history)
        return features


def bagged(features: Mapping[str, Array]) -> dict[str, Any]:
    """The features of a batch as a tower takes them: rows as int64, each list `[B, L]` as a `Bag` of its distinct rows.

    int64, because TensorFlow has no int32 arithmetic on a GPU.
    """
    return {name: _as_input(rows) for name, rows in features.items()}


def _as_input(rows: Array) -> Any:
    if rows.dtype.kind == "f":
        return rows
    return distinct_bag(rows) if rows.ndim == 2 else rows.astype(np.int64)


def distinct_bag(rows: Int32s) -> Bag:
    """A `Bag` of looked-up rows [B, L], each distinct row once, without the missing ones."""
    example, column = np.nonzero(rows != MISSING)
    distinct, place = np.unique(rows[example, column], return_inverse=True)
    return Bag(distinct.astype(np.int64), place.astype(np.int64), example.astype(np.int64), np.int32(len(rows)))


def windows(start: Int64s, end: Int64s, items: Int32s, history: HistoryTable) -> Int32s:
    """The last `history.length` items of each range, right-aligned: int32 [B, L] table rows, MISSING to the left."""
    places = end[:, None] + np.arange(-history.length, 0)
    inside = places >= start[:, None]
    if not len(items):
        return np.full(places.shape, MISSING, np.int32)
    return np.where(inside, history.rows[items[np.where(inside, places, 0)]], np.int32(MISSING))


def example_histories(events: Events, example: Int64s, history: HistoryTable, positives: int = 1) -> Int32s:
    """Histories of training events: strictly earlier events, or in untimed data all of the user's but the targets."""
    user = events.user[example]
    start = events.offsets[user]
    if events.history_end is not None:
        return windows(start, events.history_end[example], events.item, history)
    # No order: of a long list a window that begins after the targets and wraps around, so no item is left out for good.
    count = events.offsets[user + 1] - start
    step = np.arange(positives, history.length + positives)
    places = start[:, None] + (example[:, None] - start[:, None] + step) % count[:, None]
    items = events.item[places]
    other = step < count[:, None]
    for k in range(positives):
        target = events.item[start + (example - start + k) % count]
        other &= (items != target[:, None]) | (k >= count[:, None])
    return np.where(other, history.rows[items], np.int32(MISSING))


def clock_rows(kind: str, seconds: Int64s | None, count: int) -> Int32s:
    """Rows of an hour or weekday feature for event times in seconds since 1970 (UTC); MISSING without a time."""
    if seconds is None:
        return np.full(count, MISSING, np.int32)
    hours = seconds // SECONDS_PER_HOUR
    if kind == "hour":
        return (1 + hours % HOURS_PER_DAY).astype(np.int32)
    return (1 + (hours // HOURS_PER_DAY + EPOCH_WEEKDAY) % DAYS_PER_WEEK).astype(np.int32)
