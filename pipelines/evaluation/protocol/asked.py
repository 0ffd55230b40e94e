"""Selects the users that a report evaluates, and counts what its protocol leaves out and why.

`item_ages` tells how old the items of their targets are.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from itertools import pairwise

import numpy as np
import polars as pl
from numpy.typing import NDArray

from pipelines.console import amount
from pipelines.dataset.dataset import Dataset
from pipelines.dataset.heldout import EARLIER, HeldOut, Window, heldout, refuse_no_targets, within
from pipelines.dataset.popularity import DAY_S, TICKS_PER_S, has_windows
from pipelines.errors import DataError
from pipelines.evaluation.protocol.options import EPOCH, Protocol, last_known
from pipelines.rankers.ranker import Served
from towers.data.events import Int64s

SPLIT = "test"
# Reason -> what is left out, and why.
LEFT_OUT = {
    "impressions": ("test events", "weight 0, impressions without a response"),
    "events_in_gap": ("test events", "in the gap after the last known event"),
    "events_outside_window": ("test events", "not between --from and --until"),
    "events_again": ("test events", "repeats of an earlier one of the same user and item"),
    "dropped_targets": ("test events", "no targets, of items that the user had taken before"),
    "unreachable_targets": ("targets", "no vector"),
    "users_without_target": ("users", "no target among their test events"),
    "users_not_in_sample": ("users", "not in the sample"),
}
AGE = "item age"
# Days at which one band ends and the next begins.
DAYS = (0, 1, 7, 30, 90, 365, None)
Masks = dict[str, tuple[str, NDArray[np.bool_]]]


@dataclass(frozen=True)
class Asked:
    """The users that a report evaluates, and what its protocol leaves out.

    Attributes:
        held: the test users.
        window: the times of the test events that count, in ticks.
        left_out: reason -> number, for each reason of `LEFT_OUT`.
    """

    held: HeldOut
    window: Window
    left_out: Mapping[str, int]


def ask(protocol: Protocol, data: Dataset, item_rows: NDArray[np.int64]) -> Asked:
    """Selects the users that a report evaluates.

    Args:
        protocol: the options.
        data: the data set.
        item_rows: [N] negative for an item without a vector.

    Raises:
        DataError: an option has a bad value, needs times that the data do not have, or leaves no user to evaluate.
    """
    after_gap, window = protocol.after_gap(data), protocol.window(data)
    low = max((each for each in (after_gap, window[0]) if each is not None), default=None)
    counted = (low, window[1])
    events = data.events(SPLIT)
    outside, in_gap = ~within(events, window), ~within(events, (after_gap, None))
    inside = ~outside & ~in_gap
    if not len(events):
        refuse_no_targets(data)
    if not inside.any():
        times = np.asarray(events.time)
        raise DataError(
            f"{protocol.written('gap', 'begin', 'end')}: no test event is left; those of {data.path} are from "
            f"{_shown(times.min(), data)} to {_shown(times.max(), data)}, the last known event is of "
            f"{_shown(last_known(data), data)}"
        )
    held = heldout(data, SPLIT, repeats=protocol.repeats, window=counted)
    targets, users = len(held.target_items), len(np.unique(events.user[inside]))
    if protocol.reachable:
        held = _of_targets(held, item_rows[held.target_items] >= 0)
    unreachable, without = targets - len(held.target_items), users - len(held.users)
    if not len(held.users):
        some = protocol.written("repeats", "reachable", "gap", "begin", "end")
        raise DataError(f"{f'{some}: ' if some else ''}{data.path}: no user has a test event to recall")
    asked = len(held.users)
    if protocol.users is not None and protocol.users < asked:
        chosen = np.random.default_rng(protocol.seed).choice(asked, protocol.users, replace=False)
        held = held.of_queries(np.sort(chosen))
    return Asked(
        held,
        counted,
        {
            "impressions": data.manifest.events[SPLIT] - len(events),
            "events_in_gap": int(in_gap.sum()),
            "events_outside_window": int((outside & ~in_gap).sum()),
            "events_again": int(inside.sum()) - targets - held.dropped_targets,
            "dropped_targets": held.dropped_targets,
            "unreachable_targets": unreachable,
            "users_without_target": without,
            "users_not_in_sample": asked - len(held.users),
        },
    )


def counts(served: Served, data: Dataset, held: HeldOut) -> dict[str, int]:
    """Returns the `counts` section of `report.json`."""
    return {
        "users": len(held.users),
        "users_without_vector": int((served.query_rows[held.users] < 0).sum()),
        "targets": len(held.target_items),
        "targets_without_vector": int((served.item_rows[held.target_items] < 0).sum()),
        "masked_events": len(held.masked[1]),
        "items": data.manifest.items,
        "items_without_vector": int((served.item_rows < 0).sum()),
    }


def notes(left_out: Mapping[str, int]) -> list[str]:
    """Returns a line for each reason for which something is left out."""
    return [
        f"{amount(left_out[reason], nouns)} left out: {why}"
        for reason, (nouns, why) in LEFT_OUT.items()
        if left_out[reason]
    ]


def target_events(data: Dataset, held: HeldOut, window: Window) -> Int64s:
    """Returns the test event of each target, [T] rows: the first that counts if the user took the item again."""
    events, items = data.events(SPLIT), max(data.manifest.items, 1)
    rows = np.flatnonzero(within(events, window))
    pair, place = np.unique(events.user[rows].astype(np.int64) * items + events.item[rows], return_index=True)
    users = np.repeat(held.users.astype(np.int64), np.diff(held.target_offsets))
    found: Int64s = rows[place[np.searchsorted(pair, users * items + held.target_items)]]
    return found


def event_column(data: Dataset, column: str) -> pl.Series:
    """Returns an own column of the test events, or their types, a row for each event; null for an event of no type."""
    types = data.events(SPLIT).type
    if column == data.manifest.type_column and types is not None:
        names = data.manifest.event_types
        numbers = np.where(types < 0, len(names), types)
        return pl.Series(column, [*names, None], dtype=pl.String).gather(numbers)
    context = data.context(SPLIT)
    assert context is not None
    return context.select(column).collect()[column]


def _of_targets(held: HeldOut, wanted: NDArray[np.bool_]) -> HeldOut:
    """Only the wanted targets, [T], and the users who have one of them."""
    offsets, items = held.target_offsets, np.where(wanted, held.target_items, -1).astype(np.int32)
    left = np.diff(np.concatenate([[0], np.cumsum(wanted)])[offsets])
    # `of_queries` leaves out items of -1.
    return replace(held, target_items=items).of_queries(np.flatnonzero(left))


def _shown(ticks: int, data: Dataset) -> str:
    seconds = int(ticks) // TICKS_PER_S[str(data.manifest.time_unit)]
    return (EPOCH + timedelta(seconds=seconds)).isoformat()


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
