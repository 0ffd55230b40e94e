"""The events of one split as flat arrays, sorted by user and then by time."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from towers.data.history import PositiveEvents, positive_events

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
        stored_past: the `past` that is stored in files; None computes it on first use.
    """

    user: Int32s
    item: Int32s
    offsets: Int64s
    time: Int64s | None = None
    history_end: Int64s | None = None
    weight: Floats | None = None
    stored_past: PositiveEvents | None = None

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

    def positives(self) -> "Events":
        """The events of weight above 0, with their histories among themselves; all of them without weights.

        Weight 0 is an impression that the user did not take: no example for a loss that learns from positives.
        """
        past = self._positive_events()
        if self.weight is None or past.place is None:
            return self
        keep = self.weight > 0
        end = None if past.end is None else past.end[keep]
        return Events(self.user[keep], past.item, past.offsets, past.time, end, self.weight[keep])

    @cached_property
    def past(self) -> PositiveEvents:
        """The events that histories consist of."""
        return self._positive_events() if self.stored_past is None else self.stored_past

    def _positive_events(self) -> PositiveEvents:
        return positive_events(self.item, self.offsets, self.time, self.history_end, self.weight)
