"""Reading a list of similar items: the file that `similarity.pairs` names.

In: a csv, tsv, parquet or jsonl file with the columns `item_a` and `item_b`, and the data set's item ids. Out: pairs of
item numbers. A bad row is a `DataError` that names the file and the row.
"""

import hashlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl

from pipelines.errors import DataError
from pipelines.ingest.delimited import csv_table
from pipelines.ingest.jsonl import jsonl_table
from pipelines.ingest.rejects import ROW, Rejects
from pipelines.ingest.tables import Table, parquet_table
from towers.events import Int64s

COLUMNS = ("item_a", "item_b")


def read_pairs(path: Path, item_ids: pl.Series) -> Int64s:
    """Reads pairs of different items.

    Args:
        path: the file.
        item_ids: [N] ids by item number.

    Returns:
        Item numbers [P, 2], as they stand in the file.

    Raises:
        DataError: the file is missing, of an unknown kind, without the columns, or holds a row with an empty or
            unknown id, or with the same item twice.
    """
    opener = _OPENERS.get(path.suffix.lower())
    if opener is None:
        raise DataError(f"{path}: unknown kind of file {path.suffix!r}; allowed are {', '.join(_OPENERS)}")
    table = opener(path)
    for column in COLUMNS:
        if column not in table.columns:
            raise DataError(f"{path}: no column {column!r}; it has {', '.join(table.columns)}")
    rejects = Rejects(hint="")
    frames = [_ids(batch, path, rejects) for batch in table.read(rejects)]
    pairs = pl.concat([pl.DataFrame(schema={**dict.fromkeys(COLUMNS, pl.String), ROW: pl.Int64}), *frames])
    known = pl.DataFrame({"id": item_ids, "number": np.arange(len(item_ids))})
    numbers = [
        pairs.join(known, left_on=column, right_on="id", how="left", maintain_order="left") for column in COLUMNS
    ]
    _refuse_unknown(pairs, [each["number"] for each in numbers], path)
    return np.stack([each["number"].to_numpy().astype(np.int64) for each in numbers], axis=1)


def pairs_digest(path: Path) -> str:
    """SHA-256 of the file, by which a report knows it again.

    Raises:
        DataError: it cannot be read.
    """
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from None


def _ids(batch: pl.DataFrame, path: Path, rejects: Rejects) -> pl.DataFrame:
    for column in COLUMNS:
        dtype = batch.schema[column]
        if not (dtype == pl.String or dtype.is_integer() or dtype == pl.Null):
            raise DataError(f"{path}: column {column!r} must hold strings or whole numbers, holds {dtype}")
    ids = batch.select(*(pl.col(column).cast(pl.String) for column in COLUMNS), pl.col(ROW).cast(pl.Int64))
    for column in COLUMNS:
        ids = rejects.split_off(ids, pl.col(column).is_null() | (pl.col(column) == ""), path, column, "no id")
    return rejects.split_off(ids, pl.col("item_a") == pl.col("item_b"), path, "item_b", "an item beside itself")


def _refuse_unknown(pairs: pl.DataFrame, numbers: list[pl.Series], path: Path) -> None:
    unknown = [pairs.filter(found.is_null())[column] for column, found in zip(COLUMNS, numbers, strict=True)]
    count = len(pl.concat(unknown).unique())
    if count:
        first = next(each[0] for each in unknown if len(each))
        raise DataError(
            f"{path}: {count:,} item ids, {first!r} for one, are not in the data set; leave their pairs out "
            "(data.min_item_events may have left the items out)"
        )


# Text columns stay text: an id like 007 must not become 7.
_OPENERS: dict[str, Callable[[Path], Table]] = {
    ".csv": csv_table,
    ".tsv": lambda path: csv_table(path, separator="\t"),
    ".parquet": parquet_table,
    ".jsonl": lambda path: jsonl_table(path, lambda name: name in COLUMNS),
}
