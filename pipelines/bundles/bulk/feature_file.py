"""Reads a file of raw features, one user or item a row, as the requests that a tower of a bundle encodes.

A column is named like the input of the tower that it feeds. A text that feeds a list is cut where training cut it, else
at ``|``; the numbers of a vector in a text may also stand between blanks, commas and brackets.
"""

import re
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import polars as pl

from pipelines.bundles.bulk.trained_columns import TrainedColumns
from pipelines.console import say
from pipelines.dataset.list_text import SEPARATORS, split_text
from pipelines.dataset.number_text import NOT_A_NUMBER, NUMBER, as_strings
from pipelines.errors import DataError
from pipelines.ingest.columns.attributes import typed_columns
from pipelines.ingest.columns.dates import in_calendar, seconds_of
from pipelines.ingest.columns.numbers import numbers, text_kind
from pipelines.ingest.columns.vectors import NOT_NUMBERS
from pipelines.ingest.formats.column_names import shown
from pipelines.ingest.formats.copies import Copies
from pipelines.ingest.formats.rejects import ROW, Rejects
from pipelines.ingest.id_files import ids_of, open_table
from serving.bundle.manifest import FeatureSpec
from serving.bundle.request_features import GREATEST, check_features
from serving.errors import RequestError
from serving.search.index import Floats

Request = dict[str, Any]

CATEGORIES = ("categorical", "hashed")
WHOLE = re.compile(r"\s*(\d+)(?:\.0*)?\s*")


class FeatureFile:
    """An open file of features, which is read from its first row to its last.

    Args:
        path: csv, tsv, parquet or jsonl, also packed as .gz.
        column: its id column.
        specs: the inputs of the tower.
        copies: unpacks the file.
        trained: how training read the columns.

    Raises:
        DataError: the file is missing, of an unknown kind, or lacks the id column, or all columns of features.
    """

    def __init__(
        self,
        path: Path,
        column: str,
        specs: Sequence[FeatureSpec],
        copies: Copies,
        trained: TrainedColumns,
    ) -> None:
        self.column, self.specs, self.rejects = column, specs, Rejects(hint="")
        self._trained = trained
        names = {spec.name for spec in specs}
        self.table = open_table(path, (column,), copies, wanted={column, *names})
        self.path, there = self.table.path, (*self.table.columns, *self.table.unread)
        if objects := [name for name in self.table.unread if name in names]:
            raise DataError(f"{path}: column {objects[0]!r} holds objects; a feature takes values or lists")
        self._id_features = [spec.name for spec in specs if spec.kind == "id"]
        features = [spec for spec in specs if spec.name not in self._id_features]
        self._read = [spec for spec in features if spec.name in self.table.columns]
        if any(spec.kind != "item" for spec in features) and not self._read:
            found, inputs = shown(there), ", ".join(spec.name for spec in features)
            raise DataError(f"{path}: no column of a feature; it has {found}; the tower's inputs are {inputs}")
        if missing := [spec.name for spec in features if spec not in self._read]:
            say(f"{path}: no column {', '.join(missing)}: missing in every row")
            for name in missing:
                if trained.sources.get(name) in there:
                    say(f"{path}: training read {name} from column {trained.sources[name]}: name it {name} for that")
        if unread := [name for name in there if name not in {column, *names}]:
            say(f"{path}: not read, since the tower has no such input: {', '.join(unread)}")
        self._numbers = self._number_columns()
        self._batches, self._held, self._first = self.table.read(self.rejects), pl.DataFrame(), 0

    @cached_property
    def ids(self) -> pl.Series:
        """[rows] the ids; reads the file once.

        Raises:
            DataError: names the row without an id.
        """
        return ids_of(self.table, (self.column,), self.rejects)[self.column]

    def encoded(self, rows: range, encode: Callable[[list[Request]], Floats]) -> Floats:
        """Encodes some rows, forwards: none before one that was read already.

        Args:
            rows: positions, from 0.
            encode: turns B requests into vectors [B, D]; raises RequestError where one is wrong.

        Returns:
            [rows, D].

        Raises:
            DataError: names the row and the column at fault; or another file lies here since `ids` were read.
        """
        frame = self._take(rows)
        if not frame[self.column].cast(pl.String).equals(self.ids[rows.start : rows.stop]):
            raise DataError(f"{self.path}: changed while it was read; give the command again")
        requests = self._requests(frame)
        try:
            return encode(requests)
        except RequestError:
            for request, row in zip(requests, frame[ROW], strict=True):
                try:
                    check_features(self.specs, request)
                except RequestError as error:
                    self.rejects.add(self.path, "", str(error), pl.Series([row]))
            raise

    def _number_columns(self) -> dict[str, pl.Series]:
        """Text columns of categories that were numbers in training, which knows 2.0 as 2; with what it knows otherwise.

        The tower's values tell, so that a row has one vector whatever rows are beside it. A hashed input has no list of
        values: its column in this file tells.
        """
        if self.table.typed:
            return {}
        names = [spec.name for spec in self._read if spec.kind in CATEGORIES and spec.length is None]
        values = {name: pl.Series(self._trained.values.get(name, ()), dtype=pl.String) for name in names}
        kinds = {name: {text_kind(known)} if len(known) else set() for name, known in values.items()}
        unknown = [name for name in names if not kinds[name]]
        for batch in self.table.read(self.rejects) if unknown else ():
            for name in unknown:
                if batch[name].null_count() < batch.height:
                    kinds[name].add(text_kind(batch[name]))
        numeric = {name: values[name] for name in names if kinds[name] == {"number"}}
        return {name: known.filter(_number_texts(known) != known) for name, known in numeric.items()}

    def _take(self, rows: range) -> pl.DataFrame:
        parts = []
        while rows:
            if rows.start >= self._first + self._held.height:
                self._first += self._held.height
                try:
                    self._held = next(self._batches)
                except StopIteration:
                    raise DataError(f"{self.path}: has lost rows since it was opened") from None
                continue
            parts.append(self._held.slice(rows.start - self._first, len(rows)))
            rows = rows[parts[-1].height :]
        return pl.concat(parts, how="vertical_relaxed")

    def _requests(self, frame: pl.DataFrame) -> list[Request]:
        for spec in self._read:
            frame = self._converted(frame, spec)
        columns = {name: pl.col(self.column).cast(pl.String) for name in self._id_features}
        requests = frame.select(*(spec.name for spec in self._read), **columns).to_dicts()
        for name in (spec.name for spec in self._read if spec.kind in GREATEST):
            for request in requests:
                # A number, or a time: each by itself, as no column holds both.
                if isinstance(text := request[name], str) and (number := WHOLE.fullmatch(text)):
                    request[name] = int(number[1])
        return requests

    def _converted(self, frame: pl.DataFrame, spec: FeatureSpec) -> pl.DataFrame:
        """Converts a column to the type of its feature where it can; `check_features` judges the rest."""
        name, value = spec.name, pl.col(spec.name)
        if spec.length is not None and spec.dtype != "string":
            inner = getattr(frame.schema[name], "inner", None)
            if inner in (pl.Datetime, pl.Date):
                frame = in_calendar(frame, name, self.path, self.rejects)
                seconds = value.cast(pl.List(pl.Int64)).list.eval(seconds_of(pl.element(), inner))
                frame = frame.with_columns(seconds)
            return _lists_of_numbers(frame, name, self.path)
        if spec.kind in GREATEST and isinstance(kind := frame.schema[name], pl.Datetime):
            if kind.time_zone is None:
                raise DataError(f"{self.path}: column {name!r} holds times without a zone; give them one")
            return frame.with_columns(value.dt.convert_time_zone("UTC").dt.strftime("%Y-%m-%dT%H:%M:%SZ"))
        if self.table.typed:
            frame = typed_columns(frame, [name], self.path, self.rejects)
        separator = self._trained.separators.get(name, None if spec.length is None else SEPARATORS[0])
        if separator and frame.schema[name] == pl.String:
            frame = frame.with_columns(split_text(value, separator))
        dtype = frame.schema[name]
        if spec.length is not None:
            if not isinstance(dtype, pl.List):
                return frame
            # As training: of words it keeps the first, of neighbours the last. Of a history the request keeps those.
            cut = {"multi": value.list.head, "neighbours": value.list.tail, "cooccurrence": value.list.tail}
            return frame.with_columns(cut[spec.kind](spec.length)) if spec.kind in cut else frame
        if spec.kind == "text" and isinstance(dtype, pl.List):  # as training joins the parts
            return frame.with_columns(value.list.join(" "))
        if name in self._numbers:
            texts, other = frame[name], frame[name].is_in(self._numbers[name])
            return frame.with_columns(texts.zip_with(other, _number_texts(texts)))
        if spec.kind in CATEGORIES and dtype.is_float():
            frame = numbers(frame, name, self.path, self.rejects)
            return frame.with_columns(as_strings(frame[name]))
        if spec.dtype == "string":
            return frame.with_columns(value.cast(pl.String)) if dtype.is_integer() else frame
        if spec.dtype == "float32":
            return numbers(frame, name, self.path, self.rejects) if dtype == pl.String or dtype.is_float() else frame
        return _whole_numbers(frame, name) if dtype == pl.String and spec.kind not in GREATEST else frame


def _number_texts(texts: pl.Series) -> pl.Series:
    """Writes numbers as training knows them, whole ones without a point; null for NaN, other texts as they are."""
    value, bare = pl.col(texts.name), pl.col(texts.name).str.strip_chars()
    # Each by itself, as rows are read in parts: a float would lose digits of a long whole number.
    whole = bare.cast(pl.Int64, strict=False).cast(pl.String)
    floats = as_strings(texts.str.strip_chars().cast(pl.Float64, strict=False))
    number = pl.when(value.str.contains(NUMBER)).then(pl.coalesce(whole, floats))
    return texts.to_frame().select(number.when(~bare.str.contains(NOT_A_NUMBER)).then(value)).to_series()


def _lists_of_numbers(frame: pl.DataFrame, name: str, path: Path) -> pl.DataFrame:
    dtype, value = frame.schema[name], pl.col(name)
    if dtype == pl.Null:
        return frame
    inner = dtype.inner if isinstance(dtype, pl.List | pl.Array) else dtype
    if dtype != pl.String and (inner is dtype or not (inner.is_numeric() or inner in (pl.String, pl.Null))):
        raise DataError(f"{path}, column {name!r}: must hold lists of numbers, or texts of them, got {dtype}")
    if dtype == pl.String:
        value = value.str.replace_all(NOT_NUMBERS, " ").str.split(" ").list.filter(pl.element() != "")
    return frame.with_columns(value.cast(pl.List(pl.Float64), strict=False))


def _whole_numbers(frame: pl.DataFrame, name: str) -> pl.DataFrame:
    """Turns texts into whole numbers, if all are."""
    value = pl.col(name)
    whole = value.cast(pl.Int64, strict=False)
    plain = frame.select((whole.is_not_null() | value.is_null()).all()).item()
    return frame.with_columns(whole) if plain else frame
