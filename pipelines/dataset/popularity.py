"""Counts the popularity of items: over all events or a recent window, weighting events or users equally.

The report's baselines, a model's prior and its renewal all count here, so a baseline and the prior that must beat it
see the same events.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import NDArray

from pipelines.dataset.dataset import Dataset
from towers.data.blocks import blocks
from towers.data.events import Events, Int32s

WINDOWS_DAYS = (7, 14, 30, 60, 90, None)
DAY_S = 86_400
TICKS_PER_S = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}

Doubles = NDArray[np.float64]


@dataclass(frozen=True)
class Counting:
    """A way to count.

    Attributes:
        days: count only events of this many days before the end; None counts all.
        users_alike: an event counts 1 / n, n the number of its user's counted events; otherwise 1.
    """

    days: int | None = None
    users_alike: bool = False

    def __str__(self) -> str:
        window = "popularity" if self.days is None else f"popularity of {self.days} days"
        return f"{window}, users alike" if self.users_alike else window


PLAIN = Counting()


def has_windows(data: Dataset) -> bool:
    """Whether windows of days make sense: the events have times in a unit, and the split respects them."""
    return data.manifest.timed and data.manifest.time_unit in TICKS_PER_S


def countings(*, windows: bool) -> list[Counting]:
    """Returns every way to count; windows of days only if `windows`, see `has_windows`."""
    lengths = WINDOWS_DAYS if windows else (None,)
    return [Counting(days, alike) for days, alike in product(lengths, (False, True))]


def last_time(parts: Sequence[Events]) -> int | None:
    """Returns the time of the latest event, in ticks, where a window ends; None without times or events."""
    times = [int(part.time.max()) for part in parts if part.time is not None and len(part)]
    return max(times, default=None)


def item_counts(
    parts: Sequence[Events], items: int, counting: Counting, *, time_unit: str | None, until: int | None = None
) -> Doubles:
    """Counts the events of each item.

    Args:
        parts: events of some splits, of the same users and items.
        items: size of the catalogue.
        counting: which events count, and how much.
        time_unit: unit of the events' times, as in the data set's manifest.
        until: end of the window, in ticks, inclusive; by default the latest event.

    Returns:
        [items] counts.

    Raises:
        ValueError: the counting has a window, but the events have no times in a unit.
    """
    if counting.days is not None and (time_unit not in TICKS_PER_S or any(part.time is None for part in parts)):
        raise ValueError(f"a window of {counting.days} days needs times in a unit, got {time_unit!r}")
    span = None
    end = last_time(parts) if until is None else until
    if counting.days is not None and end is not None and time_unit is not None:
        span = end - counting.days * DAY_S * TICKS_PER_S[time_unit], end
    counts = np.zeros(items)
    if not counting.users_alike:
        for item, _ in _blocks(parts, span):
            counts += np.bincount(item, minlength=items)
        return counts
    of_user = np.zeros(max((int(part.user.max()) + 1 for part in parts if len(part)), default=0), np.int64)
    for _, user in _blocks(parts, span):
        of_user += np.bincount(user, minlength=len(of_user))
    share = 1.0 / np.maximum(of_user, 1)
    for item, user in _blocks(parts, span):
        np.add.at(counts, item, share[user])  # in the events' order, so blocks change no bit of the sums
    return counts


def _blocks(parts: Sequence[Events], span: tuple[int, int] | None) -> Iterator[tuple[Int32s, Int32s]]:
    """Yields items and users of the events later than the first time of `span` and no later than the second."""
    for part in parts:
        for block in blocks(part.item):
            item, user = part.item[block], part.user[block]
            if span is not None and part.time is not None:
                keep = (part.time[block] > span[0]) & (part.time[block] <= span[1])
                item, user = item[keep], user[keep]
            yield item, user
