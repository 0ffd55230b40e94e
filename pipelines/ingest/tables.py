"""One input file as batches of rows with their row numbers: CSV, Parquet and plain lines, read lazily by polars.

In: a path. Out: a `Table`, whose batches carry the file's columns and `ROW`. Text stays text; types come later.
"""

import csv
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TextIO

import polars as pl

from pipelines.errors import DataError
from pipelines.ingest.rejects import ROW, Rejects
from pipelines.ingest.text import TextFile, python_lines, text_file

if TYPE_CHECKING:
    from _csv import Reader as Records

Kind = Literal["string", "number", "list"]
Reader = Callable[[Rejects], Iterator[pl.DataFrame]]

BATCH_ROWS = 500_000


@dataclass(frozen=True)
class Table:
    """A file of rows.

    Attributes:
        path: for messages.
        columns: the names of its columns.
        rows: how many rows it has, about, or None; for progress only.
        read: yields batches of the columns and `ROW`; bad rows go to the given `Rejects`.
        typed: values have types of their own; otherwise all are text and the kinds are found out.
        kinds: the kinds that the format itself declares.
        separators: columns whose text is a list, and what separates its elements.
    """

    path: Path
    columns: tuple[str, ...]
    rows: int | None
    read: Reader
    typed: bool = False
    kinds: Mapping[str, Kind] = field(default_factory=dict)
    separators: Mapping[str, str] = field(default_factory=dict)


def csv_table(
    path: Path,
    *,
    separator: str = ",",
    quote: str | None = '"',
    header: Sequence[str] | None = None,
    rename: Callable[[str], str] = str,
    kinds: Mapping[str, Kind] | None = None,
    separators: Mapping[str, str] | None = None,
    skip: bool = False,
) -> Table:
    """A text file of separated values.

    Args:
        path: the file.
        separator: between two values.
        quote: around values that hold a separator; None: there is no quoting.
        header: the column names where the file has no header line.
        rename: from a name in the header line to the column's name.
        kinds: as in `Table`.
        separators: as in `Table`.
        skip: lines that are not UTF-8 become bad rows; otherwise they raise here.

    Raises:
        DataError: the file is missing, empty, or not UTF-8.
    """
    text = text_file(path, skip=skip)
    names = tuple(header) if header is not None else tuple(map(rename, _header(path, separator, quote)))
    if len(set(names)) < len(names):
        raise DataError(f"{path}, row 1: a column name comes twice in: {', '.join(names)}")
    first = 1 if header is not None else 2
    layout = _Layout(path, separator, quote, names, first)

    def read(rejects: Rejects) -> Iterator[pl.DataFrame]:
        done = 0
        if text.valid:
            try:
                for batch in _polars_csv(layout):
                    done += batch.height
                    yield batch.filter(~pl.all_horizontal(pl.col(names).is_null()))
                return
            except pl.exceptions.PolarsError:
                # Too many fields, or a quote left open: polars does not say where, the slow reader does.
                pass
        yield from _python_csv(layout, text, rejects, done)

    return Table(path, names, max(text.lines - first + 1, 0), read, kinds=kinds or {}, separators=separators or {})


@dataclass(frozen=True)
class _Layout:
    path: Path
    separator: str
    quote: str | None
    names: tuple[str, ...]
    first_row: int


def _header(path: Path, separator: str, quote: str | None) -> list[str]:
    with path.open(encoding="utf-8-sig", errors="replace", newline="") as handle:
        names = next(_reader(handle, separator, quote), [])
    if not any(name.strip() for name in names):
        raise DataError(f"{path}, row 1: no column names")
    return names


def _reader(handle: TextIO, separator: str, quote: str | None) -> "Records":
    if quote is None:
        return csv.reader(handle, delimiter=separator, quoting=csv.QUOTE_NONE)
    return csv.reader(handle, delimiter=separator, quotechar=quote, strict=True)


def _polars_csv(layout: _Layout) -> Iterator[pl.DataFrame]:
    frame = pl.scan_csv(
        layout.path,
        has_header=layout.first_row == 2,
        separator=layout.separator,
        quote_char=layout.quote,
        schema=dict.fromkeys(layout.names, pl.String),
        row_index_name=ROW,
        row_index_offset=layout.first_row,
        glob=False,
    )
    yield from frame.collect_batches(chunk_size=BATCH_ROWS, maintain_order=True)


def _python_csv(layout: _Layout, text: TextFile, rejects: Rejects, done: int) -> Iterator[pl.DataFrame]:
    """The same rows, slowly, from record `done` on: finds the lines that polars cannot read."""
    width = len(layout.names)
    rows: list[list[str | None]] = []
    numbers: list[int] = []
    with layout.path.open(encoding="utf-8-sig", errors="replace", newline="") as handle:
        reader = _reader(handle, layout.separator, layout.quote)
        try:
            for record, values in enumerate(reader, start=1 - (layout.first_row - 1)):
                if record <= done or not values:
                    continue
                wrong = None
                if len(values) > width:
                    wrong = f"{len(values)} values, the header has {width}"
                elif not text.valid and any("\ufffd" in value for value in values):
                    wrong = "not UTF-8"
                if wrong:
                    rejects.add(layout.path, "", wrong, pl.Series([reader.line_num]))
                    continue
                rows.append([value or None for value in values] + [None] * (width - len(values)))
                numbers.append(reader.line_num)
                if len(rows) == BATCH_ROWS:
                    yield _frame(layout.names, rows, numbers)
                    rows, numbers = [], []
        except csv.Error as error:
            raise DataError(f"{layout.path}, row {reader.line_num}: not valid CSV: {error}") from None
    yield _frame(layout.names, rows, numbers)


def _frame(names: Sequence[str], rows: list[list[str | None]], numbers: list[int]) -> pl.DataFrame:
    schema = dict.fromkeys(names, pl.String)
    frame = pl.DataFrame(rows, schema=schema, orient="row") if rows else pl.DataFrame(schema=schema)
    return frame.with_columns(pl.Series(ROW, numbers, dtype=pl.UInt32))


def parquet_table(path: Path) -> Table:
    """A Parquet file.

    Raises:
        DataError: the file is missing, empty, truncated or no Parquet file.
    """
    if not path.is_file():
        raise DataError(f"{path}: no such file")
    if path.stat().st_size == 0:
        raise DataError(f"{path}: the file is empty")
    frame = pl.scan_parquet(path, row_index_name=ROW, row_index_offset=1, glob=False)
    try:
        names = [name for name in frame.collect_schema().names() if name != ROW]
        rows = int(pl.scan_parquet(path, glob=False).select(pl.len()).collect().item())
    except (pl.exceptions.PolarsError, OSError) as error:
        raise _unreadable(path, error) from None

    def read(rejects: Rejects) -> Iterator[pl.DataFrame]:
        try:
            yield from frame.collect_batches(chunk_size=BATCH_ROWS, maintain_order=True)
        except (pl.exceptions.PolarsError, OSError) as error:
            raise _unreadable(path, error) from None

    return Table(path, tuple(names), rows, read, typed=True)


def _unreadable(path: Path, error: Exception) -> DataError:
    reason = str(error).strip().splitlines()[0]
    return DataError(f"{path}: not a whole Parquet file (truncated, altered or of another format): {reason}")


def lines_table(
    path: Path,
    columns: Sequence[str],
    parse: Callable[[pl.DataFrame, Rejects], pl.DataFrame],
    *,
    kinds: Mapping[str, Kind] | None = None,
    separators: Mapping[str, str] | None = None,
    skip: bool = False,
) -> Table:
    """A text file whose lines a function takes apart.

    Args:
        path: the file.
        columns: the columns that `parse` makes.
        parse: from a frame of ``line`` (never blank) and `ROW` to one of `columns` and `ROW`.
        kinds: as in `Table`.
        separators: as in `Table`.
        skip: lines that are not UTF-8 become bad rows; otherwise they raise here.

    Raises:
        DataError: the file is missing, empty, or not UTF-8.
    """
    text = text_file(path, skip=skip)

    def read(rejects: Rejects) -> Iterator[pl.DataFrame]:
        if text.valid:
            scan = pl.scan_lines(path, name="line", row_index_name=ROW, row_index_offset=1, glob=False)
            batches: Iterator[pl.DataFrame] = iter(scan.collect_batches(chunk_size=BATCH_ROWS, maintain_order=True))
        else:
            batches = python_lines(path, rejects, BATCH_ROWS)
        for batch in batches:
            lines = batch.with_columns(pl.col("line").str.strip_prefix("\ufeff"))
            yield parse(lines.filter(pl.col("line").str.strip_chars() != ""), rejects)

    return Table(path, tuple(columns), text.lines, read, kinds=kinds or {}, separators=separators or {})
