"""Reads items and users as typed columns: strings, numbers, lists of strings and vectors, one row per id.

Decides which text columns are lists, and checks `data.lists` and `data.vectors` against the columns read.
"""

from pathlib import Path

import polars as pl

from pipelines.console import progress
from pipelines.dataset.list_text import SEPARATORS, separator_of, split_text
from pipelines.dataset.manifest import Kind
from pipelines.errors import DataError
from pipelines.ingest.columns.dates import in_calendar
from pipelines.ingest.columns.ids import IdColumn, IdForm
from pipelines.ingest.columns.numbers import numbers, text_kind
from pipelines.ingest.columns.vectors import Vectors
from pipelines.ingest.formats.rejects import Rejects
from pipelines.ingest.formats.table import Table
from towers.config.sections import DataConfig

RESERVED = ("user_id", "item_id", "train_count")


def read_attributes(
    table: Table, column: str, name: str, rejects: Rejects, form: IdForm
) -> tuple[pl.DataFrame, dict[str, Kind]]:
    """Reads an items or users file.

    Args:
        table: the file.
        column: its id column.
        name: the new name of the id column, ``item_id`` or ``user_id``.
        rejects: receives bad rows.
        form: how the data set's files write these ids.

    Returns:
        The frame (`name` as String, then the attributes, rows in file order) and the kinds of the attributes.

    Raises:
        DataError: bad rows that are not skipped, no rows at all, a reserved name or an unsupported type.
    """
    attributes = [other for other in table.columns if other != column]
    if reserved := [other for other in attributes if other in RESERVED]:
        # Which of the two holds the events' ids is not known before these are read.
        which = f" if the ids are in {column!r}, as in the events; else rename {column!r}" * (reserved[0] == name)
        raise DataError(f"{table.path}: the column name {reserved[0]!r} is reserved; rename that column{which}")
    ids, vectors = IdColumn(table.path, column, rejects, form), Vectors(rejects)
    parts = []
    with progress(f"read {table.path.name}", total=table.rows, unit="rows") as advance:
        for batch in rejects.counted(table.path, table.read(rejects)):
            batch = vectors.read(batch, attributes, table)
            if table.typed:
                others = [other for other in attributes if other not in vectors.lengths]
                batch = typed_columns(batch, others, table.path, rejects)
            parts.append(ids.clean(batch))
            advance(batch.height)
    frame = pl.concat(vectors.complete(parts), how="vertical_relaxed") if parts else pl.DataFrame()
    _refuse_nothing(frame, table, rejects)
    first = pl.col(column).is_first_distinct()
    for attribute in attributes:
        if frame.schema[attribute] == pl.Null:
            frame = frame.with_columns(pl.col(attribute).cast(pl.String))
        frame = convert(frame, attribute, table, rejects, told_by=first)
    frame = rejects.split_off(frame, ~first, table.path, column, f"a duplicate row of this {name.removesuffix('_id')}")
    _refuse_nothing(frame, table, rejects)
    kinds = {attribute: kind_of(frame.schema[attribute]) for attribute in attributes}
    return frame.select(pl.col(column).alias(name), *attributes), kinds


def _refuse_nothing(frame: pl.DataFrame, table: Table, rejects: Rejects) -> None:
    if frame.is_empty():
        raise DataError(f"{table.path}: no row to read{rejects.left_out(table.path)}")


def convert(
    frame: pl.DataFrame, column: str, table: Table, rejects: Rejects, *, told_by: pl.Expr | bool = True
) -> pl.DataFrame:
    """Converts a text column to the kind of the rows `told_by`; rejects rows of a number column without a number."""
    dtype = frame.schema[column]
    kind, separator = None, ""
    if dtype == pl.String:
        kind, separator = kind_of_texts(frame.filter(told_by)[column], table, column)
    if kind == "list":
        return frame.with_columns(split_text(pl.col(column), separator))
    return numbers(frame, column, table.path, rejects) if kind == "number" or dtype.is_float() else frame


def typed_columns(frame: pl.DataFrame, columns: list[str], path: Path, rejects: Rejects) -> pl.DataFrame:
    """Reduces typed columns to strings, numbers and lists: booleans become text, dates seconds since 1970.

    Args:
        frame: a batch with `ROW`.
        columns: those to reduce.
        path: the file, for messages.
        rejects: receives rows with a date outside the calendar.

    Raises:
        DataError: a column has an unsupported type, or a bad row is not skipped.
    """
    expressions = []
    for column in columns:
        dtype, value = frame.schema[column], pl.col(column)
        if dtype == pl.Boolean or dtype in (pl.Categorical, pl.Enum):
            value = value.cast(pl.String)
        elif dtype in (pl.Datetime, pl.Date):
            frame = in_calendar(frame, column, path, rejects)
            value = value.cast(pl.Datetime("us")).dt.epoch("s")
        elif isinstance(dtype, pl.List | pl.Array) and not (
            dtype.inner.is_nested() or dtype.inner in (pl.Binary, pl.Duration)
        ):
            if dtype.inner in (pl.Datetime, pl.Date):
                frame = in_calendar(frame, column, path, rejects)
            value = value if isinstance(dtype, pl.List) else value.arr.to_list()
            value = value.cast(pl.List(pl.String)).list.drop_nulls()
        elif dtype in (pl.Int128, pl.Float16):  # later steps compute with neither
            value = value.cast(pl.Float64)
        elif not (dtype in (pl.String, pl.Null) or dtype.is_numeric()):
            raise DataError(f"{path}, column {column!r}: a column of type {dtype} is not supported; drop or convert it")
        expressions.append(value)
    return frame.with_columns(expressions)


def kind_of(dtype: pl.DataType) -> Kind:
    """The kind of a converted column."""
    if isinstance(dtype, pl.List | pl.Array):
        return "list" if isinstance(dtype, pl.List) else "vector"
    return "number" if dtype.is_numeric() else "string"


def kind_of_texts(texts: pl.Series, table: Table, column: str) -> tuple[Kind, str]:
    """Returns the kind of a text column, and the separator of its parts if the kind is ``list``.

    `data.lists` comes first, then what the format declares. Then, in a file without types, texts that all parse as
    numbers make a column of numbers. Last, texts that look like lists by ``|``, see `separator_of`, are lists.

    Args:
        texts: [N] its values; distinct ones are enough.
        table: the file.
        column: its name.
    """
    separator, declared = table.separators.get(column), table.kinds.get(column)
    if separator or (declared == "list" and separator is None):
        return "list", separator or " "
    if declared is not None and declared not in ("list", "vector"):  # texts of a vector column are all missing
        return declared, ""
    if not table.typed and text_kind(texts) == "number":
        return "number", ""
    if separator is None and separator_of(texts, SEPARATORS[:1]):
        return "list", SEPARATORS[0]
    return "string", ""


def refuse_unknown_columns(config: DataConfig, kinds: dict[str, Kind]) -> None:
    """Checks `data.lists` and `data.vectors` against the columns read.

    Args:
        config: the settings.
        kinds: kinds of the attributes and context columns of all files.

    Raises:
        DataError: a column does not exist, or holds numbers.
    """
    named = {f"data.lists.{column}": column for column in config.lists}
    for key, column in (named | {f"data.vectors: {column!r}": column for column in config.vectors}).items():
        if column not in kinds:
            there = ", ".join(kinds) or "none"
            raise DataError(f"{key}: no column of that name besides ids, time, type and weight; there are {there}")
    for column, separator in config.lists.items():
        if separator and kinds[column] != "list":
            raise DataError(f"data.lists.{column}: a list is made of text, and {column!r} holds {kinds[column]}s")
