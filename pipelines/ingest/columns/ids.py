"""Converts ids of any type to strings and rejects rows without a valid id.

Whole numbers in a float column lose their ".0". Text stays as it is, so a text column must not mix 1 and
1.0, which would be different ids.
"""

from pathlib import Path

import polars as pl

from pipelines.errors import DataError
from pipelines.ingest.formats.rejects import Rejects

WHOLE = r"^-?[0-9]+$"
POINT = r"^-?[0-9]+\.0+$"


class IdColumn:
    """Cleans one id column of one file, batch by batch."""

    def __init__(self, path: Path, column: str, rejects: Rejects) -> None:
        self.path, self.column, self.rejects = path, column, rejects
        self._form: str | None = None

    def clean(self, frame: pl.DataFrame) -> pl.DataFrame:
        """Converts the column to strings and rejects rows without a valid id.

        Raises:
            DataError: a bad row that is not skipped, or a column type that cannot hold ids.
        """
        name = self.column
        dtype = frame.schema[name]
        value = pl.col(name)
        if dtype.is_float():
            frame = self._drop(frame, value.is_null() | value.is_nan(), "no id")
            # Beyond this, floats cannot represent every whole number.
            exact = 2**24 if dtype == pl.Float32 else 2**53
            broken = (value.abs() > exact) | (value != value.floor())
            frame = self._drop(frame, broken, "an id must be a string or a whole number")
            return frame.with_columns(value.cast(pl.Int64).cast(pl.String))
        if not (dtype.is_integer() or dtype in (pl.String, pl.Categorical, pl.Enum, pl.Null)):
            raise DataError(f"{self.path}, column {name!r}: wrong type: ids are strings or whole numbers, got {dtype}")
        frame = self._drop(frame, value.is_null(), "no id")
        frame = frame.with_columns(value.cast(pl.String))
        if dtype.is_integer():
            return frame
        frame = self._drop(frame, value.str.strip_chars() == "", "an empty id")
        frame = self._drop(frame, value.str.contains(r"[\r\n]"), "an id with a line break")
        return self._one_form(frame)

    def _one_form(self, frame: pl.DataFrame) -> pl.DataFrame:
        value = pl.col(self.column)
        # Most ids contain no point: this literal search spares most files the regular expression.
        maybe = frame.filter(value.str.contains(".", literal=True)).select(value.str.contains(POINT).any()).item()
        if self._form is None:
            numeric = frame.filter(value.str.contains(WHOLE) | value.str.contains(POINT)) if maybe else None
            if numeric is None:
                self._form = WHOLE if frame.select(value.str.contains(WHOLE).any()).item() else None
            else:
                self._form = POINT if numeric.head(1).select(value.str.contains(POINT)).item() else WHOLE
        other = POINT if self._form == WHOLE else WHOLE
        if self._form is None or (self._form == WHOLE and not maybe):
            return frame
        reason = "ids that differ only by type: the column began with " + ("1" if self._form == WHOLE else "1.0")
        return self._drop(frame, value.str.contains(other), reason)

    def _drop(self, frame: pl.DataFrame, bad: pl.Expr, reason: str) -> pl.DataFrame:
        return self.rejects.split_off(frame, bad, self.path, self.column, reason)
