"""The events of one split as flat arrays, sorted by user and then by time."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

Int32s = NDArray[np.int32]
Int64s = NDArray[np.int64]
Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Events:
    """Events sorted by user, then time. The arrays may be memory-mapped.

    Attributes:
        user: [E] user numbers.
        item: [E] item numbers.
        offsets: [users + 1]; the events of user u are ``offsets[u]:offsets[u + 1]``.
        time: [E]; None in untimed data.
        history_end: [E]; None in untimed data; the history of event e is ``offsets[user[e]]:history_end[e]``, all
            strictly earlier.
        weight: [E]; None if no weight was mapped.
        taken_past: the `past` that is stored in files; None computes it on first use.
    """

    user: Int32s
    item: Int32s
    offsets: Int64s
    time: Int64s | None = None
    history_end: Int64s | None = None
    weight: Floats | None = None
    taken_past: "Past | None" = None

    def __len__(self) -> int:
        return len(self.item)

    def between(self, low: int, high: int) -> "Events":
        """The events of users `low` to `high` - 1, as views, without histories; `offsets` count from the first."""
        first = int(self.offsets[low])
        part = slice(first, int(self.offsets[high]))
        return Events(
            self.user[part],
            self.item[part],
            self.offsets[low : high + 1] - first,
            None if self.time is None else self.time[part],
            weight=None if self.weight is None else self.weight[part],
        )

    def taken(self) -> "Events":
        """The events of weight above 0, with their histories among themselves; all of them without weights.

        Weight 0 is an impression that the user did not take: no example for a loss that learns from positives.
        """
        if self.weight is None or bool((self.weight > 0).all()):
            return self
        keep = self.weight > 0
        before = _places_after(keep)
        return Events(
            self.user[keep],
            self.item[keep],
            before[self.offsets],
            None if self.time is None else self.time[keep],
            None if self.history_end is None else before[self.history_end[keep]],
            self.weight[keep],
        )

    @cached_property
    def past(self) -> "Past":
        """The events that histories consist of: all but the impressions that were not taken."""
        if self.taken_past is not None:
            return self.taken_past
        taken = self.taken()
        if taken is self or self.weight is None:
            return Past(self.item, self.offsets, self.time, self.history_end)
        place = _places_after(self.weight > 0)
        end = None if self.history_end is None else place[self.history_end]
        return Past(taken.item, taken.offsets, taken.time, end, place)


@dataclass(frozen=True)
class Past:
    """The taken events; the histories of `Events` are ranges of them.

    Attributes:
        item: [T] item numbers, by user and time.
        offsets: [users + 1].
        time: [T]; None in untimed data.
        end: [E]; None in untimed data; the history of event e, taken or not, is ``offsets[user[e]]:end[e]``.
        place: [E + 1] number of taken events before each event; None if all are taken.
    """

    item: Int32s
    offsets: Int64s
    time: Int64s | None
    end: Int64s | None
    place: Int64s | None = None

    def among(self, event: Int64s) -> tuple[Int64s, Int64s]:
        """The positions that events have, or would have, among the taken ones, and whether they are taken (1 or 0)."""
        if self.place is None:
            return event, np.ones_like(event)
        return self.place[event], self.place[event + 1] - self.place[event]


def _places_after(keep: NDArray[np.bool_]) -> Int64s:
    """[E + 1] new position of each event once all events but those in `keep` are removed."""
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(keep, dtype=np.int64)])
