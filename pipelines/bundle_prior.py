"""What a bundle holds of the prior of now: log shares of its items, their popular counts, and the weights.

In: counts of the items in a window and in training, a `PriorConfig`. Out: the arguments of
`serving.bundle_writer.write_bundle` that are about it. It is data, not weights: other counts make another one.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipelines.dataset import Dataset
from pipelines.popularity import DAY_S, TICKS_PER_S, Counting, Doubles, last_time
from pipelines.prior import counts_of
from serving.manifest import PriorInfo
from towers.config import PriorConfig
from towers.events import Events, Floats
from towers.prior import log_share

# An item is new where its first event lies in the last so many days.
NEW_DAYS = 30


@dataclass(frozen=True)
class BundlePrior:
    """The prior of N items.

    Attributes:
        info: the weights and where the counts come from.
        shares: float32 [N, 2], log shares now and in training.
        counts: [N], the counts of now.
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
        """A prior of given counts.

        Args:
            given: the weights.
            counts: [N] events of each item in the window.
            past: [N] log shares in training.
            new: [N] which items are new.
            until: the latest event, in seconds since 1970.
            events: how many were counted.
            unit: what the weights are in units of.
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
        """The prior of a data set's items: now in the events of the known splits, past in those that trained.

        Args:
            data: the data set.
            known, trained: the splits.
            given: the weights.
            unit: the standard deviation of the scores, which they are in units of.
        """
        counting = Counting(given.days, given.users_alike)
        parts = [data.events(split).taken() for split in known]
        end, counts = last_time(parts), counts_of(data, known, counting)
        alone = counts if not given.users_alike else counts_of(data, known, Counting(given.days))
        return cls.make(
            given,
            counts=counts,
            past=log_share(counts_of(data, trained, Counting())),
            new=new_items(parts, data.manifest.items, data.manifest.time_unit),
            until=None if end is None else end // TICKS_PER_S[data.manifest.time_unit or "s"],
            events=int(alone.sum()),
            unit=unit,
        )

    def writer_arguments(self, items: NDArray[np.bool_]) -> dict[str, Any]:
        """What `write_bundle` is given, of those items that the bundle holds."""
        return {"popular_counts": self.counts[items], "prior": self.info, "item_prior": self.shares[items]}


def new_items(parts: Sequence[Events], items: int, time_unit: str | None) -> NDArray[np.bool_]:
    """[items] which of them were first taken in the last 30 days of some events."""
    first = np.full(items, np.iinfo(np.int64).max)
    end = last_time(parts)
    for part in parts:
        if part.time is not None:
            np.minimum.at(first, np.asarray(part.item), np.asarray(part.time))
    if end is None or time_unit not in TICKS_PER_S:
        return np.zeros(items, np.bool_)
    new: NDArray[np.bool_] = (first <= end) & (first > end - NEW_DAYS * DAY_S * TICKS_PER_S[time_unit])
    return new
