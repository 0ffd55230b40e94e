"""The events of one split as flat arrays, sorted by user and then by time."""

from dataclasses import dataclass

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
        history_end: [E]; None in untimed data; the history of event e is ``past.offsets[user[e]]:history_end[e]`` of
            `past`, all strictly earlier.
        weight: [E]; None if no weight was mapped.
        place: [E] how many positive events of its user come before each; None if all are positive.
        positives: the positive events, where others (impressions, of weight 0) lie among them; None otherwise.
    """

    user: Int32s
    item: Int32s
    offsets: Int64s
    time: Int64s | None = None
    history_end: Int64s | None = None
    weight: Floats | None = None
    place: Int32s | None = None
    positives: "Events | None" = None

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
            place=None if self.place is None else self.place[part],
        )

    @property
    def past(self) -> "Events":
        """The events that histories consist of."""
        return self if self.positives is None else self.positives
