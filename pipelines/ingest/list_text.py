"""Texts that hold several values: which columns of text are lists, and their texts taken apart.

In: the texts of a column, from a file of any format. Out: its kind and separator, the lists.
"""

import polars as pl

from pipelines.errors import DataError
from pipelines.ingest.numbers import text_kind
from pipelines.ingest.tables import Kind, Table

# The first makes a list of a column by itself: between words it has no other use. The others are told, not taken.
SEPARATORS = ("|", ";", ",", "/")
HOLD_SHARE = 0.5  # of the different texts must hold the separator
TEXTS_A_PART = 2  # and so many of them, on average, must hold the same part


def kind_of_texts(texts: pl.Series, table: Table, column: str) -> tuple[Kind, str]:
    """The kind of a column of text, and what separates its parts where that is ``list``.

    What `data.lists` says counts most, then what the format declares; then, in a file without types, whether every
    text reads as a number; then whether the texts look like lists, as `separator_of` says, separated by ``|``.

    Args:
        texts: [N] its values; of each text once is enough.
        table: the file.
        column: its name.
    """
    separator, declared = table.separators.get(column), table.kinds.get(column)
    if separator or (declared == "list" and separator is None):
        return "list", separator or " "
    if declared is not None and declared != "list":
        return declared, ""
    if not table.typed and text_kind(texts) == "number":
        return "number", ""
    if separator is None and separator_of(texts, SEPARATORS[:1]):
        return "list", SEPARATORS[0]
    return "string", ""


def separator_of(texts: pl.Series, separators: tuple[str, ...] = SEPARATORS) -> str | None:
    """The separator by which texts look like lists, or None.

    Most of the different texts hold it, and its parts repeat: on average each is part of two different texts.
    """
    different = pl.DataFrame({"text": texts}).drop_nulls().unique()
    for separator in separators:
        holding = different.select(pl.col("text").str.contains(separator, literal=True).sum()).item()
        if holding > HOLD_SHARE * different.height:
            lists = different.select(split_text(pl.col("text"), separator).list.unique()).to_series()
            parts = lists.explode().drop_nulls()
            if len(parts) >= TEXTS_A_PART * max(1, parts.n_unique()):
                return separator
    return None


def split_text(texts: pl.Expr, separator: str) -> pl.Expr:
    """Lists of the parts of texts, without blanks around a part; an empty part is none."""
    parts = texts.str.split(separator).list.eval(pl.element().str.strip_chars())
    return parts.list.filter(pl.element() != "")


def refuse_unknown_lists(lists: dict[str, str], kinds: dict[str, Kind]) -> None:
    """Holds `data.lists` against the columns that were read.

    Args:
        lists: separators by column.
        kinds: of the attributes and context columns of all files.

    Raises:
        DataError: a column is not there, or holds numbers.
    """
    for column, separator in lists.items():
        if column not in kinds:
            there = ", ".join(kinds) or "none"
            raise DataError(
                f"data.lists.{column}: no column of that name beside ids, time and weight; there are {there}"
            )
        if separator and kinds[column] != "list":
            raise DataError(f"data.lists.{column}: a list is made of text, and {column!r} holds {kinds[column]}s")
