"""Drops repeated user-item pairs and rare users and items, and counts the events each rule drops."""

import numpy as np
from numpy.typing import NDArray

from pipelines.dataset.arrays import SPLITS
from pipelines.errors import DataError
from pipelines.ingest.columns.event_table import EventTable, among, counts_of, user_ranges
from towers.config.sections import DataConfig


def narrow(events: EventTable, config: DataConfig) -> None:
    """Drops repeated user-item pairs and rare users and items, as the recipe says.

    Raises:
        DataError: no event is left.
    """
    if config.split not in ("auto", "given"):
        events.split = None  # one log in several files: a pair that repeats over them is one pair
    if config.duplicates != "keep":
        events.keep(_one_of_each_pair(events, last=config.duplicates == "last"), "duplicates")
    drop_rare(events, config.min_user_events, config.min_item_events)


def drop_rare(events: EventTable, min_user: int, min_item: int) -> None:
    """Drops users and items with too few events, repeatedly until none is left.

    Raises:
        DataError: no event is left.
    """
    while min_user > 1 or min_item > 1:
        enough = among(events.user, counts_of(events.user, len(events.user_ids)) >= min_user)
        enough &= among(events.item, counts_of(events.item, len(events.item_ids)) >= min_item)
        if enough.all():
            return
        events.keep(enough, "min_counts")
        if not len(events):
            raise DataError(
                f"no event is left with data.min_user_events = {min_user} and data.min_item_events = {min_item}"
            )


def _one_of_each_pair(events: EventTable, *, last: bool) -> NDArray[np.bool_]:
    """[E] True for the earliest (or latest) event of each user-item pair, within each split if splits are given.

    An impression repeats an impression of its pair, but not the event in which the user took the item.
    """
    keep = np.ones(len(events), bool)
    for places in user_ranges(events.user, len(events.user_ids)):
        pair = events.user[places].astype(np.int64) * len(events.item_ids) + events.item[places]
        if events.split is not None:
            pair = pair * len(SPLITS) + events.split[places]
        if events.weight is not None:
            pair = pair * 2 + (events.weight[places] <= 0)
        by_time = slice(None) if events.time is None else np.argsort(events.time[places], kind="stable")
        places, pair = places[by_time], pair[by_time]
        order = np.argsort(pair, kind="stable")
        repeated = pair[order][1:] == pair[order][:-1]
        keep[places[order[:-1][repeated] if last else order[1:][repeated]]] = False
    return keep
