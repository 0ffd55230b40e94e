"""Training events with impressions among them, as lists of them say: by slow loops over the rows."""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from towers.data.events import Events


def with_weights(events: Events, weight: NDArray[np.float32]) -> Events:
    """The same events; those of weight 0 become impressions, which leave the histories of all."""
    taken = [row for row in range(len(events)) if weight[row] > 0]
    users, mine = range(len(events.offsets) - 1), events.user.tolist()
    offsets = np.array([sum(mine[row] < user for row in taken) for user in [*users, len(users)]], np.int64)
    place = [sum(mine[other] == mine[row] and other < row for other in taken) for row in range(len(events))]
    end = None
    if events.time is not None:
        when = events.time.tolist()
        end = np.array(
            [
                offsets[mine[row]] + sum(mine[other] == mine[row] and when[other] < when[row] for other in taken)
                for row in range(len(events))
            ],
            np.int64,
        )
    positives = Events(
        events.user[taken],
        events.item[taken],
        offsets,
        None if events.time is None else events.time[taken],
        None if end is None else end[taken],
        weight[taken],
        None if events.type is None else events.type[taken],
    )
    return replace(events, history_end=end, weight=weight, place=np.array(place, np.int32), positives=positives)
