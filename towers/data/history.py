"""What the history of an event may hold.

A history holds positive events of the event's user: weight 0 is an impression that the user did not take. In timed data
they are strictly earlier, so simultaneous events do not see each other. In data without times, and for a feature with
`others`, they are all but the targets of the example.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Int32s = NDArray[np.int32]
Int64s = NDArray[np.int64]


def history_ends(offsets: Int64s, time: Int64s) -> Int64s:
    """Returns where each event's history, the strictly earlier events of its user, ends.

    Args:
        offsets: [users + 1].
        time: [E], ascending within each user.

    Returns:
        [E]; the history of event e of user u is ``offsets[u]:history_end[e]``.
    """
    starts = np.zeros(len(time), bool)
    starts[offsets[:-1][offsets[:-1] < offsets[1:]]] = True
    starts[1:] |= time[1:] != time[:-1]
    # A user's simultaneous events all share the place of the first.
    ends = np.where(starts, np.arange(len(time)), 0)
    return np.maximum.accumulate(ends, out=ends)


@dataclass(frozen=True)
class PositiveEvents:
    """The positive ones of E events; histories are parts of them.

    Attributes:
        item: [P] item numbers, by user and time.
        offsets: [users + 1].
        time: [P]; None in untimed data.
        end: [E]; None in untimed data; the history of event e, positive or not, is ``offsets[user[e]]:end[e]``.
        place: [E + 1] number of positive events before each event; None if all are positive.
    """

    item: Int32s
    offsets: Int64s
    time: Int64s | None
    end: Int64s | None
    place: Int64s | None = None

    def earlier(self, user: Int32s, event: Int64s) -> tuple[Int64s, Int64s]:
        """Start and end [B] of the histories of events [B] of users [B].

        Raises:
            ValueError: the data is not timed.
        """
        if self.end is None:
            raise ValueError("a history of earlier events needs timed events")
        return self.offsets[user], self.end[event]

    def others(
        self, user: Int32s, targets: Int64s, present: NDArray[np.bool_], items: Int32s, length: int
    ) -> tuple[Int32s, NDArray[np.bool_]]:
        """Items [B, length] of all the users' events but the targets and other events of their items; which exist.

        Unordered: the window of a long list begins after the targets and wraps round, so no item is left out for good.

        Args:
            user: [B].
            targets: [B, K] events that follow one another, positive or not.
            present: [B, K] which targets exist.
            items: [B, K] the targets' items.
            length: of a window.
        """
        place, _ = self._among(targets[:, 0])
        _, positive = self._among(targets)
        start, count = self.offsets[user], (self.offsets[user + 1] - self.offsets[user])[:, None]
        step = np.where(present, positive, 0).sum(axis=1)[:, None] + np.arange(length)
        other = step < count
        # With another event, this wraps round at most once; a division would cost more than all the rest.
        places = place[:, None] + step
        places -= np.where(places >= start[:, None] + count, count, 0)
        found = self.item.take(np.where(other, places, 0))
        for item in items.T:
            other &= found != item[:, None]
        return found, other

    def _among(self, event: Int64s) -> tuple[Int64s, Int64s]:
        """The positions that events have, or would have, among the positive ones, and whether they are one (1 or 0)."""
        if self.place is None:
            return event, np.ones_like(event)
        return self.place[event], self.place[event + 1] - self.place[event]


def positive_events(
    item: Int32s, offsets: Int64s, time: Int64s | None, history_end: Int64s | None, weight: NDArray[np.float32] | None
) -> PositiveEvents:
    """Selects the events of weight above 0; all of them without weights. The arrays are those of `Events`, [E]."""
    if weight is None or bool((weight > 0).all()):
        return PositiveEvents(item, offsets, time, history_end)
    positive = weight > 0
    place = np.concatenate([np.zeros(1, np.int64), np.cumsum(positive, dtype=np.int64)])
    return PositiveEvents(
        item[positive],
        place[offsets],
        None if time is None else time[positive],
        None if history_end is None else place[history_end],
        place,
    )
