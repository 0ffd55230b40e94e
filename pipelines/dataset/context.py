"""Reads the events' own columns (device, …) in blocks, because they have as many rows as there are events."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import polars as pl

ROWS = 100_000  # rows per read


@dataclass(frozen=True)
class Context:
    """Event columns.

    Attributes:
        table: their rows, in the order of the events.
    """

    table: pl.LazyFrame

    @cached_property
    def rows(self) -> int:
        """Number of rows."""
        return int(self.table.select(pl.len()).collect().item())

    def blocks(self, column: str) -> Iterator[pl.Series]:
        """Yields the values of one column, in the order of the events; one empty block if there are none."""
        begin, more = 0, True
        while more:
            part = self.table.select(column).slice(begin, ROWS).collect()[column]
            yield part
            begin, more = begin + ROWS, len(part) == ROWS
