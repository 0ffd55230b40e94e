"""Reads attributes that are one JSON object, id to list of words: the form in which S3Rec publishes those of items.

Source: https://github.com/RUCAIBox/CIKM2020-S3Rec (`item2attributes.json`).
"""

import json
from codecs import BOM_UTF8
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import polars as pl

from pipelines.console import is_text
from pipelines.errors import DataError
from pipelines.ingest.formats.rejects import ROW, Rejects
from pipelines.ingest.formats.table import Table, text_file

COLUMNS = ("id", "attributes")


def holds_lines(path: Path) -> bool:
    """Whether a `.json` file is JSON Lines, as Yelp and Amazon name them: a whole object on the first of its lines.

    One object alone is a line if none of its values is a list.
    """
    with path.open("rb") as handle:
        lines = (line for line in handle if line.removeprefix(BOM_UTF8).strip())
        first, second = next(lines, b"").removeprefix(BOM_UTF8), next(lines, None)
    try:
        found = orjson.loads(first)
    except orjson.JSONDecodeError:
        return False
    if isinstance(found, dict) and second is None:
        return bool(found) and not any(isinstance(value, list) for value in found.values())
    return isinstance(found, dict)


def json_lists_table(path: Path, *, skip: bool = False) -> Table:
    """Opens such a file as the columns `id` and `attributes`; the row of an entry is its place, from 1.

    Args:
        path: the file, which is read at once.
        skip: changes nothing: what is not one whole object raises, and bad entries go to the `Rejects`.

    Raises:
        DataError: the file is empty, not UTF-8 or not one JSON object.
    """
    text_file(path)
    try:
        # As pairs, so that an id that comes twice is seen.
        entries = json.loads(path.read_text(encoding="utf-8-sig"), object_pairs_hook=tuple)
    except json.JSONDecodeError as error:
        raise DataError(f"{path}, row {error.lineno}: not JSON: {error.msg}") from None
    except (ValueError, RecursionError) as error:  # a number of thousands of digits, lists in lists in lists
        raise DataError(f"{path}: cannot be read: {error}") from None
    if not isinstance(entries, tuple):
        raise DataError(f"{path}: expected one JSON object of ids and lists, got a {type(entries).__name__}")

    def read(rejects: Rejects) -> Iterator[pl.DataFrame]:
        good: dict[str, list[Any]] = {name: [] for name in (*COLUMNS, ROW)}
        for row, (name, words) in enumerate(entries, start=1):
            if not is_text(name):
                _reject(rejects, path, COLUMNS[0], "the id holds half of a surrogate pair", row, name)
            elif not _are_words(words):
                reason = "expected a list of words or whole numbers"
                _reject(rejects, path, COLUMNS[1], reason, row, json.dumps(words, ensure_ascii=False))
            else:
                for column, value in zip(good, (name, [str(word) for word in words], row), strict=True):
                    good[column].append(value)
        yield pl.DataFrame(good, {COLUMNS[0]: pl.String(), COLUMNS[1]: pl.List(pl.String), ROW: pl.UInt32()})

    return Table(path, COLUMNS, len(entries), read, typed=True)


def _reject(rejects: Rejects, path: Path, column: str, reason: str, row: int, value: str) -> None:
    shown = value.encode("utf-8", "backslashreplace").decode()[:80]
    rejects.add(path, column, reason, pl.Series([row]), pl.Series([shown]))


def _are_words(value: object) -> bool:
    return isinstance(value, list) and all(
        is_text(word) if isinstance(word, str) else isinstance(word, int) and not isinstance(word, bool)
        for word in value
    )
