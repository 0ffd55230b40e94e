"""Counts of items over windows of time against slow loops."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.dataset.popularity import DAY_S, Counting, countings, item_counts, last_time
from towers.data.events import Events

USERS, ITEMS = 4, 5
event = st.tuples(st.integers(0, USERS - 1), st.integers(0, ITEMS - 1), st.integers(0, 40 * DAY_S))


def events_of(rows: list[tuple[int, int, int]]) -> Events:
    rows = sorted(rows, key=lambda row: (row[0], row[2]))
    user = np.array([row[0] for row in rows], np.int32)
    offsets = np.searchsorted(user, np.arange(USERS + 1)).astype(np.int64)
    time = np.array([row[2] for row in rows], np.int64)
    return Events(user, np.array([row[1] for row in rows], np.int32), offsets, time)


@given(
    st.lists(event, max_size=30),
    st.lists(event, max_size=30),
    st.sampled_from([None, 7, 30]),
    st.booleans(),
    st.sampled_from([None, 20 * DAY_S]),
)
def test_counts_are_those_of_slow_loops(
    first: list[tuple[int, int, int]],
    second: list[tuple[int, int, int]],
    days: int | None,
    alike: bool,
    until: int | None,
) -> None:
    end = max((row[2] for row in first + second), default=0) if until is None else until
    kept = [row for row in first + second if days is None or end - days * DAY_S < row[2] <= end]
    wanted = np.zeros(ITEMS)
    for user, item, _ in kept:
        wanted[item] += 1 / sum(row[0] == user for row in kept) if alike else 1
    parts = [events_of(first), events_of(second)]
    for rows in (3, 1 << 20):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("towers.data.blocks.BLOCK_ROWS", rows)
            counts = item_counts(parts, ITEMS, Counting(days, alike), time_unit="s", until=until)
        np.testing.assert_allclose(counts, wanted, rtol=1e-12)


def test_times_are_read_in_their_unit() -> None:
    day_ms = DAY_S * 1_000
    events = events_of([(0, 0, 0), (0, 1, 5 * day_ms), (0, 2, 8 * day_ms)])
    assert last_time([events]) == 8 * day_ms
    assert item_counts([events], ITEMS, Counting(7), time_unit="ms").tolist() == [0, 1, 1, 0, 0]


def test_a_window_needs_times_in_a_unit() -> None:
    with pytest.raises(ValueError, match="a window of 7 days needs times in a unit, got 'order'"):
        item_counts([events_of([(0, 0, 0)])], ITEMS, Counting(7), time_unit="order")


def test_which_ways_to_count_a_data_set_allows() -> None:
    assert countings(windows=False) == [Counting(), Counting(None, True)]
    assert {each.days for each in countings(windows=True)} == {7, 14, 30, 60, 90, None}
    assert str(Counting(60, True)) == "popularity of 60 days, users alike"
    assert str(Counting()) == "popularity"
