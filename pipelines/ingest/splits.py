"""Splits the events into train, validation and test, and checks whether the split respects time.

- ``global_time``: holds out the latest events over all users: test from one cut-off on, validation from an earlier
  one.
- ``leave_last_out``: each user's last positive is the test, the one before it (for users with three or more)
  validation; impressions follow the positives in time.
- ``random``: assigns each event independently; times are ignored and not stored.
- ``given``: as in the files. With ``data.validation = "last"`` the last of each user's positives outside the test
  validate, with ``"random"``, or without a validation file, a seeded share of them.
"""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from pipelines.dataset.manifest import SplitKind
from pipelines.errors import DataError
from pipelines.ingest.columns.event_table import EventTable, among, counts_of, user_ranges
from pipelines.ingest.filters import drop_rare
from pipelines.ingest.formats.rejects import Rejects
from pipelines.ingest.impressions import follow_positives, impressions_of
from towers.config.sections import DataConfig
from towers.data.blocks import blocks
from towers.data.events import Int64s

TRAIN, VALID, TEST = 0, 1, 2
RANK_BITS = 16


@dataclass(frozen=True)
class Split:
    """A computed split.

    Attributes:
        kind: never "auto".
        label: [E] 0 train, 1 valid, 2 test.
        timed: no event of a user precedes one of theirs in an earlier split.
        boundaries: with global_time, the first time of ``valid`` and of ``test``.
    """

    kind: SplitKind
    label: NDArray[np.uint8]
    timed: bool
    boundaries: dict[str, int] = field(default_factory=dict)


def split_events(events: EventTable, config: DataConfig, rejects: Rejects) -> Split:
    """Resolves and computes the split that the recipe asks for; with leave_last_out, users of a single event leave.

    Raises:
        DataError: the split needs times or files that do not exist, leaves no event to train on, or holds out all that
            is known of a user and bad rows are not skipped; or the times cannot separate validation from test.
    """
    kind = _resolved(events, config)
    if config.validation != "auto" and kind != "given":
        raise DataError(
            f"data.validation = {config.validation!r} is for a given split, and this is {kind}; leave it out"
        )
    if config.validation == "given" and (events.split is None or not (events.split == VALID).any()):
        raise DataError("data.validation = 'given' needs events of a validation file, and there are none; leave it out")
    if config.validation == "last" and events.time is None:
        raise DataError(
            "data.validation = 'last' needs times, or data.ordered = true: the order of the files is that of time"
        )
    if kind == "global_time":
        split = _global_time(events, config)
    elif kind == "leave_last_out":
        if config.valid_share + config.test_share > 0:
            _refuse_single_events(events, config, rejects)
        split = Split(kind, _leave_last_out(events, config), timed=True)
    elif kind == "random":
        draw = np.random.default_rng(config.seed).random(len(events))
        label = (draw < config.valid_share + config.test_share).astype(np.uint8)
        label[draw < config.test_share] = TEST
        split = Split(kind, label, timed=False)
    else:
        label = _given(events, config)
        split = Split(kind, label, timed=respects_time(events, label))
    shown = impressions_of(events)
    if not (split.label == TRAIN if shown is None else (split.label == TRAIN) & ~shown).any():
        raise DataError(f"the {kind} split leaves no event to train on")
    return split


def _resolved(events: EventTable, config: DataConfig) -> SplitKind:
    """Resolves ``data.split = "auto"``: given, else by time, else by the order of the file, else random."""
    ordered = events.time_unit == "order"
    if config.split == "auto":
        if events.split is not None:
            return "given"
        if events.time is None:
            return "random"
        return "leave_last_out" if ordered else "global_time"
    if config.split == "given" and events.split is None:
        raise DataError("data.split = 'given' needs a folder with train and test files; use another split")
    if config.split == "global_time" and (events.time is None or ordered):
        raise DataError("data.split = 'global_time' needs a time column (data.columns.time); use 'random'")
    if config.split == "leave_last_out" and events.time is None:
        raise DataError(
            "data.split = 'leave_last_out' needs a time column (data.columns.time), or --format sequences or pairs, "
            "which are in time order"
        )
    return config.split


def _refuse_single_events(events: EventTable, config: DataConfig, rejects: Rejects) -> None:
    """Rejects users with a single event: leave-last-out would hold out all that is known of them.

    Raises:
        DataError: there is such a user and bad rows are not skipped, or no event is left.
    """
    single = among(events.user, counts_of(events.user, len(events.user_ids)) == 1)
    if not single.any():
        return
    reason = "the only event of its user, where leave_last_out needs two (data.min_user_events = 2 drops such users)"
    events.reject(single, events.roles.user, reason, events.user_ids.gather(events.user), rejects)
    drop_rare(events, max(2, config.min_user_events), config.min_item_events)
    if not len(events):
        raise DataError("no user has two events, which leave_last_out needs")


def _global_time(events: EventTable, config: DataConfig) -> Split:
    assert events.time is not None
    total = len(events)
    held_out = [round(total * (config.valid_share + config.test_share)), round(total * config.test_share)]
    ends = [total - count for count in held_out]
    later = int(events.time.max()) + 1
    valid_from, test_from = (_at_rank(events.time, end) if end < total else later for end in ends)
    # Simultaneous events stay together: a cut-off among them moves to the first.
    label = np.zeros(total, np.uint8)
    label[events.time >= valid_from] = VALID
    label[events.time >= test_from] = TEST
    if config.valid_share > 0 and held_out[0] > held_out[1] and valid_from == test_from:
        raise DataError(
            "data.split = 'global_time' finds no moment between validation and test: too many events have the "
            f"same time, {test_from}; take another data.split: leave_last_out or random"
        )
    return Split("global_time", label, timed=True, boundaries={"valid": valid_from, "test": test_from})


def _at_rank(time: Int64s, rank: int) -> int:
    """Returns the value at a place of the ascending order: counts by the leading bits, then sorts those that tie."""
    low = int(time.min())
    shift = np.uint64(max(0, (int(time.max()) - low).bit_length() - RANK_BITS))

    def leading_bits(block: slice) -> Int64s:
        # Unsigned, because the widest difference of two times is beyond int64.
        return ((time[block] - low).view(np.uint64) >> shift).astype(np.int64)

    counts = np.zeros(1 << RANK_BITS, np.int64)
    for block in blocks(time):
        counts += np.bincount(leading_bits(block), minlength=len(counts))
    ends = np.cumsum(counts)
    leading = int(np.searchsorted(ends, rank, side="right"))
    rank -= int(ends[leading] - counts[leading])
    tied = np.concatenate([time[block][leading_bits(block) == leading] for block in blocks(time)])
    return int(np.partition(tied, rank)[rank])


def _leave_last_out(events: EventTable, config: DataConfig) -> NDArray[np.uint8]:
    assert events.time is not None
    label = np.zeros(len(events), np.uint8)
    shown = impressions_of(events)
    # Users with two events keep one to train on; without a test the last one validates.
    needed, back = (3, 2) if config.test_share > 0 else (2, 1)
    for places in user_ranges(events.user, len(events.user_ids)):
        user = events.user[places]
        order = np.lexsort((events.time[places], user))
        if shown is not None:
            order = order[~shown[places[order]]]
        ends = np.flatnonzero(np.diff(user[order], append=-1)) + 1
        counts = np.diff(ends, prepend=0)
        if config.test_share > 0:
            label[places[order[ends[counts >= 2] - 1]]] = TEST
        if config.valid_share > 0:
            label[places[order[ends[counts >= needed] - back]]] = VALID
    follow_positives(events, label, shown, (VALID, TEST))
    return label


def _given(events: EventTable, config: DataConfig) -> NDArray[np.uint8]:
    assert events.split is not None
    label = events.split.copy()
    if config.validation == "last":
        if events.time_unit == "order":
            events.time = _spread(events)
        label[label == VALID] = TRAIN
        shown = impressions_of(events)
        some = label == TRAIN if shown is None else (label == TRAIN) & ~shown
        label[_last(events, some, config.valid_share)] = VALID
        follow_positives(events, label, shown, (VALID,))
    elif config.validation == "random" or not (label == VALID).any():
        label[label == VALID] = TRAIN
        train = np.flatnonzero(label == TRAIN)
        drawn = np.random.default_rng(config.seed).random(len(train)) < config.valid_share
        label[train[drawn]] = VALID
    return label


def _spread(events: EventTable) -> Int64s:
    """Returns the order of events, those of a validation file spread evenly over their user's train events.

    Such a file is a random part of train, so it does not tell when its events happened.
    """
    assert events.split is not None
    part = events.split.astype(np.int64)
    key = events.user * np.int64(3) + part
    order = np.argsort(key, kind="stable")
    counts = np.bincount(key)
    begin = (np.cumsum(counts) - counts)[key[order]]
    place = np.empty(len(events))
    place[order] = (np.arange(len(events)) - begin + 0.5) / counts[key[order]]
    place[events.split == TEST] += 1
    time = np.empty(len(events), np.int64)
    time[np.lexsort((part, place))] = np.arange(len(events))
    return time


def _last(events: EventTable, some: NDArray[np.bool_], share: float) -> Int64s:
    """Returns the places of the last `share` of each user's events among `some`, by time; each user keeps one. Of lists
    too short for one event at this share some give one, spread evenly over the users."""
    assert events.time is not None
    places = np.flatnonzero(some)
    user = events.user[places]
    order = np.lexsort((events.time[places], user))
    places, user = places[order], user[order]
    counts = np.bincount(user, minlength=len(events.user_ids))
    taken = np.rint(share * counts)
    short = (taken == 0) & (counts > 1)
    taken[short] = np.diff(np.rint(np.cumsum(share * counts[short])), prepend=0)
    taken = np.minimum(taken, np.maximum(counts - 1, 0)).astype(np.int64)
    from_end = np.cumsum(counts)[user] - np.arange(len(user))
    last: Int64s = places[from_end <= taken[user]]
    return last


def respects_time(events: EventTable, label: NDArray[np.uint8]) -> bool:
    """Whether no event of a user is later than one of theirs in a later split."""
    if events.time is None:
        return False
    latest = np.full(len(events.user_ids), np.iinfo(np.int64).min)
    for number in (TRAIN, VALID, TEST):
        part = label == number
        user, time = events.user[part], events.time[part]
        if (time < latest[user]).any():
            return False
        np.maximum.at(latest, user, time)
    return True
