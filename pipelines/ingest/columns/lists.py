"""Decides which text columns are lists, and checks `data.lists` and `data.vectors` against the columns read."""

import polars as pl

from pipelines.dataset.list_text import SEPARATORS, separator_of
from pipelines.dataset.manifest import Kind
from pipelines.errors import DataError
from pipelines.ingest.columns.numbers import text_kind
from pipelines.ingest.formats.table import Table
from towers.config.sections import DataConfig


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
            raise DataError(f"{key}: no column of that name besides ids, time and weight; there are {there}")
    for column, separator in config.lists.items():
        if separator and kinds[column] != "list":
            raise DataError(f"data.lists.{column}: a list is made of text, and {column!r} holds {kinds[column]}s")
