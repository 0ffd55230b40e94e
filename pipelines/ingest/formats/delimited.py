"""Reads delimited text (CSV and the like) as a `Table`: fast with polars and, where that fails, with Python.

`ROW` is the number of the record. Quoted line breaks make it differ from the line, which is looked up for bad rows.
"""

import csv
import sys
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from pipelines.console import amount, say
from pipelines.dataset.manifest import Kind
from pipelines.errors import DataError
from pipelines.ingest.formats.column_names import shown
from pipelines.ingest.formats.header_line import header_names, likely_separator, records, stated_separator
from pipelines.ingest.formats.rejects import ROW, Rejects
from pipelines.ingest.formats.table import BATCH_ROWS, Table, TextFile, text_file

ENDS = "\r\n"  # of a line
PYTHON_ROWS = 20_000  # that are Python's objects at once: many times as large as in a frame


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
    """Opens a file of delimited text.

    Args:
        path: the file.
        separator: between values; instead of a comma that finds a single name in the header line, another one of
            `SEPARATORS` may be detected. A line before it, such as `sep=;`, states it.
        quote: around values that contain a separator; None for no quoting.
        header: the column names if the file has no header line.
        rename: maps a name in the header line to the column's name.
        kinds: as in `Table`.
        separators: as in `Table`.
        skip: treat lines that are not UTF-8 as bad rows instead of raising here.

    Raises:
        DataError: the file is empty, or not UTF-8.
    """
    text = text_file(path, skip=skip)
    first = 1 if header is not None else 2
    if header is None and separator == ",":
        stated = stated_separator(path)
        separator, first = (stated, 3) if stated else (likely_separator(path, quote), 2)
    if header is None:
        header = [rename(name) for name in header_names(path, separator, quote, line=first - 1)]
    names = tuple(header)
    if len(set(names)) < len(names):
        raise DataError(f"{path}, row {first - 1}: a column name occurs twice in: {shown(names)}; is this line data?")
    layout = _Layout(path, separator, quote, names, first, text)

    def read(rejects: Rejects) -> Iterator[pl.DataFrame]:
        if separator == "\t" and text.quotes and quote is not None:
            yield from _watched(layout, parsed(rejects))
        else:
            yield from parsed(rejects)

    def parsed(rejects: Rejects) -> Iterator[pl.DataFrame]:
        quoted = text.quotes > 0 and quote is not None
        if quoted:
            rejects.number_by(path, layout.lines)
        done = 0
        # One that is never closed, in the last cell: polars may read that as empty.
        if text.valid and not (quoted and text.quotes % 2):
            try:
                for batch in _polars_csv(layout):
                    # At a lone `"` it joins or shifts cells; a doubled one looks like that here.
                    if quoted and any(batch[name].str.contains('"', literal=True).any() for name in names):
                        break
                    done += batch.height
                    yield layout.without_blanks(batch)
                else:
                    return
            except pl.exceptions.PolarsError:
                # Too many fields, or an unclosed quote: polars does not say where, the slow reader does.
                pass
        yield from _python_csv(layout, rejects, done)

    return Table(path, names, max(text.lines - first + 1, 0), read, kinds=kinds or {}, separators=separators or {})


@dataclass(frozen=True)
class _Layout:
    path: Path
    separator: str
    quote: str | None
    names: tuple[str, ...]
    first_row: int
    text: TextFile

    def without_blanks(self, batch: pl.DataFrame) -> pl.DataFrame:
        """Drops blank lines, which polars reads as rows of nulls, but keeps rows of empty cells."""
        if not self.text.blanks:
            return batch
        empty = pl.all_horizontal(pl.col(self.names).is_null())
        if not batch.select(empty.any()).item():
            return batch
        return batch.filter(~(empty & pl.col(ROW).is_in(self._blanks.implode())))

    def lines(self, records: pl.Series) -> pl.Series:
        """Returns the line on which each record begins."""
        broken, shifts = self._shifts
        numbers = records.to_numpy().astype(np.int64)
        return pl.Series(numbers + shifts[np.searchsorted(broken, numbers, side="left")])

    @cached_property
    def _blanks(self) -> pl.Series:
        if self.text.quotes and self.quote is not None:
            numbers = array("I", (record for record, _, values in self._records() if not values))
            return pl.Series(np.array(numbers, np.uint32))
        # Without quotes records are lines.
        scan = pl.scan_lines(self.path, name="line", row_index_name=ROW, row_index_offset=1, glob=False)
        blank = pl.col("line").str.strip_chars("\r") == ""
        return scan.filter(blank).select(pl.col(ROW).cast(pl.UInt32)).collect().to_series()

    @cached_property
    def _shifts(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Returns the records that span several lines, and how far lines run ahead of records after each."""
        records, shifts = array("q"), array("q", [0])
        for record, lines, _ in self._records():
            if lines > 1:
                records.append(record)
                shifts.append(shifts[-1] + lines - 1)
        return np.array(records, np.int64), np.array(shifts, np.int64)

    def _records(self) -> Iterator[tuple[int, int, list[str]]]:
        """Yields each record's number from 1 (including any header), its number of lines and its values."""
        with self.path.open(encoding="utf-8-sig", errors="replace", newline="\n") as handle:
            # Python's reader refuses a carriage return in a value without quotes, polars does not.
            lines = (f"{each.rstrip(ENDS)}\n".replace("\r", " ") for each in handle)
            reader = records(lines, self.separator, self.quote, strict=False)
            csv.field_size_limit(sys.maxsize)
            line = 0
            for record, values in enumerate(reader, start=1):
                yield record, reader.line_num - line, values
                line = reader.line_num


def _watched(layout: _Layout, batches: Iterator[pl.DataFrame]) -> Iterator[pl.DataFrame]:
    """Passes on batches of tab-separated text, and warns once of a quote that may have swallowed rows."""
    told = False
    for batch in batches:
        if not told:
            # Few values hold a line end, so tabs are looked for in those rows alone.
            ends = pl.col(layout.names).str.contains("\n", literal=True)
            some = batch.filter(pl.any_horizontal(ends))
            rows = some.filter(pl.any_horizontal(ends & pl.col(layout.names).str.contains("\t", literal=True)))[ROW]
            if told := bool(len(rows)):
                say(
                    f"warning: {layout.path}, row {layout.lines(rows.head(1))[0]}: a value in quotes holds tabs and "
                    "line ends, which may be rows; where quotes are letters of the text, remove them first: tr -d '\"'"
                )
        yield batch


def _polars_csv(layout: _Layout) -> Iterator[pl.DataFrame]:
    frame = pl.scan_csv(
        layout.path,
        has_header=layout.first_row > 1,
        skip_lines=max(layout.first_row - 2, 0),  # a line that states the separator
        separator=layout.separator,
        quote_char=layout.quote,
        schema=dict.fromkeys(layout.names, pl.String),
        row_index_name=ROW,
        row_index_offset=layout.first_row,
        null_values="",  # a quoted cell, too, as for Python's reader
        glob=False,
    )
    yield from frame.collect_batches(chunk_size=BATCH_ROWS, maintain_order=True)


def _python_csv(layout: _Layout, rejects: Rejects, done: int) -> Iterator[pl.DataFrame]:
    """Reads the same rows slowly from record `done` on, to find the lines that polars cannot read."""
    width, at_once, parts = len(layout.names), min(PYTHON_ROWS, BATCH_ROWS), list[pl.DataFrame]()
    rows: list[list[str | None]] = []
    numbers: list[int] = []
    ended = 0  # the line on which the previous record ends
    with layout.path.open(encoding="utf-8-sig", errors="replace", newline="\n") as handle:
        reader = records(handle, layout.separator, layout.quote)
        csv.field_size_limit(sys.maxsize)  # polars has no limit
        try:
            for record, values in enumerate(reader, start=1):
                ended = reader.line_num
                if record < layout.first_row + done or not values:
                    continue
                wrong = None
                if len(values) > width:
                    wrong = f"{amount(len(values), 'values')}, the header has {width}"
                elif not layout.text.valid and any("\ufffd" in value for value in values):
                    wrong = "not UTF-8"
                if wrong:
                    rejects.add(layout.path, "", wrong, pl.Series([record]))
                    continue
                rows.append([value or None for value in values] + [None] * (width - len(values)))
                numbers.append(record)
                if len(rows) == at_once:
                    parts.append(_frame(layout.names, rows, numbers))
                    rows, numbers = [], []
                if len(parts) * at_once >= BATCH_ROWS:
                    yield pl.concat(parts)
                    parts = []
        except csv.Error as error:
            # An unclosed quote swallows line after line, until the reader notices it at the next quote or the end.
            swallowed = "a quote of the record that begins here is not closed: " if reader.line_num > ended + 1 else ""
            why = "a carriage return in a value without quotes" if "new-line character" in str(error) else error
            raise DataError(f"{layout.path}, row {ended + 1}: not valid CSV: {swallowed}{why}") from None
    yield pl.concat([*parts, _frame(layout.names, rows, numbers)])


def _frame(names: Sequence[str], rows: list[list[str | None]], numbers: list[int]) -> pl.DataFrame:
    schema = dict.fromkeys(names, pl.String)
    frame = pl.DataFrame(rows, schema=schema, orient="row") if rows else pl.DataFrame(schema=schema)
    return frame.with_columns(pl.Series(ROW, numbers, dtype=pl.UInt32))
