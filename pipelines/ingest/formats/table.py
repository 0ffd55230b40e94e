"""Reads an input file as batches of rows with row numbers: Parquet and plain lines, lazily with polars.

Text stays text; types come later. A text file is checked before parsing: it is not empty and is UTF-8.
"""

import codecs
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

import polars as pl
from polars import selectors as cs

from pipelines.dataset.manifest import Kind
from pipelines.errors import DataError
from pipelines.ingest.formats.rejects import ROW, Rejects

# Looked up by polars whenever it meets a zone that it does not know, such as the +05:30 of pandas: without, it panics.
# The zone does not matter (`_in_utc`): Parquet stores such times in UTC.
os.environ.setdefault("POLARS_IGNORE_TIMEZONE_PARSE_ERROR", "1")

Reader = Callable[[Rejects], Iterator[pl.DataFrame]]

BATCH_ROWS = 500_000
BLOCK_BYTES = 8 << 20
UNREADABLE = (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError)
# Columns that reading adds internally.
INTERNAL = frozenset({ROW, "__time__", "__broken__", "__number__"})


@dataclass(frozen=True)
class Table:
    """A file of rows.

    Attributes:
        path: for messages.
        columns: the names of its columns.
        rows: approximate number of rows, or None; for progress only.
        read: yields batches of the columns and `ROW`; bad rows go to the given `Rejects`.
        typed: values have types; otherwise all are text and kinds are inferred.
        kinds: the kinds that the format declares.
        separators: columns whose text is a list, and the separator of its elements.
        unread: the names of columns of JSON objects, which are left unread.
    """

    path: Path
    columns: tuple[str, ...]
    rows: int | None
    read: Reader
    typed: bool = False
    kinds: Mapping[str, Kind] = field(default_factory=dict)
    separators: Mapping[str, str] = field(default_factory=dict)
    unread: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Refuses columns with the name of an `INTERNAL` one, and names that polars expands to several columns.

        Raises:
            DataError: the file has such a column.
        """
        for column in self.columns:
            if column in INTERNAL or column == "*" or (column.startswith("^") and column.endswith("$")):
                raise DataError(f"{self.path}: the column name {column!r} is reserved; rename that column")


def parquet_table(path: Path) -> Table:
    """Opens a Parquet file.

    Raises:
        DataError: the file is empty, truncated or not Parquet.
    """
    if path.stat().st_size == 0:
        raise DataError(f"{path}: the file is empty")
    bare = pl.scan_parquet(path, glob=False)
    try:
        names = bare.collect_schema().names()
        rows = int(bare.select(pl.len()).collect().item())
    except UNREADABLE as error:
        raise _unreadable(path, error) from None

    def read(rejects: Rejects) -> Iterator[pl.DataFrame]:
        frame = pl.scan_parquet(path, row_index_name=ROW, row_index_offset=1, glob=False)
        try:
            for batch in frame.collect_batches(chunk_size=BATCH_ROWS, maintain_order=True):
                batch = batch.with_columns(pl.col(name).cast(dtype) for name, dtype in _in_utc(batch.schema))
                yield batch.with_columns(map(plain_numbers, batch.select(cs.decimal())))
        except UNREADABLE as error:
            raise _unreadable(path, error) from None

    return Table(path, tuple(names), rows, read, typed=True)


def _in_utc(schema: pl.Schema) -> Iterator[tuple[str, pl.DataType]]:
    """Yields the columns of dates, or lists of them, in a zone that is an offset, which polars cannot write as text."""
    for name, dtype in schema.items():
        inner = dtype.inner if isinstance(dtype, pl.List | pl.Array) else dtype
        if isinstance(inner, pl.Datetime) and (inner.time_zone or "").startswith(("+", "-")):
            utc = pl.Datetime(inner.time_unit, "UTC")
            yield name, utc if inner is dtype else pl.List(utc)


def plain_numbers(values: pl.Series) -> pl.Series:
    """Makes decimals, as Oracle, Snowflake and Spark write any number, integers if all are whole, else floats."""
    if not isinstance(values.dtype, pl.Decimal):
        return values
    if not (values == values.floor()).all():
        return values.cast(pl.Float64)
    short = values.cast(pl.Int64, strict=False)
    return short if short.null_count() == values.null_count() else values.cast(pl.Int128)


def _unreadable(path: Path, error: BaseException) -> DataError:
    reason = str(error).strip().splitlines()[0]
    if isinstance(error, pl.exceptions.PanicException):
        told = "damaged, or a column has a type that polars does not know; leave it out or convert it"
        return DataError(f"{path}: polars cannot read it: {told}: {reason}")
    return DataError(f"{path}: not a whole Parquet file (truncated, altered or of another format): {reason}")


def lines_table(
    path: Path,
    columns: Sequence[str],
    parse: Callable[[pl.DataFrame, Rejects], pl.DataFrame],
    *,
    skip: bool = False,
    blank: bool = False,
) -> Table:
    """Opens a text file whose lines a function parses.

    Args:
        path: the file.
        columns: the columns that `parse` returns.
        parse: converts a frame of ``line`` and `ROW` to one of `columns` and `ROW`.
        skip: treat lines that are not UTF-8 as bad rows instead of raising here.
        blank: give `parse` the blank lines, too, which are dropped otherwise.

    Raises:
        DataError: the file is empty, or not UTF-8.
    """
    text = text_file(path, skip=skip)

    def read(rejects: Rejects) -> Iterator[pl.DataFrame]:
        line = pl.col("line")
        for lines in _lines(path) if text.valid else _lossy_lines(path):
            if not text.valid:
                lines = rejects.split_off(lines, line.str.contains("\ufffd", literal=True), path, "", "not UTF-8")
            lines = lines.with_columns(line.str.strip_prefix("\ufeff"))
            yield parse(lines if blank else lines.filter(line.str.strip_chars() != ""), rejects)

    return Table(path, tuple(columns), text.lines, read)


def _lines(path: Path) -> Iterator[pl.DataFrame]:
    scan = pl.scan_lines(path, name="line", row_index_name=ROW, row_index_offset=1, glob=False)
    yield from scan.collect_batches(chunk_size=BATCH_ROWS, maintain_order=True)


def _lossy_lines(path: Path) -> Iterator[pl.DataFrame]:
    """The same lines, with U+FFFD for what is not UTF-8: by Python, as polars refuses such a file."""
    row = 1
    with path.open(encoding="utf-8", errors="replace", newline="\n") as handle:
        while lines := list(islice(handle, BATCH_ROWS)):
            frame = pl.DataFrame({"line": lines}, {"line": pl.String}).with_row_index(ROW, row)
            yield frame.with_columns(pl.col("line").str.strip_suffix("\n").str.strip_suffix("\r"))
            row += len(lines)


@dataclass(frozen=True)
class TextFile:
    """The result of one pass over the bytes.

    Attributes:
        lines: number of lines.
        valid: whether the whole file is UTF-8.
        quotes: how many double quotes it contains.
        blanks: whether it may contain a blank line (two line ends in a row, even inside quotes).
    """

    lines: int
    valid: bool
    quotes: int
    blanks: bool


def text_file(path: Path, *, skip: bool = False) -> TextFile:
    """Scans a text file once.

    Args:
        path: the file.
        skip: report bytes that are not UTF-8 instead of raising.

    Raises:
        DataError: the file is empty or, unless `skip`, is not UTF-8.
    """
    if path.stat().st_size == 0:
        raise DataError(f"{path}: the file is empty")
    decoder = codecs.getincrementaldecoder("utf-8")()
    newlines, valid, quotes, blanks, tail = 0, True, 0, False, b"\n"
    with path.open("rb") as handle:
        while block := handle.read(BLOCK_BYTES):
            if valid:
                valid = _decodes(decoder, block, path, newlines, skip=skip)
            newlines += block.count(b"\n")
            quotes += block.count(b'"')
            blanks = blanks or b"\n\n" in tail + block or b"\n\r\n" in tail + block
            tail = block[-2:]
    if valid and decoder.getstate()[0]:
        valid = False
        if not skip:
            raise DataError(f"{path}, row {newlines + 1}: not UTF-8: the file ends inside a character")
    return TextFile(newlines + (tail[-1:] != b"\n"), valid, quotes, blanks)


def _decodes(decoder: codecs.IncrementalDecoder, block: bytes, path: Path, newlines: int, *, skip: bool) -> bool:
    try:
        decoder.decode(block)
    except UnicodeDecodeError as error:
        if skip:
            return False
        row = newlines + error.object[: error.start].count(b"\n") + 1
        byte = error.object[error.start]
        raise DataError(
            f"{path}, row {row}: not UTF-8 (byte 0x{byte:02x}); convert the file, for example with iconv -t UTF-8"
        ) from None
    return True
