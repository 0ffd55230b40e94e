"""Rejects dates outside the calendar: databases store "infinity" as one of millions of years ahead."""

from pathlib import Path

import polars as pl

from pipelines.dataset.popularity import TICKS_PER_S
from pipelines.ingest.formats.rejects import Rejects

# Years 1 to 9999, in seconds since 1970.
FIRST, LAST = -62_135_596_800, 253_402_300_799
DAY = 86_400
OUTSIDE = "a date outside the years 1 to 9999"


def in_calendar(frame: pl.DataFrame, column: str, path: Path, rejects: Rejects) -> pl.DataFrame:
    """Rejects the rows with a date outside the calendar; they are shown as the numbers that the file stores.

    Args:
        frame: a batch with `ROW`.
        column: of dates, or of lists of them.
        path: the file, for messages.
        rejects: receives bad rows.

    Raises:
        DataError: a bad row that is not skipped.
    """
    dtype, value = frame.schema[column], pl.col(column)
    if isinstance(dtype, pl.List | pl.Array):
        count = value.cast(pl.List(pl.Int64))
        outside = count.list.eval(~seconds_of(pl.element(), dtype.inner).is_between(FIRST, LAST)).list.any()
    else:
        count = value.to_physical().cast(pl.Int64)
        outside = ~seconds_of(count, dtype).is_between(FIRST, LAST)
    return rejects.split_off(frame, outside, path, column, OUTSIDE, count)


def seconds_of(count: pl.Expr, dtype: object) -> pl.Expr:
    """The whole seconds since 1970 of dates of a type, Date or Datetime, from the numbers that it stores."""
    return count // TICKS_PER_S[dtype.time_unit] if isinstance(dtype, pl.Datetime) else count * DAY
