"""Batches that are made together are those that are made one by one, in every source."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.support.impressions import with_weights
from tests.support.worlds.training import group_world, recipe, task_of
from tests.towers.data.test_impressions import examples as with_impressions
from tests.towers.data.test_sequence_examples import events_of, examples_of
from tests.towers.tasks.test_similarity import by_class
from towers.data.examples import Examples
from towers.data.feature_tables import HistoryTable
from towers.data.similarity_examples import batches as of_items
from towers.training.devices import Together
from towers.training.protocols import Batches


def with_history() -> Examples:
    """Weights, several positives, known items and a history; one of two workers makes half of each batch."""
    events, tables, _ = group_world()
    _, examples = task_of(recipe(), events, tables)
    weight = np.random.default_rng(0).integers(1, 4, len(events)).astype(np.float32)
    rows = np.arange(1, 1 + len(tables.items["item_id"]), dtype=np.int32)
    return replace(
        examples,
        events=with_weights(events, weight),
        tables=replace(tables, histories={"history": HistoryTable(rows, 4, others=True)}),
        weighted=True,
        positives=2,
        known=3,
        worker=1,
        workers=2,
    )


def sources() -> dict[str, Batches]:
    return {
        "history": with_history(),
        "impressions": with_impressions(known=4),
        "sequences": examples_of(events_of(seed=2), 7, alone=False),
        "items and centres": of_items(by_class(), "centres", 8, seed=3),
        "items": of_items(by_class(), "items", 8, seed=3),
        "devices": Together([replace(with_history(), worker=rank) for rank in range(2)]),
    }


@pytest.mark.parametrize("name", sources())
def test_together_they_are_what_they_are_one_by_one(name: str) -> None:
    source = sources()[name]
    assert source.steps >= 2
    for steps in (range(source.steps), range(1, 2), range(1, source.steps)):
        together = source.batches(1, steps)
        assert len(together) == len(steps)
        for step, batch in zip(steps, together, strict=True):
            alone: Any = source.batch(1, step)
            assert type(batch) is type(alone)
            ours, theirs = tf.nest.flatten(batch), tf.nest.flatten(alone)
            for one, other in zip(ours, theirs, strict=True):
                assert one.dtype == other.dtype
                np.testing.assert_array_equal(one, other)
