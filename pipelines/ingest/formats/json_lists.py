"""Reads attributes that are one JSON object, id to list of words: the form in which S3Rec publishes those of items.

Source: https://github.com/RUCAIBox/CIKM2020-S3Rec (`item2attributes.json`).
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl

from pipelines.errors import DataError
from pipelines.ingest.formats.rejects import ROW, Rejects
from pipelines.ingest.formats.table import Table, text_file

COLUMNS = ("id", "attributes")


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
    if not isinstance(entries, tuple):
        raise DataError(f"{path}: expected one JSON object of ids and lists, got a {type(entries).__name__}")

    def read(rejects: Rejects) -> Iterator[pl.DataFrame]:
        good: dict[str, list[Any]] = {name: [] for name in (*COLUMNS, ROW)}
        for row, (name, words) in enumerate(entries, start=1):
            if _are_words(words):
                values = (name, [str(word) for word in words], row)
                for column, value in zip(good, values, strict=True):
                    good[column].append(value)
            else:
                reason = "expected a list of words or whole numbers"
                shown = json.dumps(words, ensure_ascii=False)[:80]
                rejects.add(path, COLUMNS[1], reason, pl.Series([row]), pl.Series([shown]))
        yield pl.DataFrame(good, {COLUMNS[0]: pl.String(), COLUMNS[1]: pl.List(pl.String), ROW: pl.UInt32()})

    return Table(path, COLUMNS, len(entries), read, typed=True)


def _are_words(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(word, str | int) and not isinstance(word, bool) for word in value)
