"""Derives features for a side that the recipe leaves out: ids, history, and attributes by the type of their column."""

import keyword
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

import polars as pl

from pipelines.console import amount
from pipelines.dataset.arrays import CONTEXT
from pipelines.dataset.dataset import Dataset
from pipelines.dataset.list_text import separator_of
from pipelines.dataset.number_text import word_among_numbers
from pipelines.dataset.partition_keys import keys_of_time
from towers.config.features import Feature
from towers.config.recipe import parse_config

DISTINCT_SHARE = 0.5  # a string column whose distinct values are a larger share of its values is free text or a key
ODD_SHARE = 0.5  # a string column that holds fewer texts that are no numbers than this would be one of numbers
FEW_TEXTS = 3  # so few different texts, as 0, 1 and yes, are categories
# Numbers with a decimal comma, separators of thousands or a currency, by this share of the distinct texts.
AMOUNT = r"^\s*(?:[€$£¥]|EUR|USD|GBP)?\s*-?\d{1,3}(?:[., '’]?\d{3})*(?:[.,]\d{1,2})?\s*(?:[€$£¥]|EUR|USD|GBP)?\s*$"
AMOUNT_SHARE = 0.9
LONGEST_WORD = 30  # letters shown of a word
LONGEST_NAME = 100  # letters of a derived name, which files are called by
# Whole numbers are category codes if they are small, few and each frequent; years and amounts are not.
LARGEST_CODE, MOST_CODES, ROWS_A_CODE = 999, 50, 20
NO_VALUE = "it has no value"
NO_NAME = "it has no name, like the row numbers that pandas writes"  # a recipe cannot name it
ROW_NUMBERS = "row numbers that pandas wrote"
ROW_NUMBER_NAMES = ("__index_level_0__", "Unnamed: 0")  # Parquet; a CSV that pandas wrote, read and wrote again
TIME_KEY = "the time of a partition, and training does not know later ones"
LOOKED_AT = 100_000  # rows inspected to see whether strings look like lists
# Known users' stored vectors and requests without context lack it, so half the examples train without it.
CONTEXT_MASK_SHARE = 0.5
# Features of each side that read no column of attributes, by name.
GIVEN: Mapping[str, Mapping[str, str]] = {
    "query": {"user_id": "id", "history": "history"},
    "candidate": {"item_id": "id"},
}


@dataclass(frozen=True)
class Choice:
    """What derivation makes of a column.

    Attributes:
        name: the feature's name.
        kind: the feature's kind; None if the column is left out.
        reason: why.
        settings: the feature's settings other than its kind.
    """

    name: str
    kind: str | None
    reason: str
    settings: Mapping[str, Any]


def derive(dataset: Dataset, side: str) -> dict[str, Feature]:
    """Derives the features of a side: the ids of users, their history, attributes and context, or those of items."""
    features: dict[str, dict[str, Any]] = {name: {"kind": kind} for name, kind in GIVEN[side].items()}
    found = choices(dataset, side).values()
    features |= {each.name: {"kind": each.kind, **each.settings} for each in found if each.kind is not None}
    derived: dict[str, Feature] = getattr(parse_config({"features": {side: features}}).features, side)
    return derived


def choices(dataset: Dataset, side: str) -> dict[str, Choice]:
    """Returns what each column of a side becomes, by column.

    Args:
        dataset: the data set.
        side: ``query`` (users and events) or ``candidate`` (items).
    """
    found: dict[str, tuple[str | None, str, dict[str, Any]]] = {}

    def add(frame: pl.LazyFrame, columns: Mapping[str, str], **settings: float) -> None:
        for column, kind in columns.items():
            reason = of_row_numbers(column, kind)
            why = (None, reason) if reason else _kind(frame.select(column), pl.col(column), kind)
            found[column] = (*why, {"column": column, **settings})

    manifest = dataset.manifest
    taken = [*GIVEN[side]]
    if side == "candidate":
        add(pl.scan_parquet(dataset.path / "items.parquet", glob=False), manifest.item_columns)
    else:
        users = manifest.user_columns
        add(pl.scan_parquet(dataset.path / "users.parquet", glob=False), users)
        # A column in both files is the user's: a feature reads a column by a single name.
        own = {column: kind for column, kind in manifest.event_columns.items() if column not in users}
        if own:
            files = sorted(dataset.path.glob(f"train*/{CONTEXT}"))
            add(pl.scan_parquet(files, glob=False), own, mask_share=CONTEXT_MASK_SHARE)
        for column in keys_of_time(manifest.source.files) & own.keys():
            found[column] = (None, TIME_KEY, found[column][2])
    made: dict[str, Choice] = {}
    # Left-out columns take the names that remain free.
    for column, (kind, reason, settings) in sorted(found.items(), key=lambda each: each[1][0] is None):
        made[column] = Choice(_free_name(input_name(column)[:LONGEST_NAME], taken), kind, reason, settings)
        taken.append(made[column].name)
    return {column: made[column] for column in found}


def of_row_numbers(column: str, kind: str) -> str | None:
    """Returns why a column of row numbers, which of events grow with time, is left out; None if it is another."""
    if not column:
        return NO_NAME
    return ROW_NUMBERS if kind == "number" and column.startswith(ROW_NUMBER_NAMES) else None


def input_name(column: str) -> str:
    """Returns a name that a SavedModel keeps for an input, close to the column's own."""
    name = re.sub(r"\W", "_", column, flags=re.ASCII)
    usable = name.isidentifier() and not name.startswith("_") and not keyword.iskeyword(name) and name != "self"
    return name if usable else f"f_{name}"


def _kind(frame: pl.LazyFrame, values: pl.Expr, kind: str) -> tuple[str | None, str]:
    """Returns the kind of a column's feature, or None, and why."""

    def found(what: pl.Expr) -> int:
        # Streamed in pieces: event columns have as many rows as there are events.
        return int(frame.select(what).collect(engine="streaming").item() or 0)

    rows = found(values.is_not_null().sum())  # those without a value count in no share
    if rows == 0:
        return None, NO_VALUE
    if kind == "list":
        return "multi", "lists"
    if kind == "vector":
        (dtype,) = frame.collect_schema().dtypes()
        assert isinstance(dtype, pl.Array)
        return "vector", f"vectors of {amount(dtype.size, 'numbers')}"
    if kind == "number":
        return _kind_of_numbers(found, values, rows)
    distinct = found(values.drop_nulls().n_unique())
    first = frame.head(LOOKED_AT).collect()
    separator = separator_of(first.to_series())
    hint = "" if separator is None else f"; they look like lists separated by {separator!r} (see data.lists)"
    if separator is None and (written := _amount_among(first.to_series().drop_nulls().unique())):
        hint = f"; they look like numbers, such as {written!r}: write them like 1234.5, without a currency"
    odd = word_among_numbers(first, frame) if distinct > FEW_TEXTS else None
    if odd is not None and odd[1] < ODD_SHARE * rows:
        word = odd[0] if len(odd[0]) <= LONGEST_WORD else f"{odd[0][: LONGEST_WORD - 1]}…"
        hint += f"; all but {amount(odd[1], 'rows')} hold numbers, not {word!r}"
    if distinct <= max(2, DISTINCT_SHARE * rows):
        return "categorical", f"{amount(distinct, 'different texts')} in {amount(rows, 'rows')}{hint}"
    if found(values.str.contains(" ", literal=True).sum()) > DISTINCT_SHARE * rows:
        return "text", f"{amount(distinct, 'different texts')} in {amount(rows, 'rows')}, most of several words{hint}"
    # Distinct values without spaces are a key, which a model would only memorise.
    return None, f"{amount(distinct, 'different words')} in {amount(rows, 'rows')}: a key{hint}"


def _amount_among(texts: pl.Series) -> str | None:
    """The first of texts that are amounts written for people, or None if most are words, or numbers."""
    amounts = texts.filter(texts.str.contains(AMOUNT))
    odd = amounts.filter(amounts.str.strip_chars().cast(pl.Float64, strict=False).is_null())
    most = len(amounts) >= AMOUNT_SHARE * len(texts) and len(odd) > (1 - AMOUNT_SHARE) * len(texts)
    return str(odd.min()) if most else None


def _kind_of_numbers(found: Callable[[pl.Expr], int], values: pl.Expr, rows: int) -> tuple[str, str]:
    if found((values != values.floor()).sum()):
        return "numeric", "numbers with fractions"
    if found(((values < -1) | (values > LARGEST_CODE)).sum()):
        return "numeric", f"whole numbers, not all of them from -1 to {LARGEST_CODE}"
    distinct = found(values.drop_nulls().n_unique())
    counted = f"{amount(distinct, 'different whole numbers')} in {amount(rows, 'rows')}"
    if distinct <= MOST_CODES and distinct * ROWS_A_CODE <= rows:
        return "categorical", f"{counted}: codes"
    return "numeric", f"{counted}: too many for codes, or too rare"


def _free_name(name: str, taken: Collection[str]) -> str:
    number = 2
    free = name
    lower = {each.lower() for each in taken}  # a SavedModel does not tell its inputs apart by case
    while free.lower() in lower:
        free, number = f"{name}_{number}", number + 1
    return free
