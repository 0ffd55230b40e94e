"""Tells events of weight 0 or less, impressions, from positives, and puts them on the sides of a split."""

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from pipelines.errors import DataError
from pipelines.ingest.columns.event_table import EventTable


def impressions_of(events: EventTable) -> NDArray[np.bool_] | None:
    """[E] which events are impressions; None if none is."""
    if events.weight is None or not (shown := events.weight <= 0).any():
        return None
    return shown


def refuse_impressions_alone(events: EventTable) -> None:
    """Refuses events without a positive: what is learned and measured are positives.

    Raises:
        DataError: there is none; names the column of weights, which may have been found by its name.
    """
    if events.weight is not None and not (events.weight > 0).any():
        raise DataError(
            f"{events.paths[0]}, column {events.roles.weight!r}: events of weight 0 or less are impressions, and here "
            "all are; some weights must be above 0: data.columns.weight names another column; rename what is no weight"
        )


def follow_positives(
    events: EventTable, label: NDArray[np.uint8], shown: NDArray[np.bool_] | None, parts: Iterable[int]
) -> None:
    """Puts the impressions of each user into the part in which they fall in time.

    A part begins with the first of the user's positives in it, and events of that moment belong to it: they are those
    of one request.

    Args:
        events: with times.
        label: [E] the part of each event, right for the positives; changed in place for impressions.
        shown: [E] which events are impressions, or None.
        parts: the later parts, in their order; only impressions of earlier ones move there.
    """
    if shown is None:
        return
    assert events.time is not None
    for part in parts:
        first = np.full(len(events.user_ids), np.iinfo(np.int64).max)
        held = (label == part) & ~shown
        np.minimum.at(first, events.user[held], events.time[held])
        label[shown & (label < part) & (events.time >= first[events.user])] = part
