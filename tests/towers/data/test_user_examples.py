"""Batches of whole users, against loops over the events."""

import numpy as np
import pytest

from towers.data.events import Events
from towers.data.examples import UserExamples, longest
from towers.data.feature_tables import FeatureTables
from towers.data.item_ranks import ItemRanks

ITEM = np.array([5, 3, 4, 5, 1, 2, 0], np.int32)
LISTS = {0: {3, 4, 5}, 1: {1}, 3: {0, 2}}  # user 2 has no event


def events_of(*, timed: bool) -> Events:
    user = np.array([0, 0, 0, 0, 1, 3, 3], np.int32)
    offsets = np.array([0, 4, 5, 5, 7], np.int64)
    time = np.array([10, 20, 20, 7200, 5, 86400, 90000], np.int64)
    ends = np.array([0, 1, 1, 3, 4, 5, 6], np.int64)
    return Events(user, ITEM, offsets, time, ends) if timed else Events(user, ITEM, offsets)


def examples_of(events: Events, balance: float = 0.0) -> UserExamples:
    features = FeatureTables({"user_id": np.arange(4, dtype=np.int32)}, {"item_id": np.arange(6, dtype=np.int32)})
    return UserExamples(
        events, features, ItemRanks.of(events.item, 6), 1, seed=2, balance=balance, positives=longest(events)
    )


@pytest.mark.parametrize("timed", [True, False])
def test_every_user_is_one_example_an_epoch_with_all_of_their_items(timed: bool) -> None:
    events = events_of(timed=timed)
    examples = examples_of(events)
    assert (len(examples), examples.steps) == (3, 3)
    ranks = ItemRanks.of(events.item, 6).ranks
    for epoch in range(3):
        batches = [examples.batch(epoch, step) for step in range(3)]
        assert sorted(int(batch.user[0]) for batch in batches) == [0, 1, 3]
        for batch in batches:
            user = int(batch.user[0])
            assert set(batch.item[0][batch.present[0]]) == {ranks[item] for item in LISTS[user]}
            assert batch.query["user_id"].tolist() == [user]


def test_an_example_weighs_as_much_as_the_user_s_events() -> None:
    examples = examples_of(events_of(timed=False), balance=0.5)
    weights = {int(each.user[0]): float(each.weight[0]) for each in (examples.batch(0, step) for step in range(3))}
    assert weights == pytest.approx({0: 2.0, 1: 1.0, 3: 2**0.5})
