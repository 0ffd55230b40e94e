"""Training batches of whole histories: self-attention runs once over a history, for all of the user's events at once.

Batches have as many examples as those of `towers.data.examples`; their sequence features are `Sequences`. There is no
state: what is cached is a function of the epoch.

A user's history is cut into windows of at most `length` items. An event with at most `length` items before it sees all
of them. Later windows begin half a length apart, so that each event is in one window and sees at least half a length.
A batch is a contiguous part of the windows in a seeded order.
"""

from collections.abc import Collection
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from towers.data.blocks import blocks
from towers.data.events import Events, Int64s, Past
from towers.data.examples import Examples
from towers.data.feature_tables import FeatureTables, SequenceTable
from towers.data.history import earlier
from towers.data.packing import NO_PLACE, UNKNOWN_GAP, Sequences, packed_windows
from towers.data.shuffle import order_key, shuffled


@dataclass(frozen=True)
class SequenceExamples(Examples):
    """Batches whose examples come window by window; the events must be timed.

    Attributes:
        alone: whether queries have no features but histories. An event without one, a user's first, would then train
            nothing, so it is no example (see `example_counts`).
    """

    alone: bool = False
    _orders: dict[int, tuple[Int64s, Int64s]] = field(init=False, repr=False, compare=False, default_factory=dict)

    def __len__(self) -> int:
        return int(self._windows[1].sum())

    def chosen(self, epoch: int, steps: range) -> Int64s:
        """The events [S, B] that are the examples of some steps: each step has a part of the epoch's windows."""
        return np.stack([self._chosen(epoch, step) for step in steps])

    def queries(self, example: Int64s) -> list[dict[str, Any]]:
        """The query features of examples [S, B], as input for a tower: those of each step."""
        return [
            query
            | {name: self._sequences(own, table, self._pasts[name]) for name, table in self.tables.sequences.items()}
            for own, query in zip(example, super().queries(example), strict=True)
        ]

    def _chosen(self, epoch: int, step: int) -> Int64s:
        """The events [B] of one step, in rising order."""
        begin = step * self.batch_size
        end = min(begin + self.batch_size, len(self))
        order, ends = self._order(epoch)
        low, high = np.searchsorted(ends, begin, side="right"), np.searchsorted(ends, end, side="left")
        first, count = (part[order[low : high + 1]] for part in self._windows)
        before = np.cumsum(count) - count
        stretch = np.repeat(first - before, count) + np.arange(count.sum())
        skipped = begin - (ends[low] - count[0])
        return np.sort(stretch[skipped : skipped + end - begin])

    @property
    def _length(self) -> int:
        return min(table.length for table in self.tables.sequences.values())

    @cached_property
    def _windows(self) -> tuple[Int64s, Int64s]:
        """[W] the first example of each window, and the number of its examples, which are consecutive events."""
        firsts, counts = [], []
        pasts = known_pasts(self.events, self.tables) if self.alone else []
        for block in blocks(self.events.item):
            event = np.arange(block.start, block.stop)
            if self.alone:
                event = event[_with_history(self.events, event, pasts)]
            start, _ = self._shown(event, self._length, self.events.past_of(()))
            changed = np.flatnonzero(np.diff(start, prepend=-1))
            firsts.append(event[changed])
            counts.append(np.diff(changed, append=len(event)))
        return np.concatenate(firsts), np.concatenate(counts)

    def _order(self, epoch: int) -> tuple[Int64s, Int64s]:
        """[W] the windows in the order of an epoch, and the number of examples up to the end of each."""
        found = self._orders.get(epoch)
        if found is None:
            count = self._windows[1]
            order = shuffled(np.arange(len(count)), len(count), order_key(self.seed, epoch))
            found = order, np.cumsum(count[order])
            # Another thread may do the same.
            self._orders.clear()
            self._orders[epoch] = found
        return found

    def _shown(self, event: Int64s, length: int, past: Past) -> tuple[Int64s, Int64s]:
        """Start and end, in `past`, of the part of each event's history that its window shows."""
        begin, end = map(past.places, earlier(self.events, self.events.user[event], event))
        step = (length + 1) // 2
        beyond = np.maximum(end - begin - length, 0)
        return begin + step * -(-beyond // step), end

    @cached_property
    def _pasts(self) -> dict[str, Past]:
        return {name: table.known_past(self.events) for name, table in self.tables.sequences.items()}

    def _sequences(self, example: Int64s, table: SequenceTable, past: Past) -> Sequences:
        """The windows of examples [B], each as long as the longest history that ends in it."""
        begin, end = self._shown(example, table.length, past)
        start, first, window = np.unique(begin, return_index=True, return_inverse=True)
        lengths = np.maximum.reduceat(end, first) - start
        step = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        places = np.repeat(start, lengths) + step
        rows = table.rows[past.item[places]]
        gaps = np.full(len(rows), UNKNOWN_GAP, np.int32)
        if table.time_gaps and past.time is not None:
            later = step > 0
            gaps[later] = self.tables.gaps(past.time[places[later]], past.time[places[later] - 1])
        windows, begins = packed_windows(np.stack([rows, gaps], axis=1), lengths, table.length)
        return windows._replace(place=np.where(end > begin, begins[window] + end - begin - 1, NO_PLACE))


def known_pasts(events: Events, tables: FeatureTables) -> list[Past]:
    """Of each history of a query the events that tell something: of its types, and their items have a row."""
    return [table.known_past(events) for table in (*tables.histories.values(), *tables.sequences.values())]


def example_counts(events: Events, size: int, tables: FeatureTables) -> Int64s:
    """How often each of `size` items is the item of an example if queries have no features but histories: [size]."""
    counts, pasts = np.zeros(size, np.int64), known_pasts(events, tables)
    for block in blocks(events.item):
        example = _with_history(events, np.arange(block.start, block.stop), pasts)
        counts += np.bincount(events.item[block][example], minlength=size)
    return counts


def _with_history(events: Events, event: Int64s, pasts: Collection[Past]) -> NDArray[np.bool_]:
    """Which of some events have an earlier one of their user in one of the pasts."""
    begin, end = earlier(events, events.user[event], event)
    some: NDArray[np.bool_] = np.zeros(len(event), np.bool_)
    for past in pasts:
        some |= past.places(end) > past.places(begin)
    return some
