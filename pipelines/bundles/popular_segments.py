"""Computes the popular items of each user segment, for users whose segment is all that a service knows."""

import numpy as np
import polars as pl

from pipelines.dataset.dataset import Dataset
from pipelines.errors import DataError
from towers.data.events import Int32s, Int64s

MOST_ITEMS = 1_000  # per segment; the popular items of all users follow


def popular_segments(dataset: Dataset, column: str, offsets: Int64s, items: Int32s) -> pl.DataFrame:
    """Counts the events of each segment's users.

    Args:
        dataset: a data set whose users have the column.
        column: a string column of the users.
        offsets: [users + 1] where each user's items begin.
        items: rows of the bundle's items; -1 for items it does not hold.

    Returns:
        `segment`, `rows` (best first, ties by row) and `counts`.

    Raises:
        DataError: the column does not exist or does not hold strings.
    """
    kinds = dataset.manifest.user_columns
    if kinds.get(column) != "string":
        there = ", ".join(name for name, kind in kinds.items() if kind == "string") or "none"
        raise DataError(f"--popular-by {column}: not a string column of the users; there are {there}")
    user = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
    events = pl.DataFrame({"segment": dataset.users[column].gather(user), "row": items.astype(np.int64)})
    counted = events.drop_nulls().filter(pl.col("row") >= 0).group_by("segment", "row").len("count")
    ranked = counted.sort("segment", "count", "row", descending=[False, True, False])
    return ranked.group_by("segment", maintain_order=True).agg(
        pl.col("row").head(MOST_ITEMS).alias("rows"), pl.col("count").head(MOST_ITEMS).cast(pl.Int64).alias("counts")
    )
