"""The log Q of in-batch negatives is that of what is in the batches, whatever a recipe makes examples of."""

from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import tensorflow as tf

from pipelines.training.check import check_recipe
from pipelines.training.stage import build_training
from tests.support.worlds.splits import split_world
from towers.config.recipe import parse_config

SEQUENCE = {"past": {"kind": "sequence", "max_length": 4}}
POOLED = {"pooled": {"kind": "history", "max_length": 3}}
ID = {"user_id": {"kind": "id"}}
GIVEN: dict[str, tuple[Literal["global_time", "random", "leave_last_out"], dict[str, Any], dict[str, Any]]] = {
    "ids": ("leave_last_out", ID, {}),
    "no order": ("random", ID | POOLED, {}),
    "a window of others": ("leave_last_out", {"pooled": POOLED["pooled"] | {"window": "others"}}, {}),
    "sequence alone": ("leave_last_out", SEQUENCE, {}),
    "sequence and history": ("global_time", SEQUENCE | POOLED, {}),
    "sequence and id": ("leave_last_out", SEQUENCE | ID, {}),
    "sequence alone, refit": ("leave_last_out", SEQUENCE, {"data": {"refit": True}}),
    "sequence of purchases": ("leave_last_out", {"past": SEQUENCE["past"] | {"events": ["buy"]}}, {}),
    "impressions": ("leave_last_out", ID, {"loss": {"name": "sampled_softmax", "impressions": 2}}),
    "refit, weighted": ("global_time", ID, {"data": {"refit": True}, "train": {"weighted": True, "recency": 3.0}}),
}


@pytest.mark.parametrize("name", GIVEN)
def test_the_frequencies_of_a_batch_are_its_q(name: str, tmp_path: Path) -> None:
    split, query, settings = GIVEN[name]
    data = split_world(tmp_path, split, typed=any("events" in each for each in query.values()))
    sections = {"features": {"query": query, "candidate": {"item_id": {"kind": "id"}}}, "model": {"dimension": 4}}
    train = {"batch_size": 10_000} | settings.get("train", {})
    config = check_recipe(parse_config(sections | settings | {"train": train}), data)
    splits = ("train", "valid") if config.data.refit else ("train",)
    training = build_training(config, data, splits, tmp_path, tmp_path, validated=False)
    # All examples in one batch: how often an item is in it is its frequency, without an error of sampling.
    batch = training.batches.batch(0, 0)
    assert (batch.label > 0).all(), "an impression is no example"
    item = batch.item[:, 0]
    assert len(item) == training.examples
    count = np.bincount(item)
    expected = training.task.sampler.expected_count(tf.range(len(count), dtype=tf.int64), float(len(item)))
    np.testing.assert_allclose(expected, count, rtol=1e-5)
