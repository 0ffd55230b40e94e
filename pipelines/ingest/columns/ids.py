"""Converts ids of any type to strings, rejects rows without one, and refuses files whose ids do not fit together.

Whole numbers in a float column lose their ".0". Text stays as it is, so no file of a data set may hold 1.0 where
another holds 1: they would be different ids.
"""

from collections import defaultdict
from pathlib import Path

import polars as pl

from pipelines.errors import DataError
from pipelines.ingest.formats.rejects import Rejects

WHOLE = r"^-?[0-9]+$"
POINT = r"^-?[0-9]+\.0+$"
EITHER = r"^-?[0-9]+(\.0+)?$"
ZEROS = r"^0+([0-9]+)$"
ALMOST_NONE = 0.01  # a file of attributes that fits this share of the ids it could fit is not of these events


class IdForm:
    """How all files of a data set write whole numbers among the ids of one side: ``1`` or ``1.0``."""

    def __init__(self) -> None:
        self._first: tuple[str, str, Path] | None = None

    def take(self, form: str, example: str, path: Path, column: str) -> None:
        """Takes the form of a file.

        Raises:
            DataError: an earlier file has the other form; names both files and an id of each.
        """
        if self._first is None:
            self._first = form, example, path
        first, other, where = self._first
        if form != first:
            raise DataError(
                f"{path}, column {column!r}: ids that differ only in form from those of {where}: {example!r} here, "
                f"{other!r} there; write whole numbers alike in all files, best without a point"
            )


IdForms = defaultdict[str, IdForm]  # of the ``user`` ids and the ``item`` ids


def refuse_strangers(what: str, listed: pl.Series, path: Path, used: pl.Series, events: Path) -> str:
    """Refuses a users or items file that is not of these events.

    A program that read the ids of the file as numbers wrote 7 for 007, while ids without zeros at the start match.

    Args:
        what: ``user`` or ``item``.
        listed: [N] distinct ids of the file at `path`.
        path: the file.
        used: [M] distinct ids of the events.
        events: a file of events, for the message.

    Returns:
        A line for the user where both hold ids that the other lacks, else "".

    Raises:
        DataError: at most `ALMOST_NONE` of the ids that could be in both are, or more than that of the others are alike
            but for zeros at the start; quotes an id of each.
    """
    matches = listed.is_in(used.implode())
    count = int(matches.sum())
    ours, theirs = listed.filter(~matches), used.filter(~used.is_in(listed.implode()))
    if count <= ALMOST_NONE * min(len(listed), len(used)):
        raise DataError(
            f"{path}: {count:,} of its {len(listed):,} {what} ids are among the {len(used):,} of the events: "
            f"{ours[0]!r} here, {theirs[0]!r} in {events.name}; write the ids alike in both, or leave the file out"
        )
    here, there = (pl.DataFrame({"id": ids, "bare": ids.str.replace(ZEROS, "$1")}) for ids in (ours, theirs))
    padded = here.join(there, on="bare", maintain_order="left")
    if padded.height and padded.height > ALMOST_NONE * min(len(ours), len(theirs)):
        first, other = padded.select("id", "id_right").row(0)
        raise DataError(
            f"{path}: {padded.height:,} of its {what} ids are those of the events but for zeros at the start: "
            f"{first!r} here, {other!r} in {events.name}; write the ids alike in both, or leave the file out"
        )
    if not (len(ours) and len(theirs)):
        return ""
    return (
        f"{path}: {len(theirs):,} of the {len(used):,} {what}s of the events have no row in it ({theirs[0]!r}, say), "
        f"and {len(ours):,} of its {len(listed):,} rows are of no {what} of the events ({ours[0]!r}, say)"
    )


class IdColumn:
    """Cleans one id column of one file, batch by batch."""

    def __init__(self, path: Path, column: str, rejects: Rejects, form: IdForm) -> None:
        self.path, self.column, self.rejects, self._all = path, column, rejects, form
        self._form: str | None = None

    def clean(self, frame: pl.DataFrame) -> pl.DataFrame:
        """Converts the column to strings and rejects rows without a valid id.

        Raises:
            DataError: a bad row that is not skipped, a column type that cannot hold ids, or another form of whole
                numbers than in an earlier file.
        """
        name = self.column
        dtype = frame.schema[name]
        value = pl.col(name)
        if dtype.is_float():
            frame = self._drop(frame, value.is_null() | value.is_nan(), "no id")
            # Beyond this, floats cannot represent every whole number.
            exact = 2**11 if dtype == pl.Float16 else 2**24 if dtype == pl.Float32 else 2**53
            number = value.cast(pl.Float64)  # Polars does not round a Float16 down
            broken = (number.abs() > exact) | (number != number.floor())
            frame = self._drop(frame, broken, "an id must be a string or a whole number")
            frame = frame.with_columns(value.cast(pl.Int64))
        elif not (dtype.is_integer() or dtype in (pl.String, pl.Categorical, pl.Enum, pl.Null)):
            raise DataError(f"{self.path}, column {name!r}: wrong type: ids are strings or whole numbers, got {dtype}")
        frame = self._drop(frame, value.is_null(), "no id").with_columns(value.cast(pl.String))
        if dtype.is_numeric():
            if frame.height:
                self._all.take(WHOLE, frame[name][0], self.path, name)
            return frame
        frame = self._drop(frame, value.str.strip_chars() == "", "an empty id")
        frame = self._drop(frame, value.str.contains(r"[\r\n]"), "an id with a line break")
        return self._one_form(frame)

    def _one_form(self, frame: pl.DataFrame) -> pl.DataFrame:
        value = pl.col(self.column)
        # Most ids contain no point: this literal search spares most files the regular expression.
        maybe = frame.select(value.str.contains(".", literal=True).any()).item()
        if self._form is None:
            numbers = frame.select(value.filter(value.str.contains(EITHER))).to_series()
            if len(numbers):
                pointed = numbers.str.contains(".", literal=True)
                # The rarer form is the mistake, whichever comes first.
                self._form = POINT if 2 * int(pointed.sum()) > len(numbers) else WHOLE
                example = numbers.filter(pointed == (self._form == POINT))[0]
                self._all.take(self._form, example, self.path, self.column)
        other = POINT if self._form == WHOLE else WHOLE
        if self._form is None or (self._form == WHOLE and not maybe):
            return frame
        reason = "ids that differ only by type: others are written like " + ("1" if self._form == WHOLE else "1.0")
        return self._drop(frame, value.str.contains(other), reason)

    def _drop(self, frame: pl.DataFrame, bad: pl.Expr, reason: str) -> pl.DataFrame:
        return self.rejects.split_off(frame, bad, self.path, self.column, reason)
