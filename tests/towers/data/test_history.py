"""The rule of histories, for any events and targets, against slow loops over them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.impressions import with_weights
from towers.data.events import Events
from towers.data.feature_tables import HistoryTable, example_histories
from towers.data.history import earlier, history_ends

ITEMS = 5
ROWS = np.arange(ITEMS, dtype=np.int32) + 1  # the table row of item i is i + 1; 0 is no item
# Per user a list of (item, time since the event before, weight).
USERS = st.lists(
    st.lists(st.tuples(st.integers(0, ITEMS - 1), st.integers(0, 2), st.sampled_from([0.0, 1.0])), max_size=7),
    min_size=1,
    max_size=4,
)


def events_of(users: list[list[tuple[int, int, float]]], *, timed: bool, weighted: bool) -> Events:
    rows = [(user, *event) for user, mine in enumerate(users) for event in mine]
    offsets = np.cumsum([0, *map(len, users)])
    time = np.concatenate(
        [np.zeros(0, np.int64), *(np.cumsum([gap for _, gap, _ in mine], dtype=np.int64) for mine in users)]
    )
    events = Events(
        np.array([row[0] for row in rows], np.int32),
        np.array([row[1] for row in rows], np.int32),
        offsets,
        time if timed else None,
        history_ends(offsets, time) if timed else None,
    )
    return with_weights(events, np.array([row[3] for row in rows], np.float32)) if weighted else events


@given(USERS, st.booleans(), st.integers(1, 9))
def test_a_timed_history_is_the_newest_strictly_earlier_positives(
    users: list[list[tuple[int, int, float]]], weighted: bool, length: int
) -> None:
    events = events_of(users, timed=True, weighted=weighted)
    found = example_histories(events, np.arange(len(events)), HistoryTable(ROWS, length)).tolist()
    for mine in users:
        time = 0
        times = [time := time + gap for _, gap, _ in mine]
        for now in times:
            before = [
                item + 1
                for (item, _, weight), then in zip(mine, times, strict=True)
                if then < now and (weight or not weighted)
            ]
            assert [row for row in found.pop(0) if row] == before[-length:]
    assert found == []


@given(USERS, st.booleans(), st.booleans(), st.integers(1, 9), st.integers(1, 3))
def test_a_history_of_others_goes_round_from_the_targets_and_holds_none_of_their_items(
    users: list[list[tuple[int, int, float]]], timed: bool, weighted: bool, length: int, positives: int
) -> None:
    users = [*users, [(0, 1, 1.0)]]  # training refuses events without a positive one
    events = events_of(users, timed=timed, weighted=weighted)
    history = HistoryTable(ROWS, length, others=timed)
    found = example_histories(events, np.arange(len(events)), history, positives).tolist()
    for mine in users:
        for place in range(len(mine)):
            order = [*mine[place:], *mine[:place]]
            # Targets go round where there are no times, only.
            count = min(positives, len(mine) - place) if timed else positives
            targets, others = order[:count], order[count:]
            # The window has `length` places; a positive event of a target's item takes one and leaves it empty.
            window = [item for item, _, weight in others if weight or not weighted][:length]
            held = {item for item, *_ in targets}
            assert [row for row in found.pop(0) if row] == [item + 1 for item in window if item not in held]
    assert found == []


def test_events_without_times_have_no_earlier_ones() -> None:
    events = events_of([[(0, 1, 1.0)]], timed=False, weighted=False)
    with pytest.raises(ValueError, match="needs timed events"):
        earlier(events, events.user, np.arange(1))
