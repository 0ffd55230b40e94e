"""Holds all events as compact arrays in file order, and numbers their ids."""

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from pipelines.dataset.manifest import Kind
from pipelines.ingest.formats.column_names import Roles
from pipelines.ingest.formats.rejects import Rejects
from towers.data.events import Floats, Int32s, Int64s


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
        split: [E] 0 train, 1 valid, 2 test as given by the files, or None.
        context: the events' own columns, or None.
        context_kinds: kinds of those columns.
        user_ids: the id of each user code.
        item_ids: the id of each item code.
        roles: their columns by role, those of the first file.
        paths: the files.
        dropped: how many events each rule of the recipe dropped.
    """

    user: Int32s
    item: Int32s
    row: NDArray[np.uint32]
    file: NDArray[np.uint16] | None
    time: Int64s | None
    time_unit: str | None
    weight: Floats | None
    split: NDArray[np.uint8] | None
    context: pl.DataFrame | None
    context_kinds: dict[str, Kind]
    user_ids: pl.Series
    item_ids: pl.Series
    roles: Roles
    paths: list[Path]
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
        for name in ("user", "item", "row", "file", "time", "weight", "split"):
            if (values := getattr(self, name)) is not None:
                setattr(self, name, values[mask])
        if self.context is not None:
            self.context = self.context.filter(pl.Series(mask))

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
