"""Looked-up features of a whole data set, and the gather that turns users and items into a batch of them.

`FeatureEncoder.lookup` makes the arrays once, for every user, item and event. A batch gets features by name:
rows `[B]`, `[B, L]` or `[B, L, 2]`, numbers `[B, 2]` and vectors `[B, L + 1]`; `bagged` makes them input of a `Tower`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from towers.data.bags import MISSING, distinct_bag
from towers.data.clocks import clock_rows
from towers.data.events import Events, Int16s, Int32s, Int64s, Past, of_types
from towers.data.history import earlier, others, targets
from towers.data.packing import UNKNOWN_GAP, gap_buckets, packed

Array = NDArray[Any]


@dataclass(frozen=True)
class HistoryTable:
    """The items of a history feature.

    Attributes:
        rows: [N] row of each item in the history table.
        length: maximum number of items in one history.
        types: the numbers of the types of its events; none: all types.
        others: whether the history of a training example holds all its user's other events, not only earlier ones.
            Neighbours then are a node of the graph, which holds the example's own event, too.
    """

    rows: Int32s
    length: int
    types: tuple[int, ...] = field(default=(), kw_only=True)
    others: bool = field(default=False, kw_only=True)

    def known_past(self, events: Events) -> Past:
        """The events of its types whose items have a row: any other item tells a query nothing."""
        marks = self.rows != MISSING
        return events.past_of(self.types) if marks.all() else Past.of(events.past, self.types, marks)


@dataclass(frozen=True)
class SequenceTable(HistoryTable):
    """A history table whose `time_gaps` says whether the times between its items are used."""

    time_gaps: bool = False


@dataclass(frozen=True)
class FeatureTables:
    """Looked-up features of a data set.

    Attributes:
        users: by feature, for every user: [U], [U, L] or, of numbers, float32 [U, 2] or [U, L + 1].
        items: by feature, for every item.
        context: by feature, for every training event.
        clocks: by feature, "hour" or "weekday".
        histories: by feature.
        missing: by context feature, the result of `lookup` for a missing value.
        neighbours: by query feature, the table row of each item as a user's neighbour, among `others` or earlier ones.
        audiences: by candidate feature, the table row of each user as an item's neighbour: [U]; `items` then has [N]
            item numbers.
        companions: by candidate feature, the table row of each item as another's companion: [N]; `items` then has [N]
            item numbers.
        sequences: by feature; not among the features of examples, because `towers.data.sequence_examples` makes those
            for a whole batch.
        item_columns: by embedding table, the looked-up column of each item: [N] or [N, L]; of the columns that
            histories read.
        ticks_per_second: unit of the events' times.
        time_zone: IANA name of the time zone of the clocks.
    """

    users: Mapping[str, Array]
    items: Mapping[str, Array]
    context: Mapping[str, Array] = field(default_factory=dict)
    clocks: Mapping[str, str] = field(default_factory=dict)
    histories: Mapping[str, HistoryTable] = field(default_factory=dict)
    missing: Mapping[str, Array] = field(default_factory=dict)
    neighbours: Mapping[str, HistoryTable] = field(default_factory=dict)
    audiences: Mapping[str, Int32s] = field(default_factory=dict)
    companions: Mapping[str, Int32s] = field(default_factory=dict)
    sequences: Mapping[str, SequenceTable] = field(default_factory=dict)
    item_columns: Mapping[str, Array] = field(default_factory=dict)
    ticks_per_second: int = 1
    time_zone: str = "UTC"

    def of_examples(self, events: Events, example: Int64s, positives: int = 1) -> dict[str, Array]:
        """Query features of training events `example` [B], each as it was before its event.

        Args:
            positives: number of items to find: the example's own and those that follow it (`towers.data.history`).
        """
        user = events.user[example]
        features = {name: table[user] for name, table in self.users.items()}
        features |= {name: table[example] for name, table in self.context.items()}
        for name, kind in self.clocks.items():
            seconds = events.time[example] // self.ticks_per_second if events.time is not None else None
            features[name] = clock_rows(kind, seconds, len(example), self.time_zone)
        for name, history in self.histories.items():
            features[name] = example_histories(events, example, history, positives)
        for name, graph in self.neighbours.items():
            features[name] = user if graph.others else example_histories(events, example, graph, positives)
        return features

    def of_users(
        self,
        user: Int32s,
        offsets: Int64s,
        items: Int32s,
        times: Int64s | None = None,
        types: Int16s | None = None,
    ) -> dict[str, Array]:
        """Query features of `user` [Q] outside any event: context and clock are missing.

        Args:
            offsets: [Q + 1]; the history of query q is ``items[offsets[q]:offsets[q + 1]]``, newest last.
            times: of those items, in ticks; without them all time gaps are unknown.
            types: the numbers of the types of their events; without them none has one.
        """
        features = {name: table[user] for name, table in self.users.items()}
        for name, value in self.missing.items():
            features[name] = np.broadcast_to(value, (len(user), *value.shape))
        for name, kind in self.clocks.items():
            features[name] = clock_rows(kind, None, len(user))
        for name, history in self.histories.items():
            bounds, own = offsets, items
            if history.types:
                _, own, bounds = _chosen(history, offsets, items, types, known=False)
            features[name] = windows(bounds[:-1], bounds[1:], own, history)
        for name, graph in self.neighbours.items():
            _, own, bounds = _chosen(graph, offsets, items, types)
            features[name] = windows(bounds[:-1], bounds[1:], own, graph)
        for name, sequence in self.sequences.items():
            features[name] = self._ordered(sequence, offsets, items, times, types)
        return features

    def gaps(self, time: Int64s, before: Int64s) -> Int32s:
        """The buckets of the times, in ticks, since those before; between whole seconds, as requests have them."""
        return gap_buckets(time // self.ticks_per_second - before // self.ticks_per_second)

    def _ordered(
        self, table: SequenceTable, offsets: Int64s, items: Int32s, times: Int64s | None, types: Int16s | None
    ) -> Int32s:
        """Row and time gap of the last known items: [Q, L, 2]."""
        places, known, offsets = _chosen(table, offsets, items, types)
        start, end = offsets[:-1], offsets[1:]
        rows = windows(start, end, known, table)
        gaps = np.full(rows.shape, UNKNOWN_GAP, np.int32)
        if table.time_gaps and times is not None and len(known):
            taken = times[places]
            since = self.gaps(taken, np.roll(taken, 1))
            places = end[:, None] + np.arange(-table.length, 0)
            # The oldest item of a history has no gap.
            younger = places > np.maximum(start, end - table.length)[:, None]
            gaps = np.where(younger, since[np.where(younger, places, 0)], gaps)
        return np.stack([rows, gaps], axis=2)


def _chosen(
    table: HistoryTable, offsets: Int64s, items: Int32s, types: Int16s | None, *, known: bool = True
) -> tuple[Int64s, Int32s, Int64s]:
    """Places, items and offsets of the items whose events are of the table's types.

    With `known`, only of those that have a row: any other counts as never taken, as in the graph.
    """
    begin, end = int(offsets[0]), int(offsets[-1])
    kept = np.ones(end - begin, np.bool_)
    if known:
        kept = table.rows[items[begin:end]] != MISSING
    if table.types:
        kept &= False if types is None else of_types(types[begin:end], table.types)
    places = begin + np.flatnonzero(kept)
    return places, items[places], np.concatenate([np.zeros(1, np.int64), np.cumsum(kept)])[offsets - begin]


def bagged(features: Mapping[str, Array]) -> dict[str, Any]:
    """The features of a batch as input for a tower.

    Rows become int64, because TensorFlow has no int32 arithmetic on a GPU. Each list `[B, L]` becomes a `Bag` of its
    distinct rows, each ordered history `[B, L, 2]` a `Sequences`.
    """
    return {name: _as_input(rows) for name, rows in features.items()}


def _as_input(rows: Array) -> Any:
    if rows.dtype.kind == "f":
        return rows
    if rows.ndim == 3:
        return packed(rows)
    return distinct_bag(rows) if rows.ndim == 2 else rows.astype(np.int64)


def windows(start: Int64s, end: Int64s, items: Int32s, history: HistoryTable) -> Int32s:
    """The last `history.length` items of each range, right-aligned: int32 [B, L] table rows, MISSING on the left."""
    count = np.minimum(end - start, history.length)
    # Flat, so that only existing items are looked up: the places of each range follow those of the one before.
    places = np.repeat(end - np.cumsum(count), count) + np.arange(count.sum())
    rows = np.full((len(count), history.length), MISSING, np.int32)
    rows[np.arange(history.length) >= history.length - count[:, None]] = history.rows.take(items.take(places))
    return rows


def example_histories(events: Events, example: Int64s, history: HistoryTable, positives: int = 1) -> Int32s:
    """Table rows [B, L] of the histories of training events, each with `positives` targets."""
    user, past = events.user[example], events.past_of(history.types)
    if events.history_end is not None and not history.others:
        start, end = earlier(events, user, example)
        return windows(past.places(start), past.places(end), past.item, history)
    items, other = others(events, past, user, *targets(events, example, positives), history.length)
    return np.where(other, history.rows.take(items), np.int32(MISSING))
