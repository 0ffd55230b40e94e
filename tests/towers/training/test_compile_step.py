"""A step compiled by XLA trains as the plain one does; one that XLA cannot compile is refused with the reason."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.support.worlds.training import group_world, recipe, task_of, trainer
from towers.config.features import IdFeature, MultiFeature
from towers.data.bags import distinct_bag
from towers.data.batch import Batch
from towers.data.feature_tables import FeatureTables
from towers.errors import ConfigError
from towers.features.encoder import FeatureSpec
from towers.model.two_tower import TwoTower
from towers.training.compile_step import compiled
from towers.training.prefetch import as_tensors
from towers.training.trainer import Trainer

SECTIONS: dict[str, Any] = {"optimizer": {"weight_decay": 0.01, "schedule": "cosine", "clip_norm": 1.0}}


def test_a_compiled_step_trains_as_the_plain_one(tmp_path: Path) -> None:
    losses = []
    for jit in (False, True):
        built = trainer(tmp_path / str(jit), validate=False, **SECTIONS, train={"epochs": 3, "jit_compile": jit})
        losses.append([record["loss"] for record in built.fit().history])
    np.testing.assert_allclose(*losses, rtol=1e-4)


def test_lists_are_refused_for_their_size_changes(tmp_path: Path) -> None:
    events, plain, _ = group_world()
    genres = np.random.default_rng(0).integers(0, 10, (len(plain.users["user_id"]), 3)).astype(np.int32)
    tables = FeatureTables(plain.users | {"genres": genres}, plain.items)
    config = recipe(train={"jit_compile": True})
    user, item = (FeatureSpec(f"{side}_id", IdFeature(kind="id"), size=60, table=side) for side in ("user", "item"))
    multi = FeatureSpec("genres", MultiFeature(kind="multi", max_length=3, oov_buckets=9), table="genres")
    task, examples = task_of(config, events, tables, TwoTower([user, multi], [item], config))
    with pytest.raises(ConfigError, match=r"train.jit_compile: how many rows genres reads changes .* set it to false"):
        Trainer(task, examples, config.optimizer, config.train, tmp_path)


def test_parts_that_change_in_size_are_refused_where_two_batches_are_alike() -> None:
    batch = Batch({"past": distinct_bag(np.ones((4, 2), np.int32))}, *[np.ones((4, 1), np.int64)] * 8)
    with pytest.raises(ConfigError, match=r"train.jit_compile: how many rows past reads changes from batch to batch"):
        compiled(lambda _: tf.constant(0.0), batch, jit_compile=True)


def test_what_xla_has_no_kernel_for_is_refused_before_a_step(tmp_path: Path) -> None:
    events, tables, _ = group_world()
    _, examples = task_of(recipe(), events, tables)
    batch = as_tensors(examples.batch(0, 0))
    count = tf.Variable(0)

    def step(batch: Batch) -> tf.Tensor:
        count.assign_add(1)
        return tf.strings.length(tf.strings.as_string(batch.weight))[0]

    with pytest.raises(ConfigError, match=r"train.jit_compile: XLA cannot compile this step .* set it to false"):
        compiled(step, batch, jit_compile=True)
    assert int(count) == 0
