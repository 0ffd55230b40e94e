"""What the history of an event may hold.

A history holds positive events of the event's user: weight 0 is an impression that the user did not take. In timed data
they are strictly earlier, so simultaneous events do not see each other. In data without times, and for a feature with
`others`, they are all but the targets of the example.
"""

import numpy as np
from numpy.typing import NDArray

from towers.data.events import Events, Int32s, Int64s, Past, of_types


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


def targets(events: Events, example: Int64s, count: int) -> tuple[Int64s, NDArray[np.bool_]]:
    """Events [B, `count`] that examples [B] are to find, their own first, and which of them exist.

    Timed data: the user's next events. Untimed: those that follow in the user's list, which wraps round. The example
    stands in the place of one that does not exist.
    """
    user = events.user[example]
    own, start, end = example[:, None], events.offsets[user][:, None], events.offsets[user + 1][:, None]
    step = np.arange(count)
    if events.history_end is not None:
        places = own + step
        present = places < end
    else:
        places = start + (own - start + step) % (end - start)
        present = step < end - start
    return np.where(present, places, own), present


def earlier(events: Events, user: Int32s, event: Int64s) -> tuple[Int64s, Int64s]:
    """Start and end [B], in `events.past`, of the histories of events [B] of users [B].

    Raises:
        ValueError: the data is not timed.
    """
    if events.history_end is None:
        raise ValueError("a history of earlier events needs timed events")
    return events.past.offsets[user], events.history_end[event]


def others(
    events: Events, past: Past, user: Int32s, targets: Int64s, present: NDArray[np.bool_], length: int
) -> tuple[Int32s, NDArray[np.bool_]]:
    """Items [B, length] of all the users' events in `past` but the targets and others of their items; which exist.

    Unordered: the window of a long list begins after the targets and wraps round, so no item is left out for good.

    Args:
        events: the training events.
        past: those that the histories consist of.
        user: [B].
        targets: [B, K] events that follow one another, positive or not.
        present: [B, K] which targets exist, as `targets` returns them.
        length: of a window.
    """
    offsets, own = events.past.offsets, present
    if events.place is not None and events.weight is not None:
        own = present & (events.weight[targets] > 0)
    if events.type is not None:
        own = own & of_types(events.type[targets], past.types)
    start, place = past.places(offsets[user]), past.places(events.past_place(targets[:, 0]))
    count = (past.places(offsets[user + 1]) - start)[:, None]
    step = own.sum(axis=1)[:, None] + np.arange(length)
    other = step < count
    # With another event, this wraps round at most once; a division would cost more than all the rest.
    places = place[:, None] + step
    places -= np.where(places >= start[:, None] + count, count, 0)
    found = past.item.take(np.where(other, places, 0))
    for item in events.item.take(targets).T:
        other &= found != item[:, None]
    return found, other
