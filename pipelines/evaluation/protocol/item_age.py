"""How old the items of targets are: the time from an item's first known event to the test event."""

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from pipelines.dataset.dataset import Dataset
from pipelines.dataset.heldout import EARLIER
from pipelines.dataset.popularity import DAY_S, TICKS_PER_S, has_windows
from pipelines.evaluation.protocol.asked import SPLIT, Asked, target_events

AGE = "item age"
# Days at which one band ends and the next begins.
DAYS = (0, 1, 7, 30, 90, 365, None)
Masks = dict[str, tuple[str, NDArray[np.bool_]]]


def item_ages(data: Dataset, asked: Asked) -> Masks:
    """Returns label -> definition and which targets, [T]; bands without a target are left out, all in untimed data.

    The first known event is the first of training and validation. A target whose item has none before the target's own
    event is in a band of its own.
    """
    if not has_windows(data):
        return {}
    first = np.full(data.manifest.items, np.iinfo(np.int64).max)
    for split in EARLIER[SPLIT]:
        events = data.events(split)
        np.minimum.at(first, events.item, np.asarray(events.time))
    time = np.asarray(data.events(SPLIT).time)[target_events(data, asked.held, asked.window)]
    known = first[asked.held.target_items]
    day = DAY_S * TICKS_PER_S[str(data.manifest.time_unit)]
    before = known < time
    age = np.where(before, time - np.where(before, known, 0), -1)
    bands: Masks = {}
    for low, high in pairwise(DAYS):
        label = f"{low} to {high} days" if high is not None else f"{low} days and more"
        inside = (age >= (low or 0) * day) & ((age < high * day) if high is not None else True)
        bands[label] = (f"targets whose item was first taken {label} before", inside)
    bands["unknown before"] = ("targets whose item has no event of training or validation before them", ~before)
    return {label: band for label, band in bands.items() if band[1].any()}
