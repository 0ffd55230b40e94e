"""Reading a list of user ids: the `--users` of bulk recall.

In: a csv, parquet or jsonl file with a column `user_id`, or a txt file with one id a line. Out: distinct ids in order.
"""

from collections.abc import Callable
from pathlib import Path

import polars as pl

from pipelines.errors import DataError
from pipelines.ingest.delimited import csv_table
from pipelines.ingest.jsonl import jsonl_table
from pipelines.ingest.rejects import ROW, Rejects
from pipelines.ingest.tables import Table, lines_table, parquet_table

COLUMN = "user_id"


def read_users(path: Path) -> pl.Series:
    """Reads user ids as strings; repeated ones count once.

    Raises:
        DataError: the file is missing, of an unknown kind, without the column, or holds a bad row (an empty id, text
            that is not UTF-8, too many values); names the row.
    """
    opener = _OPENERS.get(path.suffix.lower())
    if opener is None:
        raise DataError(f"{path}: unknown kind of file {path.suffix!r}; allowed are {', '.join(_OPENERS)}")
    if opener is _text_table and path.is_file() and path.stat().st_size == 0:
        return pl.Series(COLUMN, dtype=pl.String)
    table = opener(path)
    if COLUMN not in table.columns:
        raise DataError(f"{path}: no column {COLUMN!r}; it has {', '.join(table.columns)}")
    rejects = Rejects(hint="")
    parts = [pl.Series(COLUMN, dtype=pl.String)]
    for batch in table.read(rejects):
        dtype = batch.schema[COLUMN]
        if not (dtype == pl.String or dtype.is_integer() or dtype == pl.Null):
            raise DataError(f"{path}: column {COLUMN!r} must hold strings or whole numbers, holds {dtype}")
        ids = batch.select(pl.col(COLUMN).cast(pl.String), ROW)
        empty = pl.col(COLUMN).is_null() | (pl.col(COLUMN) == "")
        parts.append(rejects.split_off(ids, empty, path, COLUMN, "no id")[COLUMN])
    return pl.concat(parts).unique(maintain_order=True)


def _text_table(path: Path) -> Table:
    def parse(lines: pl.DataFrame, rejects: Rejects) -> pl.DataFrame:
        return lines.rename({"line": COLUMN})

    return lines_table(path, (COLUMN,), parse)


# Text columns stay text: an id like 007 must not become 7.
_OPENERS: dict[str, Callable[[Path], Table]] = {
    ".csv": csv_table,
    ".tsv": lambda path: csv_table(path, separator="\t"),
    ".parquet": parquet_table,
    ".jsonl": lambda path: jsonl_table(path, lambda name: name == COLUMN),
    ".txt": _text_table,
}
