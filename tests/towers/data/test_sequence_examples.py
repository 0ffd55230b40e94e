"""Batches of whole histories, against loops over the events: what is an example, what it sees, and how it is packed."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.impressions import with_weights
from towers.data.events import Events
from towers.data.feature_tables import FeatureTables, SequenceTable
from towers.data.item_ranks import ItemRanks
from towers.data.packing import GAP_BOUNDS, gap_buckets, packed, packed_windows
from towers.data.sequence_examples import SequenceExamples, example_counts

ITEMS = 50
ROWS = np.arange(1, ITEMS + 1, dtype=np.int32)


def events_of(seed: int, users: int = 60, longest: int = 40) -> Events:
    """Users of 0 to `longest` events, many of one moment."""
    rng = np.random.default_rng(seed)
    counts = rng.integers(0, longest + 1, users)
    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    user = np.repeat(np.arange(users, dtype=np.int32), counts)
    time = np.concatenate([np.sort(rng.integers(0, 30, count)) for count in counts]).astype(np.int64) * 1000
    ends = [offsets[u] + int(np.sum(time[offsets[u] : offsets[u + 1]] < time[e])) for e, u in enumerate(user)]
    item = rng.integers(0, ITEMS, len(user)).astype(np.int32)
    return Events(user, item, offsets, time, np.array(ends, np.int64))


def tables_of(length: int, rows: np.ndarray = ROWS) -> FeatureTables:
    return FeatureTables({}, {"item_id": ROWS}, sequences={"s": SequenceTable(rows, length, True)}, ticks_per_second=10)


def examples_of(
    events: Events, length: int, *, alone: bool, batch_size: int = 37, rows: np.ndarray = ROWS
) -> SequenceExamples:
    tables = tables_of(length, rows)
    return SequenceExamples(events, tables, ItemRanks.of(events.item, ITEMS), batch_size, 3, alone=alone)


def seen_by(examples: SequenceExamples, example: np.ndarray) -> list[list[list[int]]]:
    """Row and gap of all items that each example's place sees, oldest first, read out of the packed rows."""
    packed_rows = examples.queries(example[np.newaxis])[0]["s"]
    items, segment, position = (np.asarray(part).reshape(-1, *part.shape[2:]) for part in packed_rows[:3])
    width = packed_rows.items.shape[1]
    shown = []
    for place in packed_rows.place:
        row = range(place - place % width, place + 1) if place >= 0 else ()
        mine = [each for each in row if segment[each] == segment[place]]
        assert [int(position[each]) for each in mine] == list(range(len(mine)))
        shown.append([items[each].tolist() for each in mine])
    return shown


@pytest.mark.parametrize("alone", [True, False])
@pytest.mark.parametrize("length", [1, 2, 7, 50])
def test_every_event_is_one_example_and_sees_strictly_earlier_ones(length: int, alone: bool) -> None:
    events = events_of(seed=length)
    examples = examples_of(events, length, alone=alone)
    start, end = events.offsets[events.user], np.asarray(events.history_end)
    wanted = np.flatnonzero(end > start) if alone else np.arange(len(events))
    assert len(examples) == len(wanted)
    got = examples.chosen(2, range(examples.steps)).ravel()
    assert len(got) == len(wanted) // 37 * 37
    assert len(np.unique(got)) == len(got)
    assert np.isin(got, wanted).all()
    # A last, partial batch is left out; in one batch of all there is none.
    whole = examples_of(events, length, alone=alone, batch_size=len(wanted))
    np.testing.assert_array_equal(whole.chosen(0, range(1))[0], wanted)
    seconds = np.asarray(events.time) // 10
    for example, shown in zip(wanted, seen_by(examples, wanted), strict=True):
        history = range(start[example], end[example])[-len(shown) :] if shown else []
        assert len(shown) == len(history) == min(end[example] - start[example], len(shown))
        assert len(shown) >= min(end[example] - start[example], (length + 1) // 2)
        assert len(shown) <= length
        gaps = [0] + [int(np.floor(np.log2(1 + seconds[e] - seconds[e - 1]))) + 1 for e in list(history)[1:]]
        assert shown == [[int(events.item[e]) + 1, gap] for e, gap in zip(history, gaps, strict=False)]


def test_the_counts_are_those_of_the_examples_and_leave_no_item_without_a_rank(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Item 49 is taken by nobody but as the first one."""
    monkeypatch.setattr("towers.data.blocks.BLOCK_ROWS", 100)
    events = events_of(seed=8)
    events.item[:] = np.where(np.asarray(events.history_end) > events.offsets[events.user], events.item % 49, 49)
    trained = examples_of(events, 7, alone=True, batch_size=10_000).batch(0, 0)
    counts = example_counts(events, ITEMS, tables_of(7))
    ranks = ItemRanks.of(events.item, ITEMS, counts)
    assert counts[49] == 0 and ranks.counts.sum() == len(trained.item)
    assert sorted(ranks.items.tolist()) == sorted(set(events.item.tolist())) and ranks.items[-1] == 49
    by_event = ItemRanks.of(events.item, ITEMS)
    taken = by_event.items[trained.item[:, 0]]
    np.testing.assert_array_equal(ranks.counts, np.bincount(taken, minlength=ITEMS)[ranks.items])
    assert (np.diff(ranks.counts) <= 0).all()


def test_a_history_that_fits_is_seen_whole() -> None:
    events = events_of(seed=5)
    examples = examples_of(events, 40, alone=False)
    start, end = events.offsets[events.user], np.asarray(events.history_end)
    shown = seen_by(examples, np.arange(len(events)))
    assert [len(each) for each in shown] == (end - start).tolist()


@pytest.mark.parametrize("length", [1, 4, 40])
def test_an_item_without_a_row_counts_as_never_taken_as_in_a_request(length: int) -> None:
    events, rows = events_of(seed=9), np.where(ROWS % 3 == 0, 0, ROWS)
    examples = examples_of(events, length, alone=True, batch_size=10_000, rows=rows)
    start, end = events.offsets[events.user], np.asarray(events.history_end)
    known = [[e for e in range(start[example], end[example]) if rows[events.item[e]]] for example in range(len(events))]
    wanted = [example for example, earlier in enumerate(known) if earlier]
    assert examples.chosen(0, range(1)).tolist() == [wanted] and len(wanted) < int((end > start).sum())
    counts = example_counts(events, ITEMS, tables_of(length, rows))
    assert counts.tolist() == np.bincount(events.item[wanted], minlength=ITEMS).tolist()
    for example, shown in zip(wanted, seen_by(examples, np.array(wanted)), strict=True):
        assert (min(len(known[example]), length) + 1) // 2 <= len(shown) <= length
        # A request with these items, as the last that the user took.
        history = known[example][-len(shown) :]
        times = np.asarray(events.time)[history]
        request = examples.tables.of_users(
            np.zeros(1, np.int32), np.array([0, len(history)]), events.item[history], times
        )["s"][0]
        assert shown == request[-len(shown) :].tolist()


@pytest.mark.parametrize("length", [2, 40])
def test_impressions_see_what_was_taken_before_and_are_seen_by_none(length: int) -> None:
    events = events_of(seed=6)
    weight = np.random.default_rng(6).integers(0, 3, len(events)).astype(np.float32)
    weight[events.offsets[3] : events.offsets[5]] = 0  # two users who took nothing
    seconds, ends = np.asarray(events.time) // 10, np.asarray(events.history_end)
    events = with_weights(events, weight)
    for example, shown in enumerate(seen_by(examples_of(events, length, alone=False), np.arange(len(events)))):
        before = [e for e in range(events.offsets[events.user[example]], ends[example]) if weight[e] > 0]
        assert min(len(before), (length + 1) // 2) <= len(shown) <= min(len(before), length)
        before = before[len(before) - len(shown) :]
        gaps = [0] + [int(np.floor(np.log2(1 + seconds[e] - seconds[b]))) + 1 for b, e in itertools.pairwise(before)]
        assert shown == [[int(events.item[e]) + 1, gap] for e, gap in zip(before, gaps, strict=False)]


def test_batches_are_a_function_of_the_step_and_epochs_have_orders_of_their_own() -> None:
    examples = examples_of(events_of(seed=1), 7, alone=True)
    steps = range(examples.steps)
    forth = [examples.batch(1, step).item.tolist() for step in steps]
    again = examples_of(events_of(seed=1), 7, alone=True)
    assert [again.batch(1, step).item.tolist() for step in reversed(steps)] == forth[::-1]
    assert [examples.batch(2, step).item.tolist() for step in steps] != forth


@given(st.lists(st.integers(0, 9), min_size=1, max_size=60))
def test_packed_rows_hold_every_window_once_and_side_by_side(lengths: list[int]) -> None:
    count = np.array(lengths, np.int64)
    items = np.stack([np.arange(1, count.sum() + 1), np.arange(count.sum())], axis=1).astype(np.int32)
    windows, begins = packed_windows(items, count, 9)
    flat, segment = windows.items.reshape(-1, 2), windows.segment.reshape(-1)
    first = np.cumsum(count) - count
    for begin, length, item in zip(begins, lengths, first, strict=True):
        assert flat[begin : begin + length].tolist() == items[item : item + length].tolist()
        assert windows.position.reshape(-1)[begin : begin + length].tolist() == list(range(length))
        if length:
            assert (begin + length - 1) // 9 == begin // 9
            mine = np.flatnonzero(windows.segment[begin // 9] == segment[begin])
            assert mine.tolist() == list(range(begin % 9, begin % 9 + length))
    assert (flat[:, 0] > 0).sum() == len(items)
    # Without a hole, so that no number is greater than the row's places.
    assert all(set(row) - {0} == set(range(1, max(row) + 1)) for row in windows.segment.tolist())
    # Two rows that are both less than half full would fit into one.
    filled = (windows.segment > 0).sum(axis=1)
    assert (filled <= 4).sum() <= 1


def test_histories_are_packed_wherever_their_items_stand() -> None:
    histories = np.zeros((3, 4, 2), np.int32)
    histories[0, :, 0] = [0, 3, 0, 4]
    histories[2, :, 0] = [5, 0, 0, 0]
    windows = packed(histories)
    flat = windows.items.reshape(-1, 2)[:, 0]
    assert (flat[windows.place[0] - 1], flat[windows.place[0]], flat[windows.place[2]]) == (3, 4, 5)
    assert windows.place[1] == -1
    assert windows.items.shape == (1, 4, 2)


def test_gaps_are_powers_of_two_of_a_second() -> None:
    seconds = np.array([-1, 0, 1, 2, 3, 6, 7, 2**39 - 2, 2**39 - 1, 2**62])
    assert gap_buckets(seconds).tolist() == [0, 1, 2, 2, 3, 3, 4, 39, 40, 40]
    assert len(GAP_BOUNDS) == 40


def test_histories_of_users_keep_the_last_known_items_and_the_gaps_between_them() -> None:
    rows = np.array([1, 2, 0, 3, 4], np.int32)  # training knows nothing of item 2
    tables = FeatureTables({}, {}, sequences={"s": SequenceTable(rows, 3, True)}, ticks_per_second=10)
    items = np.array([0, 1, 2, 3, 4, 3, 2], np.int32)
    times = np.array([5, 10, 30, 80, 80, 7, 9], np.int64)
    offsets = np.array([0, 5, 5, 7])
    got = tables.of_users(np.arange(3, dtype=np.int32), offsets, items, times)["s"]
    # From 10 to 80 ticks are 7 seconds: the item in between was never taken.
    assert got.tolist() == [[[2, 0], [3, 4], [4, 1]], [[0, 0]] * 3, [[0, 0], [0, 0], [3, 0]]]
    without = tables.of_users(np.arange(3, dtype=np.int32), offsets, items)["s"]
    assert without[:, :, 1].max() == 0
    part = tables.of_users(np.array([2], np.int32), offsets[2:], items, times)["s"]
    assert part.tolist() == got[2:].tolist()


def test_gaps_are_between_whole_seconds_as_in_a_request() -> None:
    # Of 0.9 and 1.1 seconds a request knows 0 and 1: a gap of one second, bucket 2.
    times = np.array([9, 11], np.int64)
    assert gap_buckets(times // 10)[1:].tolist() == [2]
    events = Events(np.zeros(2, np.int32), np.arange(2, dtype=np.int32), np.array([0, 2]), times, np.array([0, 1]))
    tables = tables_of(3)
    served = tables.of_users(np.zeros(1, np.int32), events.offsets, events.item, times)["s"]
    assert served[0, 1:].tolist() == [[1, 0], [2, 2]]
    three = Events(
        np.zeros(3, np.int32), np.arange(3, dtype=np.int32), np.array([0, 3]), np.append(times, 40), np.array([0, 1, 2])
    )
    assert seen_by(examples_of(three, 3, alone=True), np.array([2])) == [[[1, 0], [2, 2]]]


def test_untimed_events_have_no_order() -> None:
    events = Events(np.zeros(2, np.int32), np.zeros(2, np.int32), np.array([0, 2]))
    with pytest.raises(ValueError, match="needs timed events"):
        len(examples_of(events, 3, alone=True))
