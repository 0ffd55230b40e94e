"""How popular items are: over all events or a recent window, each event counted alike or each user.

In: the events of some splits. Out: a count for each item. The report's baselines, the prior of a model and its renewal
count by this file, so that a baseline and the prior that must beat it see the same events.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import NDArray

from pipelines.dataset import Dataset
from towers.events import Events

WINDOWS_DAYS = (7, 14, 30, 60, 90, None)
DAY_S = 86_400
TICKS_PER_S = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}

Doubles = NDArray[np.float64]


@dataclass(frozen=True)
class Counting:
    """One way to count.

    Attributes:
        days: only events of the last so many days before the end; None counts all.
        users_alike: an event counts 1 / n, n the events of its user that are counted; otherwise 1.
    """

    days: int | None = None
    users_alike: bool = False

    def __str__(self) -> str:
        window = "popularity" if self.days is None else f"popularity of {self.days} days"
        return f"{window}, users alike" if self.users_alike else window


def has_windows(data: Dataset) -> bool:
    """Whether a window of days makes sense: the events have times in a unit, and the split respects them."""
    return data.manifest.timed and data.manifest.time_unit in TICKS_PER_S


def countings(*, windows: bool) -> list[Counting]:
    """Every way to count; with a window of days only where those make sense, which `has_windows` says."""
    lengths = WINDOWS_DAYS if windows else (None,)
    return [Counting(days, alike) for days, alike in product(lengths, (False, True))]


def last_time(parts: Sequence[Events]) -> int | None:
    """The time of the latest event, in ticks: where a window ends. None without times or events."""
    times = [int(part.time.max()) for part in parts if part.time is not None and len(part)]
    return max(times, default=None)


def item_counts(
    parts: Sequence[Events], items: int, counting: Counting, *, time_unit: str | None, until: int | None = None
) -> Doubles:
    """Counts the events of each item; an event of weight 0 is an impression that nobody took up and counts nothing.

    Args:
        parts: events of some splits, of the same users and items.
        items: size of the catalogue.
        counting: which events count, and how much.
        time_unit: unit of the events' times, as the data set's manifest names it.
        until: where the window ends, in ticks, itself included; by default at the latest event.

    Returns:
        [items] counts.

    Raises:
        ValueError: a window is asked for and the events have no times in a unit.
    """
    taken = [part.taken() for part in parts]
    kept = [np.ones(len(part), np.bool_) for part in taken]
    end = last_time(taken) if until is None else until
    if counting.days is not None and (time_unit not in TICKS_PER_S or any(part.time is None for part in taken)):
        raise ValueError(f"a window of {counting.days} days needs times in a unit, got {time_unit!r}")
    if counting.days is not None and end is not None and time_unit is not None:
        begin = end - counting.days * DAY_S * TICKS_PER_S[time_unit]
        kept = [(part.time > begin) & (part.time <= end) for part in taken if part.time is not None]
    item = np.concatenate([np.asarray(part.item)[keep] for part, keep in zip(taken, kept, strict=True)])
    if not counting.users_alike:
        return np.bincount(item, minlength=items).astype(np.float64)
    user = np.concatenate([np.asarray(part.user)[keep] for part, keep in zip(taken, kept, strict=True)])
    share = 1.0 / np.maximum(np.bincount(user), 1)
    return np.bincount(item, weights=share[user], minlength=items).astype(np.float64)
