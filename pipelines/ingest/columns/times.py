"""Parses event times (numbers, ISO-8601 text, date columns) to integers of one unit, and rejects rows that fit none.

Numbers of different magnitudes (seconds beside milliseconds, say) are rejected: they would silently sort wrongly. Dates
written as numbers (20240131) are read as dates. What most times of the first batch are decides, so that one bad time
there is one bad row.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from pipelines.dataset.popularity import TICKS_PER_S
from pipelines.errors import DataError
from pipelines.ingest.columns.dates import from_iso, in_calendar, in_zone
from pipelines.ingest.columns.likely_times import wanted_times
from pipelines.ingest.columns.spool import Spool
from pipelines.ingest.formats.rejects import Rejects
from towers.data.events import Int64s

UNITS = ("s", "ms", "us", "ns")
# Below 1e11 a number is read as seconds (until the year 5138), below 1e14 as milliseconds, and so on.
LIMITS = (1e11, 1e14, 1e17, 9e18)
LOGGED = (631_152_000, 4_102_444_800)  # in seconds, 1990 to 2100: the times that logs of events hold
# A clock with its own start has at least this share of its small numbers outside `LOGGED` of coarser units. If its
# events are evenly spread, it has 0.15 or more, however long it runs.
OWN_START = 0.1
# Dates written as numbers, of the years 1900 to 2199, by their digits. As counts since 1970, 8 digits would be seconds
# of that year, 12 milliseconds of 1976 to 1979, 14 milliseconds after 2500.
CALENDAR = {8: "%Y%m%d", 12: "%Y%m%d%H%M", 14: "%Y%m%d%H%M%S"}
# For times with fractions. Nanoseconds, which 64 bits hold until 2262 only, stay what they are.
FINER = {"s": ("us", 10**6), "ms": ("us", 10**3), "us": ("us", 1), "ns": ("ns", 1)}


class TimeColumn:
    """Parses the time column of a data set's events, batch by batch; all files must agree on its form and unit.

    Args:
        unit: ``data.time_unit``; "auto" infers it from the magnitude of most times of the first batch.
        zone: ``data.time_zone``, of dates and times that name none.
        rejects: receives bad rows.
    """

    def __init__(self, unit: str, zone: str, rejects: Rejects) -> None:
        self.rejects, self.zone = rejects, zone
        self.stated = None if unit == "auto" else unit
        self.unit: str | None = None
        self._dates: bool | None = None
        self._calendar: str | None = None
        self._small = False
        self._of_our_days = False  # most times are seconds of 1990 to 2100

    @property
    def dates(self) -> bool:
        """Whether the column holds dates, in the file's type, as texts or as numbers such as 20240131."""
        return bool(self._dates) or self._calendar is not None

    def parse(self, frame: pl.DataFrame, path: Path, column: str, others: Sequence[str] = ()) -> pl.DataFrame:
        """Converts the column to Int64, or Float64 if it has fractions, and rejects rows without a valid time.

        Where the first rows have none, the error names one of the `others` that looks like times.

        Raises:
            DataError: a bad row that is not skipped, a column type that cannot hold times, or dates beside numbers.
        """
        dtype = frame.schema[column]
        value = pl.col(column)
        remedy = wanted_times(frame.select(others)) if self._dates is None else ""
        frame = self.rejects.split_off(frame, value.is_null(), path, column, "no time", remedy=remedy)
        if frame.is_empty():
            return frame.with_columns(value.cast(pl.Int64, strict=False))
        if dtype == pl.String:
            dates = _are_dates(frame[column], self.zone) if self._dates is None else self._dates
            frame = self._text(frame, path, column, remedy, dates=dates)
            if frame.is_empty():  # which tells nothing about the next batch
                return frame.with_columns(value.cast(pl.Int64, strict=False))
        elif dtype in (pl.Datetime, pl.Date):
            dates = True
            frame = in_calendar(frame, column, path, self.rejects)
            zoned = isinstance(dtype, pl.Datetime) and dtype.time_zone is not None
            moment = value.cast(pl.Datetime("us"))
            frame = frame.with_columns((moment if zoned else in_zone(moment, self.zone)).to_physical())
        elif dtype.is_numeric():
            dates = False
            if dtype.is_float():
                frame = self.rejects.split_off(frame, ~value.is_finite(), path, column, "no number")
                if frame.is_empty():
                    return frame.with_columns(value.cast(pl.Int64, strict=False))
        else:
            raise DataError(f"{path}, column {column!r}: wrong type: a time is a number or a date, got {dtype}")
        if self._dates is not None and dates != self._dates:
            here, there = ("dates", "plain numbers") if dates else ("plain numbers", "dates")
            raise DataError(f"{path}, column {column!r}: {here} here, {there} in an earlier file")
        self._dates = dates
        if dates:
            self.unit = "us"
            return frame
        return self._numbers(frame, path, column)

    def _text(self, frame: pl.DataFrame, path: Path, column: str, remedy: str, *, dates: bool) -> pl.DataFrame:
        value = pl.col(column)
        parsed = from_iso(value, self.zone) if dates else value.str.strip_chars().cast(pl.Int64, strict=False)
        frame = frame.with_columns(parsed.alias("__time__"))
        if frame["__time__"].null_count() and dates:
            wrong = "not an ISO-8601 date and time of the years 1 to 9999"
            none = pl.col("__time__").is_null()
            frame = self.rejects.split_off(frame, none, path, column, wrong, remedy=remedy)
        elif frame["__time__"].null_count():
            broken = value.str.strip_chars().cast(pl.Float64, strict=False)
            frame = frame.with_columns(broken.alias("__broken__"))
            frame = self.rejects.split_off(frame, pl.col("__broken__").is_null(), path, column, "not a number")
            # Checked here, while the value is still text: 1e400 also parses as infinite.
            endless = pl.col("__broken__").is_nan() | pl.col("__broken__").is_infinite()
            frame = self.rejects.split_off(frame, endless, path, column, "no number")
            if frame["__time__"].null_count():
                frame = frame.with_columns(pl.col("__broken__").alias("__time__"))
            frame = frame.drop("__broken__")
        return frame.with_columns(pl.col("__time__").alias(column)).drop("__time__")

    def _numbers(self, frame: pl.DataFrame, path: Path, column: str) -> pl.DataFrame:
        value = pl.col(column)
        size = value.cast(pl.Float64).abs()
        if self.unit is None:
            self.unit, self._calendar = (self.stated, None) if self.stated else _usual_form(frame[column])
            self._small = bool(self.stated) and self._has_own_start(frame, size)
            logged = frame.select(_logged(size, "s").sum()).item()
            self._of_our_days = self.unit == "s" and bool(2 * logged > frame.height)
        if self._calendar is not None:
            return self._from_calendar(frame, path, column, self._calendar)
        frame = self._in_unit(frame, path, column, size)
        if frame.schema[column].is_integer() or frame.select((value == value.floor()).all()).item():
            return frame.with_columns(value.cast(pl.Int64))
        return frame.with_columns(value.cast(pl.Float64))

    def _has_own_start(self, frame: pl.DataFrame, size: pl.Expr) -> bool:
        """Whether most numbers are smaller than times since 1973, and not just because they are of a coarser unit."""
        assert self.unit is not None
        small = size < _least(self.unit)
        coarser = pl.any_horizontal(pl.lit(False), *(_logged(size, unit) for unit in UNITS[: UNITS.index(self.unit)]))
        below, own = frame.select(small.sum(), (small & ~coarser).sum().alias("own")).row(0)
        return bool(2 * below > frame.height and own >= OWN_START * below)

    def _in_unit(self, frame: pl.DataFrame, path: Path, column: str, size: pl.Expr) -> pl.DataFrame:
        """Rejects the numbers of another unit, and names it if they are times of our days in it."""
        assert self.unit is not None
        if self._of_our_days:
            date = (size >= 19_000_000) & (size < 22_000_000)  # as seconds, of 1970
            frame = self.rejects.split_off(frame, date, path, column, "a date of 8 digits; most times are in 's'")
        # A clock that counts from its own start may stay below all times since 1973, but not beside such times.
        wrong = (size >= LIMITS[UNITS.index(self.unit)]) | ((size < _least(self.unit)) != self._small)
        if not frame.select(wrong.any()).item():
            return frame
        told = f"data.time_unit says {self.unit!r}" if self.stated else f"most times are in {self.unit!r}"
        remedy = "" if self.stated else " (or set data.time_unit)"
        for unit in UNITS:
            if unit != self.unit:
                reason = f"another time unit: {told}, this looks like {unit!r}{remedy}"
                frame = self.rejects.split_off(frame, wrong & _logged(size, unit), path, column, reason)
        reason = f"another time unit: {told}, this magnitude is another{remedy}"
        return self.rejects.split_off(frame, wrong, path, column, reason)

    def _from_calendar(self, frame: pl.DataFrame, path: Path, column: str, form: str) -> pl.DataFrame:
        text = pl.col(column).cast(pl.Int64, strict=False).cast(pl.String)
        digits = next(count for count, each in CALENDAR.items() if each == form)
        moment = text.str.to_datetime(form, time_unit="us", strict=False)
        wrong = moment.is_null() | (text.str.len_chars() != digits) | (pl.col(column) % 1 != 0)
        reason = f"no date of {digits} digits, as most times are (data.time_unit says that these are no dates)"
        frame = self.rejects.split_off(frame, wrong, path, column, reason)
        self.unit = "us"
        return frame.with_columns(in_zone(moment, self.zone).to_physical())

    def finish(self, times: Spool) -> Int64s:
        """Returns all times as int64; if some have fractions, in microseconds or nanoseconds, which `unit` names."""
        scale = None
        if any(dtype.kind == "f" for dtype in times.dtypes):
            self.unit, scale = FINER[self.unit or "s"]
        whole: Int64s = times.joined(np.int64, scale)
        return whole


def _are_dates(texts: pl.Series, zone: str) -> bool:
    """Whether most texts that are a date or a number are dates; if as many are numbers, the first of them decides."""
    number = texts.str.strip_chars().cast(pl.Float64, strict=False).is_finite().fill_null(False).to_numpy()
    if number.all() or not number.any():
        return not number.any()
    date = pl.select(from_iso(pl.lit(texts), zone).is_not_null()).to_series().to_numpy()
    numbers, dates = np.count_nonzero(number), np.count_nonzero(date)
    return bool(np.argmax(date) < np.argmax(number)) if numbers == dates else bool(dates > numbers)


def _usual_form(numbers: pl.Series) -> tuple[str, str | None]:
    """The unit of most numbers, or the form of dates if they are some; of two as frequent ones, that of the first."""
    numbers = numbers.cast(pl.Float64)
    kinds = np.searchsorted(LIMITS[:3], np.abs(numbers.to_numpy()), side="right")
    for place, (digits, form) in enumerate(CALENDAR.items(), start=len(UNITS)):
        kinds[_in_form(numbers, digits, form)] = place
    counts = np.bincount(kinds)
    usual = int(kinds[counts[kinds] == counts.max()][0])
    return (UNITS[usual], None) if usual < len(UNITS) else ("us", [*CALENDAR.values()][usual - len(UNITS)])


def _in_form(numbers: pl.Series, digits: int, form: str) -> NDArray[np.bool_]:
    """Whether numbers are dates of so many digits, of the years 1900 to 2199."""
    year = 10 ** (digits - 4)
    some = (numbers >= 1900 * year) & (numbers < 2200 * year) & (numbers == numbers.floor())
    found: NDArray[np.bool_] = some.to_numpy().copy()
    texts = numbers.filter(some).cast(pl.Int64).cast(pl.String)
    found[found] = texts.str.to_datetime(form, time_unit="us", strict=False).is_not_null().to_numpy()
    return found


def _least(unit: str) -> float:
    """The size from which `LIMITS` reads a number as one of this unit."""
    place = UNITS.index(unit)
    return LIMITS[place - 1] if place else 0.0


def _logged(size: pl.Expr, unit: str) -> pl.Expr:
    """Whether a number, read in this unit, is a time as logs of events hold them."""
    first, last = (second * TICKS_PER_S[unit] for second in LOGGED)
    return (size >= first) & (size < last)
