"""Reads dates as moments, and rejects those outside the calendar.

Databases store "infinity" as a date of millions of years ahead.
"""

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


def in_zone(value: pl.Expr, zone: str) -> pl.Expr:
    """Moments of local times without a zone: the first of two, and as much after a gap as they lie in it."""
    later = (0, 1, 24)  # hours: clocks skip one in spring, and skipped a day where the date line moved
    moments = [
        (value + pl.duration(hours=h)).dt.replace_time_zone(zone, ambiguous="earliest", non_existent="null")
        for h in later
    ]
    return value.dt.replace_time_zone(zone) if zone == "UTC" else pl.coalesce(moments).dt.convert_time_zone("UTC")


def from_iso(value: pl.Expr, zone: str) -> pl.Expr:
    """Microseconds since 1970 of ISO-8601 texts, null where a text is none; a zone for those that name none."""
    text = value.str.strip_chars().str.replace(r"^([\d-]+)[ t]", "${1}T")
    # BigQuery writes UTC, Go after an offset.
    text = text.str.replace(r"(?i)( \+0000 UTC| ?UTC|Z)$", "+00:00")
    # Basic form, without separators.
    text = text.str.replace(r"^(\d{4})(\d\d)(\d\d)T(\d\d)(\d\d)(\d\d)", "${1}-${2}-${3}T${4}:${5}:${6}")
    text = text.str.replace(r"^(\d{4}-\d\d-\d\d)$", "${1}T00:00:00")
    text = text.str.replace(r"(T[\d:.]+[+-]\d\d)$", "${1}:00")
    text = text.str.replace(r"T(\d\d:\d\d)($|[+-])", "T${1}:00${2}")
    local = text.str.contains(r"T[\d:.]+$")
    text = text.str.replace(r"(T[\d:.]+)$", "${1}+00:00")
    # A year of two digits is none: %Y would read the day of 31-12-23 as one.
    text = pl.when(text.str.contains(r"^[+-]?\d{4,}-")).then(text)
    parsed = text.str.to_datetime("%Y-%m-%dT%H:%M:%S%.f%z", time_unit="us", time_zone="UTC", strict=False)
    # Beyond these years a zone's shift may leave what polars can hold.
    inside = seconds_of(parsed.to_physical(), pl.Datetime("us")).is_between(FIRST, LAST)
    parsed = pl.when(inside).then(parsed)
    if zone != "UTC":
        parsed = pl.when(local).then(in_zone(parsed.dt.replace_time_zone(None), zone)).otherwise(parsed)
    return parsed.to_physical()
