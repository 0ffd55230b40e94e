"""Handles bad rows: raises a `DataError` that names file, row, column and value, or collects them in `rejects.csv`."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path, PurePath
from urllib.parse import unquote

import polars as pl

from pipelines.console import amount
from pipelines.errors import DataError

ROW = "__row__"
"""The column every reader adds: the 1-based line of a text file, record of a CSV file or row of a Parquet file."""

SCHEMA: Mapping[str, type[pl.DataType]] = {
    "file": pl.String,
    "row": pl.Int64,
    "column": pl.String,
    "reason": pl.String,
    "value": pl.String,
}


SKIP = "--on-bad-rows skip leaves such rows out"


class Rejects:
    """Collects bad rows, or raises at the first.

    Args:
        skip: collect; otherwise the first bad row raises.
        hint: ends the error's message, after a semicolon.

    Attributes:
        count: the bad rows so far.
        rows: the rows of each file so far, good and bad, of those that `counted` read.
    """

    def __init__(self, *, skip: bool = False, hint: str = SKIP) -> None:
        self.skip = skip
        self.hint = hint
        self._lines: dict[Path, Callable[[pl.Series], pl.Series]] = {}
        self.count = 0
        self.rows: Counter[Path] = Counter()
        self._left_out: Counter[Path] = Counter()
        self._first: dict[Path, str] = {}
        self._parts: list[pl.DataFrame] = []

    def number_by(self, path: Path, lines: Callable[[pl.Series], pl.Series]) -> None:
        """Maps the `ROW` of a file to line numbers by `lines`, so readers need lines only for bad rows."""
        self._lines[path] = lines

    def add(
        self,
        path: Path,
        column: str,
        reason: str,
        rows: pl.Series,
        values: pl.Series | None = None,
        remedy: str = "",
    ) -> None:
        """Adds bad rows of one file and column that share a reason.

        Args:
            path: the file.
            column: the column at fault, empty for the whole row.
            reason: what is wrong and, if helpful, what is allowed.
            rows: row numbers, as in `ROW`.
            values: the bad values, one per row.
            remedy: told in place of the advice to skip, which would leave nothing.

        Raises:
            DataError: bad rows are not skipped; names the first.
        """
        if rows.is_empty():
            return
        if path in self._lines:
            rows = self._lines[path](rows)
        texts = pl.Series("value", [None] * len(rows), dtype=pl.String) if values is None else _texts(values)
        first = int(rows.arg_min() or 0)
        where = f", column {column!r}" if column else ""
        got = f", got {texts[first]!r}" if values is not None else ""
        told = f"row {rows[first]}{where}: {reason}{got}"
        if not self.skip:
            more = f" (and {len(rows) - 1:,} more such rows nearby)" if len(rows) > 1 else ""
            hint = remedy if remedy and self.hint == SKIP else self.hint
            raise DataError(f"{path}, {told}{more}{hint and '; '}{hint}")
        self.count += len(rows)
        self._left_out[path] += len(rows)
        self._first.setdefault(path, told)
        part = pl.DataFrame({"row": rows.cast(pl.Int64), "value": texts})
        constants = (
            pl.lit(short_name(path)).alias("file"),
            pl.lit(column).alias("column"),
            pl.lit(reason).alias("reason"),
        )
        self._parts.append(part.with_columns(*constants).select(*SCHEMA))

    def split_off(
        self,
        frame: pl.DataFrame,
        bad: pl.Expr,
        path: Path,
        column: str,
        reason: str,
        shown: pl.Expr | None = None,
        remedy: str = "",
    ) -> pl.DataFrame:
        """Rejects the rows of `frame` where `bad` holds, shows `shown` or `column` of them, and returns the others.

        `frame` has `ROW`. Where all of several rows are bad, the error ends with the remedy, if there is one.
        """
        mask = frame.select(bad.fill_null(False)).to_series()
        if not mask.any():
            return frame
        wrong = frame.filter(mask)
        if shown is None and column in wrong.columns:
            shown = pl.col(column)
        values = None if shown is None else wrong.select(shown).to_series()
        all_bad = mask.all() and len(mask) > 1  # one row alone does not tell a wrong column from a bad row
        self.add(path, column, reason, wrong[ROW], values, remedy if all_bad else "")
        return frame.filter(~mask)

    def counted(self, path: Path, batches: Iterable[pl.DataFrame]) -> Iterator[pl.DataFrame]:
        """Passes on the batches of a file and counts its rows, also those that its reader leaves out."""
        before = self._left_out[path]
        for frame in batches:
            self.rows[path] += frame.height + self._left_out[path] - before
            yield frame
            before = self._left_out[path]
        self.rows[path] += self._left_out[path] - before

    def left_out(self, *paths: Path) -> str:
        """What an error adds where nothing is left of files: how many rows were bad, and why; "" if none was."""
        bad = [path for path in paths if path in self._first]
        if not bad:
            return ""
        count = amount(sum(self._left_out[path] for path in bad), "bad rows")
        return f"; left out: {count}, the first: {short_name(bad[0])}, {self._first[bad[0]]}"

    def warnings(self) -> list[str]:
        """A line for each file of which more than half of the rows were left out."""
        return [
            f"warning: {path}: {bad:,} of its {amount(self.rows[path], 'rows')} were left out, the first: "
            f"{self._first[path]}"
            for path, bad in self._left_out.items()
            if 2 * bad > self.rows[path]
        ]

    def write(self, path: Path, user: str) -> None:
        """Writes the collected rows as CSV, in the order found, if there are any; `user` is the column of users."""
        if self._parts:
            without_values(pl.concat(self._parts), user).write_csv(path)


def short_name(path: Path) -> str:
    """The name of a file, after the partitions that hold it: `date=2026-11-01/part.parquet`."""
    parts = PurePath(str(path)).parts
    first = len(parts) - 1
    while first and "=" in parts[first - 1]:
        first -= 1
    return "/".join(parts[first:])


def without_value(name: str, key: str) -> str:
    """A short name without the value of a key of partitions: of `user=ada/a.csv`, `user=*/a.csv`.

    For ids of users, which no other place in a data set has than the users' own.
    """
    *folders, file = name.split("/")
    keys = [folder.partition("=")[0] for folder in folders]
    shown = (f"{own}=*" if unquote(own) == key else each for own, each in zip(keys, folders, strict=True))
    return "/".join([*shown, file])


def without_values(rows: pl.DataFrame, key: str) -> pl.DataFrame:
    """Rejected rows, each with its file as of `without_value`."""
    names = rows["file"].unique().drop_nulls().to_list()
    return rows.with_columns(pl.col("file").replace({name: without_value(name, key) for name in names}))


def _texts(values: pl.Series) -> pl.Series:
    if values.dtype.is_nested():
        return pl.Series("value", [None if value is None else str(value) for value in values.to_list()], pl.String)
    return values.cast(pl.String).alias("value")
