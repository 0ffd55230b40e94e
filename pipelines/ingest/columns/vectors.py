"""Reads columns of vectors: lists of numbers, as many in every row, become arrays of 32-bit floats."""

from collections.abc import Iterable
from pathlib import Path

import polars as pl

from pipelines.errors import DataError
from pipelines.ingest.columns.numbers import LARGEST
from pipelines.ingest.formats.rejects import Rejects
from pipelines.ingest.formats.table import Table

LONGEST = 4_096
ROWS = 50_000  # converted at once: with the longest vectors 1.6 GB
# What stands around and between the numbers of a text: "[0.5, 1]", "0.5 1", "0.5|1".
NOT_NUMBERS = r"[\s,;|\[\]()]+"
_NUMBER = pl.element().cast(pl.Float64, strict=False)
_FITS = (_NUMBER.abs() <= LARGEST).fill_null(False)  # NaN is greater than every number


class Vectors:
    """Reads the vectors of an attribute file, or of all event files, batch by batch; a list without numbers is missing.

    Columns are vectors if `data.vectors` or the format says so, and if they hold lists of floats; never those that
    `data.lists` names.

    Attributes:
        lengths: numbers of each column's vectors: the most frequent length of the first rows with a vector.

    Args:
        rejects: receives rows whose vector has another length or a number that is none.
    """

    def __init__(self, rejects: Rejects) -> None:
        self.rejects = rejects
        self.lengths: dict[str, int] = {}

    def read(self, frame: pl.DataFrame, columns: Iterable[str], table: Table) -> pl.DataFrame:
        """Converts those of a batch's columns that are vectors to fixed-size arrays of float32.

        Raises:
            DataError: a bad row that is not skipped, or a type that cannot hold vectors.
        """
        for column in columns:
            dtype = frame.schema[column]
            floats = isinstance(dtype, pl.List | pl.Array) and dtype.inner.is_float()
            declared = column in self.lengths or table.kinds.get(column) == "vector"
            if dtype != pl.Null and column not in table.separators and (floats or declared):
                parts = (frame.slice(begin, ROWS) for begin in range(0, max(1, frame.height), ROWS))
                frame = pl.concat([self._converted(part, column, table.path) for part in parts], how="vertical_relaxed")
        return frame

    def complete(self, parts: list[pl.DataFrame]) -> list[pl.DataFrame]:
        """Makes the empty lists of batches before a column's first vector missing vectors, as those after it are."""
        return [
            part.with_columns(
                pl.lit(None).alias(name) for name in self.lengths if isinstance(part.schema[name], pl.List)
            )
            for part in parts
        ]

    def _converted(self, frame: pl.DataFrame, column: str, path: Path) -> pl.DataFrame:
        dtype, value = frame.schema[column], pl.col(column)
        count = value.list.len()
        if dtype == pl.String:
            words = value.str.replace_all(NOT_NUMBERS, " ").str.split(" ")
            frame = frame.with_columns(words.list.eval(pl.element().filter(pl.element() != "")))
        elif isinstance(dtype, pl.Array) and not dtype.inner.is_nested():
            frame = frame.with_columns(value.arr.to_list())
        elif not isinstance(dtype, pl.List) or dtype.inner.is_nested():
            raise DataError(f"{path}, column {column!r}: a vector is a list of numbers or a text of them, got {dtype}")
        frame = frame.with_columns(pl.when(count > 0).then(value).alias(column))
        allowed = "vectors hold finite numbers up to ±3.4e38"
        first = value.list.eval(pl.element().filter(~_FITS)).list.first().cast(pl.String).fill_null("null")
        frame = self.rejects.split_off(frame, ~value.list.eval(_FITS).list.all(), path, column, allowed, first)
        numbers = pl.format("{} numbers", count)
        most = f"a vector has at most {LONGEST:,} numbers"
        frame = self.rejects.split_off(frame, count > LONGEST, path, column, most, numbers)
        if column not in self.lengths:
            lengths = frame.select(length=count).drop_nulls().group_by("length", maintain_order=True).len()
            if lengths.is_empty():
                return frame.with_columns(pl.lit(None).alias(column))
            self.lengths[column] = lengths["length"][lengths["len"].arg_max() or 0]
        length = self.lengths[column]
        remedy = "data.lists reads lists of several lengths, as words"
        alike = f"the vectors of this column have {length:,} numbers ({remedy})"
        frame = self.rejects.split_off(frame, count != length, path, column, alike, numbers)
        return frame.with_columns(value.cast(pl.List(pl.Float32)).list.to_array(length))
