"""Reads folders of partitions: in `date=2026-11-01/part.parquet` the key `date` becomes a column of that file."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import PurePath

import polars as pl

from pipelines.console import say
from pipelines.ingest.formats.rejects import Rejects
from pipelines.ingest.formats.table import Table

WHOLE_NUMBER = re.compile(r"0|-?[1-9]\d{0,17}")
TRUTH = "truth"


def in_reach(file: PurePath, *folders: str) -> bool:
    """Whether a file, named from the folder given by the user, lies in it, in partitions or in one of `folders`."""
    hidden = any(part.startswith(".") for part in file.parts)
    return not hidden and all("=" in part or part in folders for part in file.parts[:-1])


def with_keys(tables: Sequence[Table], keys: Sequence[Mapping[str, str | None]]) -> list[Table]:
    """Adds to each table its keys as columns, unless the file has a column of that name.

    In typed tables a key whose values in all tables are whole numbers without leading zeros is a number, else text.

    Args:
        tables: one per file.
        keys: the keys of each.

    Raises:
        DataError: a key has the name of an internal column.
    """
    texts = {
        key
        for values in keys
        for key, value in values.items()
        if value is not None and not WHOLE_NUMBER.fullmatch(value)
    }
    return [_with_keys(table, values, texts) for table, values in zip(tables, keys, strict=True)]


def _with_keys(table: Table, values: Mapping[str, str | None], texts: set[str]) -> Table:
    names = [key for key in values if key not in table.columns]
    numbers = set(names) - texts if table.typed else set()
    columns = [
        pl.lit(values[key], pl.String).cast(pl.Int64 if key in numbers else pl.String).alias(key) for key in names
    ]

    def read(rejects: Rejects) -> Iterator[pl.DataFrame]:
        for batch in table.read(rejects):
            yield batch.with_columns(columns)

    unread = tuple(name for name in table.unread if name not in names)
    return replace(table, columns=(*table.columns, *names), unread=unread, read=read)


def warn_of_table_log(folder: object, names: Iterable[str]) -> None:
    """Warns of a folder whose entries of these names show that it may hold replaced files: Delta Lake, Hudi."""
    for log in sorted({"_delta_log", ".hoodie"} & {*names}):
        say(f"warning: {folder}: files that {log} has replaced are read, too; if there are some, export the rows")
