"""Builds what a bundle stores of popularity: the prior of its items, with the weights, and popular items by segment.

The prior is data, not trained weights, so new counts renew it. It provides the prior's arguments of
`serving.bundle.writer.write_bundle`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from pipelines.dataset.dataset import Dataset
from pipelines.dataset.popularity import DAY_S, TICKS_PER_S, Counting, Doubles, last_time
from pipelines.errors import DataError
from pipelines.training.prior import counts_of
from serving.bundle.manifest import PriorInfo
from serving.bundle.prior import item_columns, query_columns
from towers.config.sections import PriorConfig
from towers.data.events import Events, Floats, Int32s, Int64s
from towers.model.prior import log_share

# An item is new if its first event lies in the last NEW_DAYS days.
NEW_DAYS = 30
MOST_ITEMS = 1_000  # per segment; the popular items of all users follow


@dataclass(frozen=True)
class BundlePrior:
    """The prior of N items.

    Attributes:
        info: the weights and the source of the counts.
        shares: float32 [N, 2], log shares now and in training.
        counts: [N], the current counts.
    """

    info: PriorInfo
    shares: Floats
    counts: Doubles

    @classmethod
    def make(
        cls,
        given: PriorConfig,
        *,
        counts: Doubles,
        past: Floats,
        new: NDArray[np.bool_],
        until: int | None,
        events: int,
        unit: float = 1.0,
    ) -> "BundlePrior":
        """Builds a prior from counts.

        Args:
            given: the weights.
            counts: [N] events of each item in the window.
            past: [N] log shares in training.
            new: [N] which items are new.
            until: time of the latest event, in seconds since 1970; None without times in a unit.
            events: number of events counted.
            unit: the unit of the weights.
        """
        mean = float(counts.mean())
        shares = np.stack([log_share(counts, mean), past], axis=1)
        nothing = float(log_share(np.zeros(1), mean)[0])
        middle = np.median(shares[new], axis=0) if new.any() else np.full(2, nothing)
        info = PriorInfo(
            days=given.days,
            users_alike=given.users_alike,
            now=given.now * unit,
            past=given.past * unit,
            length=given.length * unit,
            until=until,
            mean_count=mean,
            event_weight=float(counts.sum()) / max(events, 1),
            new_item=(float(middle[0]), float(middle[1])),
        )
        return cls(info, shares, counts)

    @classmethod
    def of_dataset(
        cls, data: Dataset, known: Sequence[str], trained: Sequence[str], given: PriorConfig, unit: float
    ) -> "BundlePrior":
        """Builds the prior of a data set's items: now from the known splits, past from the trained ones.

        Args:
            data: the data set.
            known, trained: names of splits.
            given: the weights.
            unit: the standard deviation of the scores, which is the unit of the weights.
        """
        counting = Counting(given.days, given.users_alike)
        parts, unit_of_time = [data.events(split) for split in known], data.manifest.time_unit
        end, counts = last_time(parts), counts_of(data, known, counting)
        alone = counts if not given.users_alike else counts_of(data, known, Counting(given.days))
        return cls.make(
            given,
            counts=counts,
            past=log_share(counts_of(data, trained, Counting())),
            new=new_items(parts, data.manifest.items, unit_of_time),
            until=end // TICKS_PER_S[unit_of_time] if end is not None and unit_of_time in TICKS_PER_S else None,
            events=int(alone.sum()),
            unit=unit,
        )

    def columns(self, items: NDArray[np.bool_], histories: Int64s) -> tuple[Floats, Floats]:
        """Returns what recall adds to the vectors of the items, and of queries with histories of these lengths."""
        return item_columns(self.info, self.shares[items]), query_columns(self.info, histories)


def new_items(parts: Sequence[Events], items: int, time_unit: str | None) -> NDArray[np.bool_]:
    """[items] which items were first taken in the last 30 days of the events."""
    first = np.full(items, np.iinfo(np.int64).max)
    end = last_time(parts)
    for part in parts:
        if part.time is not None:
            np.minimum.at(first, np.asarray(part.item), np.asarray(part.time))
    if end is None or time_unit not in TICKS_PER_S:
        return np.zeros(items, np.bool_)
    new: NDArray[np.bool_] = (first <= end) & (first > end - NEW_DAYS * DAY_S * TICKS_PER_S[time_unit])
    return new


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
