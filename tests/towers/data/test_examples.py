"""The order of examples, their histories and clocks, against loops over the events."""

import dataclasses

import numpy as np
import pytest

from towers.data.bags import distinct_bag
from towers.data.events import Events
from towers.data.examples import Examples
from towers.data.feature_tables import FeatureTables, HistoryTable, windows
from towers.data.item_ranks import ItemRanks


def small_events(timed: bool) -> Events:
    user = np.array([0, 0, 0, 0, 1, 2, 2], np.int32)
    item = np.array([5, 3, 4, 5, 1, 2, 0], np.int32)
    time = np.array([10, 20, 20, 7200, 5, 86400, 90000], np.int64)
    history_end = np.array([0, 1, 1, 3, 4, 5, 6], np.int64)  # the two events at time 20 do not see each other
    offsets = np.array([0, 4, 5, 7], np.int64)
    return Events(user, item, offsets, time, history_end) if timed else Events(user, item, offsets)


def test_windows_outside_any_event_take_the_end_of_the_list() -> None:
    history = HistoryTable(np.arange(10, dtype=np.int32) + 1, 3)
    got = windows(np.array([0, 2, 2]), np.array([2, 2, 6]), np.array([9, 8, 1, 2, 3, 4], np.int32), history)
    assert got.tolist() == [[0, 10, 9], [0, 0, 0], [3, 4, 5]]


def test_batches_are_a_function_of_the_step() -> None:
    events = small_events(timed=True)
    tables = FeatureTables({"user_id": np.arange(3, dtype=np.int32)}, {"item_id": np.arange(6, dtype=np.int32)})
    examples = Examples(events, tables, ItemRanks.of(events.item, 6), 2, seed=4)
    assert examples.steps == 3
    again = Examples(events, tables, ItemRanks.of(events.item, 6), 2, seed=4)
    forth = [examples.batch(1, step).item.tolist() for step in range(3)]
    back = [again.batch(1, step).item.tolist() for step in reversed(range(3))]
    assert back == forth[::-1]


def test_ranks_fall_with_the_number_of_examples_and_leave_untrained_items_out() -> None:
    catalogue = ItemRanks.of(np.array([5, 5, 1, 3, 3, 3, 1], np.int32), 7)
    assert catalogue.items.tolist() == [3, 1, 5]  # ties by item number
    assert catalogue.counts.tolist() == [3, 2, 2]
    assert catalogue.ranks.tolist() == [-1, 1, -1, 0, -1, 2, -1]


def test_unknown_items_take_places_of_a_history_as_in_training_and_none_of_a_graph() -> None:
    rows = np.array([0, 1, 2, 0, 3], np.int32)
    tables = FeatureTables({}, {}, histories={"h": HistoryTable(rows, 3)}, neighbours={"n": HistoryTable(rows, 3)})
    items = np.array([9, 9, 1, 2, 4, 3, 0, 3, 0], np.int32)
    features = tables.of_users(np.arange(2, dtype=np.int32), np.array([2, 7, 9]), items)
    assert features["h"].tolist() == [[3, 0, 0], [0, 0, 0]]
    assert features["n"].tolist() == [[1, 2, 3], [0, 0, 0]]
    events = Events(
        np.zeros(6, np.int32), items[[2, 3, 4, 5, 6, 2]], np.array([0, 6]), None, np.array([0, 1, 2, 3, 4, 5])
    )
    assert tables.of_examples(events, np.array([5]))["h"].tolist() == features["h"][:1].tolist()


def several(timed: bool, positives: int, known: int) -> tuple[list[list[int]], list[list[int]], list[list[int]]]:
    """Of each example: its positives, the known items beside it, its history; as item numbers."""
    events = small_events(timed)
    rows = np.arange(6, dtype=np.int32) + 1
    tables = FeatureTables({}, {}, histories={"h": HistoryTable(rows, 8)})
    catalogue = ItemRanks.of(events.item, 6)
    batch = Examples(events, tables, catalogue, 7, 0, positives=positives, known=known).batch(0, 0)
    items = np.append(catalogue.items, -1)
    shown = [items[line[there]].tolist() for line, there in zip(batch.item, batch.present, strict=True)]
    beside = [items[line][line >= 0].tolist() for line in batch.known]
    histories = tables.of_examples(events, np.arange(7), positives)["h"]
    return shown, beside, [[int(row) - 1 for row in line if row] for line in histories]


def test_several_positives_are_the_users_next_items() -> None:
    positives, known, history = several(timed=True, positives=3, known=0)
    assert positives == [[5, 3, 4], [3, 4, 5], [4, 5], [5], [1], [2, 0], [0]]
    assert known == [[]] * 7
    assert history == [[], [5], [5], [5, 3, 4], [], [], [2]]


def test_untimed_positives_go_round_and_stand_in_no_history() -> None:
    positives, _, history = several(timed=False, positives=2, known=0)
    assert positives == [[5, 3], [3, 4], [4, 5], [5, 5], [1], [2, 0], [0, 2]]
    assert [sorted(line) for line in history] == [[4], [5, 5], [3], [3, 4], [], [], []]


def test_recency_weighs_a_users_last_event_by_its_factor() -> None:
    events = dataclasses.replace(small_events(timed=True), weight=np.array([2, 1, 1, 1, 1, 1, 1], np.float32))
    tables = FeatureTables(users={}, items={}, histories={})
    catalogue = ItemRanks.of(events.item, 6)
    examples = Examples(events, tables, catalogue, batch_size=7, seed=0, recency=9.0)
    # 9^p at the middle of each of n equal parts of 0 to 1, by its mean over 0 to 1: the integral is 8 / ln 9.
    places = [1 / 8, 3 / 8, 5 / 8, 7 / 8, 1 / 2, 1 / 4, 3 / 4]
    wanted = np.array([9**place * np.log(9) / 8 for place in places])
    np.testing.assert_allclose(examples.batch(0, 0).weight, wanted, rtol=1e-6)
    both = dataclasses.replace(examples, weighted=True).batch(0, 0).weight
    np.testing.assert_allclose(both, wanted * [2, 1, 1, 1, 1, 1, 1], rtol=1e-6)


def test_balance_weighs_each_user_alike() -> None:
    events = small_events(timed=True)
    tables = FeatureTables(users={}, items={}, histories={})
    for balance, wanted in ((1.0, [1 / 4] * 4 + [1.0] + [1 / 2] * 2), (0.5, [1 / 2] * 4 + [1.0] + [0.5**0.5] * 2)):
        examples = Examples(events, tables, ItemRanks.of(events.item, 6), batch_size=7, seed=0, balance=balance)
        np.testing.assert_allclose(examples.batch(0, 0).weight, wanted, rtol=1e-6)


@pytest.mark.parametrize("timed", [True, False])
@pytest.mark.parametrize("positives", [1, 2, 3])
@pytest.mark.parametrize("most", [1, 2, 3, 9, 10**12])
def test_known_items_are_the_nearest_others_of_the_same_user(most: int, positives: int, timed: bool) -> None:
    events = small_events(timed)
    shown, known, _ = several(timed, positives, most)
    for example, (targets, line) in enumerate(zip(shown, known, strict=True)):
        others = [e for e in np.flatnonzero(events.user == events.user[example]) if e != example]
        # An odd one comes after the example; at an end of the list there are more of the other side.
        near = sorted(others, key=lambda e: abs(e - example) - (0.5 if e > example else 0))[:most]
        assert line == [int(events.item[e]) for e in sorted(near) if events.item[e] not in targets]


@pytest.mark.parametrize("largest", [3, 40, 10**7])
def test_a_bag_holds_each_distinct_row_once_and_every_value_in_its_place(largest: int) -> None:
    rows = np.random.default_rng(largest).choice([0, 0, 1, 2, 3, largest], (5, 4)).astype(np.int32)
    rows[2] = 0
    bag = distinct_bag(rows)
    assert len(set(bag.rows.tolist())) == len(bag.rows) and bag.size == 5
    held: list[list[int]] = [[] for _ in range(5)]
    for place, example in zip(bag.place, bag.example, strict=True):
        held[example].append(int(bag.rows[place]))
    assert held == [[row for row in line if row] for line in rows.tolist()]


def test_counts_are_those_of_all_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("towers.data.blocks.BLOCK_ROWS", 2)
    assert ItemRanks.of(np.array([3, 1, 3, 3, 1], np.int32), 5).counts.tolist() == [3, 2]
