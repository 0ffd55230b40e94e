"""Histories of some types of events, against loops over lists of events."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from tests.support.impressions import with_weights
from tests.towers.data.test_sequence_examples import ITEMS, events_of, seen_by
from towers.data.events import Events
from towers.data.feature_tables import FeatureTables, HistoryTable, SequenceTable
from towers.data.item_ranks import ItemRanks
from towers.data.sequence_examples import SequenceExamples, example_counts

ROWS = np.arange(1, ITEMS + 1, dtype=np.int32)
TYPES = [(0,), (1, 2), (0, 1, 2), ()]


def typed_events(seed: int, longest: int = 12) -> Events:
    """Events of three types, and some of none."""
    events = events_of(seed, users=40, longest=longest)
    return replace(events, type=np.random.default_rng(seed).integers(-1, 3, len(events)).astype(np.int16))


def of_wanted(events: Events, event: int, types: tuple[int, ...]) -> bool:
    return not types or int(np.asarray(events.type)[event]) in types


def earlier_events(events: Events, event: int, types: tuple[int, ...]) -> list[int]:
    """The strictly earlier events of the user of an event, of some types, in order."""
    user, when = events.user[event], np.asarray(events.time)
    return [
        other
        for other in range(len(events))
        if events.user[other] == user and when[other] < when[event] and of_wanted(events, other, types)
    ]


@pytest.mark.parametrize("types", TYPES)
@pytest.mark.parametrize("length", [1, 4, 50])
def test_a_history_holds_the_newest_earlier_events_of_its_types(types: tuple[int, ...], length: int) -> None:
    events = typed_events(length)
    tables = FeatureTables({}, {}, histories={"h": HistoryTable(ROWS, length, types=types)})
    got = tables.of_examples(events, np.arange(len(events)))["h"]
    for event, line in enumerate(got):
        wanted = [int(events.item[other]) + 1 for other in earlier_events(events, event, types)][-length:]
        assert [int(row) for row in line if row] == wanted


@pytest.mark.parametrize("types", TYPES)
@pytest.mark.parametrize("length", [1, 5, 50])
def test_a_sequence_holds_earlier_events_of_its_types_and_the_times_between_them(
    types: tuple[int, ...], length: int
) -> None:
    events = typed_events(length, longest=30)
    sequences = {"s": SequenceTable(ROWS, length, True, types=types), "all": SequenceTable(ROWS, 3)}
    tables = FeatureTables({}, {}, sequences=sequences, ticks_per_second=10)
    examples = SequenceExamples(events, tables, ItemRanks.of(events.item, ITEMS), 37, 3)
    seconds, every = np.asarray(events.time) // 10, np.arange(len(events))
    for example, shown in zip(every, seen_by(examples, every), strict=True):
        past = earlier_events(events, int(example), types)
        assert min(len(past), (length + 1) // 2) <= len(shown) <= length
        kept = past[len(past) - len(shown) :]
        gaps = [0] + [int(np.floor(np.log2(1 + seconds[b] - seconds[a]))) + 1 for a, b in pairwise(kept)]
        assert shown == [[int(events.item[e]) + 1, gap] for e, gap in zip(kept, gaps, strict=False)]


@pytest.mark.parametrize("types", TYPES)
@pytest.mark.parametrize("positives", [1, 2])
@pytest.mark.parametrize("weighted", [False, True])
def test_a_history_of_others_goes_round_the_events_of_its_types(
    types: tuple[int, ...], positives: int, weighted: bool
) -> None:
    """One user of 30 events, each item once."""
    kinds = np.random.default_rng(4).integers(-1, 3, 30).astype(np.int16)
    taken = np.arange(30) % 3 != 1 if weighted else np.ones(30, bool)
    events = Events(np.zeros(30, np.int32), np.arange(30, dtype=np.int32), np.array([0, 30], np.int64), type=kinds)
    if weighted:
        events = with_weights(events, taken.astype(np.float32))
        assert events.positives is not None
        events = replace(events, positives=replace(events.positives, type=kinds[taken]))
    for length in (2, 50):
        tables = FeatureTables({}, {}, histories={"h": HistoryTable(ROWS, length, types=types)})
        for example, line in enumerate(tables.of_examples(events, np.arange(30), positives)["h"]):
            targets = [(example + k) % 30 for k in range(positives)]
            later = [(example + k) % 30 for k in range(30)]
            wanted = [e for e in later if taken[e] and e not in targets and of_wanted(events, e, types)][:length]
            assert [int(row) - 1 for row in line if row] == wanted


@pytest.mark.parametrize("types", TYPES)
def test_queries_outside_any_event_read_the_newest_of_their_types(types: tuple[int, ...]) -> None:
    rng = np.random.default_rng(1)
    offsets, items = np.array([5, 5, 12, 30], np.int64), rng.integers(0, ITEMS, 40).astype(np.int32)
    kinds, times = rng.integers(-1, 3, 40).astype(np.int16), np.sort(rng.integers(0, 500, 40))
    rows = np.where(ROWS % 7 == 0, 0, ROWS).astype(np.int32)  # items without a row
    tables = FeatureTables(
        {},
        {},
        histories={"h": HistoryTable(rows, 4, types=types)},
        sequences={"s": SequenceTable(rows, 4, True, types=types)},
    )
    features = tables.of_users(np.arange(3, dtype=np.int32), offsets, items, times, kinds)
    for query in range(3):
        own = [e for e in range(offsets[query], offsets[query + 1]) if not types or int(kinds[e]) in types]
        line = [int(rows[items[e]]) for e in own][-4:]
        assert features["h"][query].tolist() == [0] * (4 - len(line)) + line
        known = [e for e in own if rows[items[e]]][-4:]
        gaps = [0] + [int(np.floor(np.log2(1 + times[b] - times[a]))) + 1 for a, b in pairwise(known)]
        got = [pair for pair in features["s"][query].tolist() if pair[0]]
        assert got == [[int(rows[items[e]]), gap] for e, gap in zip(known, gaps, strict=False)]
    if types:  # without types no event is of one
        assert not tables.of_users(np.arange(3, dtype=np.int32), offsets, items, times)["h"].any()


def test_an_event_with_no_history_of_any_type_is_no_example_where_nothing_else_is_known() -> None:
    events = typed_events(6)
    sequences = {"s": SequenceTable(ROWS, 4, types=(0,)), "t": SequenceTable(ROWS, 4, types=(2,))}
    tables = FeatureTables({}, {}, sequences=sequences)
    examples = SequenceExamples(events, tables, ItemRanks.of(events.item, ITEMS), 10_000, 3, alone=True)
    wanted = [e for e in range(len(events)) if earlier_events(events, e, (0, 2))]
    assert examples.chosen(0, range(1)).tolist() == [wanted] and len(examples) == len(wanted)
    counts = example_counts(events, ITEMS, tables)
    assert counts.tolist() == np.bincount(events.item[wanted], minlength=ITEMS).tolist()
    fewer = [e for e in range(len(events)) if earlier_events(events, e, (0,))]
    assert len(fewer) < len(wanted) < len(events)
