"""Collects the other columns of the events (device, place, …), with strings as categories to save memory."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import polars as pl

from pipelines.dataset.list_text import split_text
from pipelines.dataset.manifest import Kind
from pipelines.dataset.number_text import NOT_A_NUMBER
from pipelines.errors import DataError
from pipelines.ingest.columns.attributes import kind_of, kind_of_texts, typed_columns
from pipelines.ingest.columns.event_table import EventTable
from pipelines.ingest.columns.numbers import LARGEST, TOO_LARGE, numbers, parsed
from pipelines.ingest.columns.vectors import Vectors
from pipelines.ingest.formats.rejects import Rejects, short_name
from pipelines.ingest.formats.table import Table


class _First(NamedTuple):
    """What a column's first file decides."""

    kind: Kind
    words: str  # what the file holds, in the plural: more exact than the kind
    path: Path
    empty: bool  # lists without a word so far, each of which may be a missing vector, too


class ContextColumns:
    """Collects the context columns of all tables, which may have them in any order.

    Args:
        table: the first table; its kinds and separators apply to all.
        rejects: receives rows with NaN, dates outside the calendar or vectors of several lengths.
    """

    def __init__(self, table: Table, rejects: Rejects) -> None:
        self.table, self.rejects, self.vectors = table, rejects, Vectors(rejects)
        self._parts: list[pl.DataFrame] = []
        self._kinds: dict[str, _First] = {}
        self._texts: dict[str, pl.Categories] = {}

    def check(self, frame: pl.DataFrame, table: Table, columns: Sequence[str]) -> pl.DataFrame:
        """Reads a batch's vectors, reduces other typed columns to their kinds, rejects NaN and too large numbers.

        Raises:
            DataError: a column is of another kind than in an earlier file, or a bad row is not skipped.
        """
        in_file = frame.schema
        frame = self.vectors.read(frame, columns, table)
        if table.typed:
            others = [column for column in columns if column not in self.vectors.lengths]
            frame = typed_columns(frame, others, table.path, self.rejects)
            for column in others:
                if frame.schema[column].is_float():
                    frame = numbers(frame, column, table.path, self.rejects)
        for column in columns:
            if frame.schema[column] != pl.Null:
                self._refuse_other_kind(frame[column], in_file[column], table.path)
        return frame

    def append(self, frame: pl.DataFrame) -> None:
        """Adds a batch; strings become categories, so that each distinct string is stored once per column."""
        texts = [column for column, dtype in frame.schema.items() if dtype == pl.String]
        for column in texts:
            self._texts.setdefault(column, pl.Categories.random())
        frame = frame.with_columns(pl.col(c).cast(pl.Categorical(self._texts[c])) for c in texts)
        self._parts.append(frame.select((self._parts or [frame])[0].columns))

    def joined(self) -> pl.DataFrame | None:
        """Returns all batches as one frame, or None if there are none."""
        if not self._parts:
            return None
        frame = pl.concat(self.vectors.complete(self._parts), how="vertical_relaxed")
        self._parts.clear()
        return frame

    def resolve_kinds(self, events: EventTable) -> None:
        """Determines the kinds of text columns, now that all values are known, and fills `context_kinds`."""
        for column in [] if events.context is None else events.context.columns:
            events.context_kinds[column] = self._kind_of(events, column)

    def _refuse_other_kind(self, values: pl.Series, in_file: pl.DataType, path: Path) -> None:
        column, kind = values.name, kind_of(values.dtype)
        words = "dates" if in_file in (pl.Date, pl.Datetime) else "booleans" if in_file == pl.Boolean else f"{kind}s"
        first = self._kinds.get(column)
        if first is None or (first.empty and kind in ("list", "vector")):
            self._kinds[column] = _First(kind, words, path, empty=kind == "list" and not values.list.len().max())
        elif kind != first.kind or (words != first.words and "dates" in (words, first.words)):
            remedy = "; data.vectors or data.lists makes them alike" if {kind, first.kind} == {"list", "vector"} else ""
            raise DataError(
                f"{path}, column {column!r}: {words} here, {first.words} in {short_name(first.path)}{remedy}"
            )

    def _kind_of(self, events: EventTable, column: str) -> Kind:
        assert events.context is not None
        values = events.context[column]
        categories = self._texts.get(column)
        if categories is None and values.dtype != pl.Null:
            return kind_of(values.dtype)
        distinct = values.cast(pl.String) if categories is None else categories.to_series()
        kind, separator = kind_of_texts(distinct, self.table, column)
        if kind == "list":
            events.context = events.context.with_columns(split_text(pl.col(column).cast(pl.String), separator))
        elif kind == "number":
            texts = values.cast(pl.String)
            number = texts.str.strip_chars().cast(pl.Float64, strict=False)
            broken = texts.str.contains(NOT_A_NUMBER).fill_null(False) | (number.is_null() & texts.is_not_null())
            events.context = events.context.with_columns(number)
            events.reject(broken.to_numpy(), column, "NaN, infinite or not a number", texts, self.rejects)
            large = (events.context[column].abs() > LARGEST).fill_null(False)
            texts = texts.filter(~broken)
            events.reject(large.to_numpy(), column, TOO_LARGE, texts, self.rejects)
            events.context = events.context.with_columns(parsed(texts.filter(~large)))
        return kind
