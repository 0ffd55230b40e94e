"""Reads the list of similar items that `similarity.pairs` names.

The file, also packed (``.gz``) or behind a URL, is csv, tsv, parquet or jsonl with the columns `item_a` and `item_b`. A
bad row is a `DataError` that names the file and the row.
"""

import hashlib
from pathlib import Path

import numpy as np
import polars as pl

from pipelines.errors import DataError
from pipelines.ingest.formats.copies import local_copies
from pipelines.ingest.formats.rejects import Rejects
from pipelines.ingest.id_files import read_ids
from towers.data.events import Int64s

COLUMNS = ("item_a", "item_b")


def read_pairs(place: Path | str, item_ids: pl.Series) -> Int64s:
    """Reads pairs of different items.

    Args:
        place: the file, a path or a URL that fsspec knows.
        item_ids: [N] ids by item number.

    Returns:
        Item numbers [P, 2], in the order of the file.

    Raises:
        DataError: the file is missing, of an unknown kind or lacks the columns; or a row has an empty or unknown id, or
            the same item twice.
    """
    rejects = Rejects(hint="")
    with local_copies() as copies:
        path = copies.local(place)
        pairs = read_ids(path, COLUMNS, rejects, copies)
    pairs = rejects.split_off(pairs, pl.col("item_a") == pl.col("item_b"), path, "item_b", "an item beside itself")
    known = pl.DataFrame({"id": item_ids, "number": np.arange(len(item_ids))})
    numbers = [
        pairs.join(known, left_on=column, right_on="id", how="left", maintain_order="left") for column in COLUMNS
    ]
    _refuse_unknown(pairs, [each["number"] for each in numbers], path)
    return np.stack([each["number"].to_numpy().astype(np.int64) for each in numbers], axis=1)


def pairs_digest(place: Path | str) -> str:
    """Returns the file's SHA-256, packed as it is, by which a report recognises it.

    Raises:
        DataError: it cannot be read.
    """
    with local_copies() as copies:
        try:
            with copies.local(place).open("rb") as file:
                return hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            raise DataError(f"{place}: cannot be read: {error.strerror}") from None


def _refuse_unknown(pairs: pl.DataFrame, numbers: list[pl.Series], path: Path) -> None:
    unknown = [pairs.filter(found.is_null())[column] for column, found in zip(COLUMNS, numbers, strict=True)]
    count = len(pl.concat(unknown).unique())
    if count:
        first = next(each[0] for each in unknown if len(each))
        raise DataError(
            f"{path}: {count:,} item ids, {first!r} for one, are not in the data set; leave their pairs out "
            "(data.min_item_events may have left the items out)"
        )
