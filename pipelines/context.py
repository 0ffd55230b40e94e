"""The events' own columns (device, …), read a block at a time: they are as long as the events.

In: Parquet files. Out: `Context`, whose rows are those of the events.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import polars as pl

ROWS = 100_000  # read at once


@dataclass(frozen=True)
class Context:
    """Columns in Parquet files.

    Attributes:
        files: one after another.
    """

    files: list[Path]

    @cached_property
    def rows(self) -> int:
        """How many there are."""
        return int(pl.scan_parquet(self.files).select(pl.len()).collect().item())

    def blocks(self, column: str) -> Iterator[pl.Series]:
        """The values of one column, in the order of the events; one empty block where there are none."""
        begin, more = 0, True
        while more:
            part = pl.scan_parquet(self.files).select(column).slice(begin, ROWS).collect()[column]
            yield part
            begin, more = begin + ROWS, len(part) == ROWS
