"""Parses event times (numbers, ISO-8601 text, date columns) to integers of one unit, and rejects rows that fit none.

Numbers of different magnitudes (seconds beside milliseconds, say) are rejected: they would silently sort wrongly.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from pipelines.errors import DataError
from pipelines.ingest.formats.rejects import Rejects

UNITS = ("s", "ms", "us", "ns")
# Below 1e11 a number is read as seconds (until the year 5138), below 1e14 as milliseconds, and so on.
LIMITS = (1e11, 1e14, 1e17, 9e18)
FINER = {"s": ("us", 1e6), "ms": ("us", 1e3), "us": ("ns", 1e3), "ns": ("ns", 1.0)}


class TimeColumn:
    """Parses the time column of a data set's events, batch by batch; all files must agree on its form and unit.

    Args:
        unit: ``data.time_unit``; "auto" infers it from the magnitude of the first row.
        rejects: receives bad rows.
    """

    def __init__(self, unit: str, rejects: Rejects) -> None:
        self.rejects = rejects
        self.stated = None if unit == "auto" else unit
        self.unit: str | None = None
        self._dates: bool | None = None

    def parse(self, frame: pl.DataFrame, path: Path, column: str) -> pl.DataFrame:
        """Converts the column to Int64, or Float64 if it has fractions, and rejects rows without a valid time.

        Raises:
            DataError: a bad row that is not skipped, a column type that cannot hold times, or dates after numbers.
        """
        dtype = frame.schema[column]
        value = pl.col(column)
        frame = self.rejects.split_off(frame, value.is_null(), path, column, "no time")
        if frame.is_empty():
            return frame.with_columns(value.cast(pl.Int64, strict=False))
        if dtype == pl.String:
            dates = _is_date(frame[column][0]) if self._dates is None else self._dates
            frame = self._text(frame, path, column, dates=dates)
        elif dtype in (pl.Datetime, pl.Date):
            dates = True
            frame = frame.with_columns(value.cast(pl.Datetime("us")).to_physical().cast(pl.Int64))
        elif dtype.is_numeric():
            dates = False
        else:
            raise DataError(f"{path}, column {column!r}: wrong type: a time is a number or a date, got {dtype}")
        if self._dates is not None and dates != self._dates:
            raise DataError(f"{path}, column {column!r}: dates here, plain numbers in an earlier file")
        self._dates = dates
        if dates:
            self.unit = "us"
            return frame
        return self._numbers(frame, path, column)

    def _text(self, frame: pl.DataFrame, path: Path, column: str, *, dates: bool) -> pl.DataFrame:
        value = pl.col(column)
        parsed = _from_iso(value) if dates else value.str.strip_chars().cast(pl.Int64, strict=False)
        frame = frame.with_columns(parsed.alias("__time__"))
        if frame["__time__"].null_count() and dates:
            wrong = "not an ISO-8601 date and time"
            frame = self.rejects.split_off(frame, pl.col("__time__").is_null(), path, column, wrong)
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
        if not frame.schema[column].is_integer():
            frame = self.rejects.split_off(frame, size.is_nan() | size.is_infinite(), path, column, "no number")
        if frame.is_empty():
            return frame.with_columns(value.cast(pl.Int64, strict=False))
        if self.unit is None:
            magnitude = frame.head(1).select(size).item()
            self.unit = self.stated or UNITS[int(np.searchsorted(LIMITS[:3], magnitude, side="right"))]
        place = UNITS.index(self.unit)
        wrong = size >= LIMITS[place]
        if self.stated is None and place > 0:
            wrong = wrong | (size < LIMITS[place - 1])
        told = "data.time_unit says" if self.stated else "the column began with"
        reason = f"mixed time units: {told} {self.unit!r}, this magnitude is another (or set data.time_unit)"
        frame = self.rejects.split_off(frame, wrong, path, column, reason)
        if frame.schema[column].is_integer() or frame.select((value == value.floor()).all()).item():
            return frame.with_columns(value.cast(pl.Int64))
        return frame.with_columns(value.cast(pl.Float64))

    def finish(self, parts: Sequence[NDArray[Any]]) -> NDArray[np.int64]:
        """Returns all times as int64; if some have fractions, in a finer unit, which `unit` then names."""
        if all(np.issubdtype(part.dtype, np.integer) for part in parts):
            return np.concatenate([part.astype(np.int64, copy=False) for part in parts])
        self.unit, scale = FINER[self.unit or "s"]
        return np.concatenate([np.rint(part * scale).astype(np.int64) for part in parts])


def _is_date(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return True
    return False


def _from_iso(value: pl.Expr) -> pl.Expr:
    text = value.str.strip_chars().str.replace(" ", "T", literal=True).str.replace(r"[Zz]$", "+00:00")
    text = text.str.replace(r"^(\d{4}-\d\d-\d\d)$", "${1}T00:00:00")
    text = text.str.replace(r"T(\d\d:\d\d)($|[+-])", "T${1}:00${2}")
    # Times without a zone count as UTC.
    text = text.str.replace(r"(T[\d:.]+)$", "${1}+00:00")
    parsed = text.str.to_datetime("%Y-%m-%dT%H:%M:%S%.f%z", time_unit="us", time_zone="UTC", strict=False)
    return parsed.to_physical()
