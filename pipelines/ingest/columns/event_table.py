"""Holds all events as compact arrays in file order, and numbers their ids."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from pipelines.dataset.manifest import Kind
from pipelines.ingest.formats.column_names import Roles
from pipelines.ingest.formats.rejects import Rejects
from towers.data.blocks import blocks
from towers.data.events import Floats, Int16s, Int32s, Int64s

RANGE_EVENTS = 1 << 22


@dataclass
class EventTable:
    """Events in file order; `keep` filters all columns at once.

    Attributes:
        user: [E] codes into `user_ids`.
        item: [E] codes into `item_ids`.
        row: [E] row in its file.
        file: [E] number of the file in `paths`, or None for a single file.
        time: [E], or None.
        time_unit: unit of `time`; "order" for the place in the file, None without times.
        weight: [E], or None.
        type: [E] numbers of `types`, -1 for an event without a type; None if no event has one.
        split: [E] 0 train, 1 valid, 2 test as given by the files, or None.
        context: the events' own columns, or None.
        context_kinds: kinds of those columns.
        user_ids: the id of each user code.
        item_ids: the id of each item code.
        types: the types of the events, in alphabetical order.
        roles: their columns by role, those of the first file.
        paths: the files.
        dates: whether the times were written as dates.
        dropped: how many events each rule of the recipe dropped.
    """

    user: Int32s
    item: Int32s
    row: NDArray[np.uint32]
    file: NDArray[np.uint16] | None
    time: Int64s | None
    time_unit: str | None
    weight: Floats | None
    type: Int16s | None
    split: NDArray[np.uint8] | None
    context: pl.DataFrame | None
    context_kinds: dict[str, Kind]
    user_ids: pl.Series
    item_ids: pl.Series
    types: tuple[str, ...]
    roles: Roles
    paths: list[Path]
    dates: bool = False
    dropped: dict[str, int] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.user)

    def keep(self, mask: NDArray[np.bool_], rule: str | None = None) -> None:
        """Drops the events where `mask` is False and, if `rule` is given, counts them under it."""
        gone = int(len(mask) - np.count_nonzero(mask))
        if not gone:
            return
        if rule is not None:
            self.dropped[rule] = self.dropped.get(rule, 0) + gone
        for name in ("user", "item", "row", "file", "time", "weight", "type", "split"):
            if (values := getattr(self, name)) is not None:
                setattr(self, name, _compressed(values, mask))
        if self.context is not None:
            self.context = self.context.filter(pl.Series(mask))

    def release(self, *names: str) -> None:
        """Gives back the memory of columns that nothing reads from here on; they are then empty."""
        for name in names:
            if (values := getattr(self, name)) is not None:
                setattr(self, name, values[:0].copy())

    def reject(self, bad: NDArray[np.bool_], column: str, reason: str, values: pl.Series, rejects: Rejects) -> None:
        """Rejects the events where `bad` holds; `values` [E] are the values as read."""
        if not bad.any():
            return
        places = np.flatnonzero(bad)
        files = np.zeros(len(places), np.uint16) if self.file is None else self.file[places]
        for number in np.unique(files):
            chosen = places[files == number]
            rejects.add(self.paths[number], column, reason, pl.Series(self.row[chosen]), values[chosen])
        self.keep(~bad)


def _compressed(values: NDArray[Any], mask: NDArray[np.bool_]) -> NDArray[Any]:
    """The values where `mask` holds, moved to the front of `values`: a copy would double the memory."""
    end = 0
    for block in blocks(values):
        part = values[block][mask[block]]
        values[end : end + len(part)] = part
        end += len(part)
    return values[:end]


def renumber(codes: Int32s, numbers: Int32s) -> None:
    """Replaces each code [E] by its number."""
    for block in blocks(codes):
        codes[block] = numbers[codes[block]]


def counts_of(codes: Int32s, size: int, chosen: NDArray[np.bool_] | None = None) -> Int64s:
    """Counts the events of each code, [size]; only where `chosen` [E] holds."""
    counts = np.zeros(size, np.int64)
    for block in blocks(codes):
        counts += np.bincount(codes[block] if chosen is None else codes[block][chosen[block]], minlength=size)
    return counts


def among(codes: Int32s, good: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """[E] whether the code of each event is among the good ones."""
    found = np.empty(len(codes), bool)
    for block in blocks(codes):
        found[block] = good[codes[block]]
    return found


def user_ranges(user: Int32s, users: int) -> Iterator[Int64s]:
    """Yields the places of the events of consecutive ranges of users, in the order of the table.

    A range has about `RANGE_EVENTS` events, so that what sorts them takes little memory.
    """
    ends = np.cumsum(counts_of(user, users))
    bounds = np.searchsorted(ends, np.arange(RANGE_EVENTS, len(user), RANGE_EVENTS)) + 1
    for low, high in pairwise(np.unique(np.concatenate(([0], bounds, [users])))):
        yield np.flatnonzero((user >= low) & (user < high))


class Codes:
    """Numbers strings in order of first appearance, across batches."""

    def __init__(self, first: pl.Series | None = None) -> None:
        self._categories = pl.Categories.random()
        # polars drops the categories with the last series that uses them, so this empty one stays alive.
        self._alive = pl.Series(dtype=pl.Categorical(self._categories))
        self.known = 0
        if first is not None:
            self.encode(first)
            self.known = len(first)

    def encode(self, values: pl.Series) -> Int32s:
        """Returns the code of each string."""
        return values.cast(pl.Categorical(self._categories)).to_physical().cast(pl.Int32).to_numpy()

    def strings(self) -> pl.Series:
        """Returns the string of each code."""
        return self._categories.to_series()
