"""Row-sparse and blockwise steps against Keras's dense ones, rows that must stand still, and what a step is made of."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import towers.optimizers
from tests.gpu_kernels import largest, problems
from towers.config import OptimizerConfig
from towers.optimizers import build_optimizer
from towers.rows import every_row

KERAS = {
    "adam": lambda rate: tf.keras.optimizers.Adam(rate),
    "adagrad": lambda rate: tf.keras.optimizers.Adagrad(rate),
    "sgd": lambda rate: tf.keras.optimizers.SGD(rate),
}


@pytest.mark.parametrize("name", KERAS)
@pytest.mark.parametrize("sparse", [True, False])
def test_equals_keras_where_every_row_is_touched(name: str, sparse: bool) -> None:
    rng = np.random.default_rng(0)
    start = rng.normal(size=(5, 3)).astype(np.float32)
    ours, theirs = tf.Variable(start), tf.Variable(start)
    optimizer, keras = build_optimizer(OptimizerConfig(name=name, learning_rate=0.05), [ours]), KERAS[name](0.05)
    for _ in range(6):
        rows = np.concatenate([rng.permutation(5), rng.integers(0, 5, 4)])  # every row, some twice
        values = rng.normal(size=(9, 3)).astype(np.float32)
        dense = np.zeros((5, 3), np.float32)
        np.add.at(dense, rows, values)
        slices = tf.IndexedSlices(tf.constant(values), tf.constant(rows), tf.constant([5, 3]))
        optimizer.apply([slices if sparse else tf.constant(dense)])
        keras.apply_gradients([(tf.constant(dense), theirs)])
    np.testing.assert_allclose(ours, theirs, rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize("name", KERAS)
@pytest.mark.parametrize("repeats", [1, 9], ids=["fewer slices than rows", "more slices than rows"])
def test_untouched_rows_and_their_moments_stand_still(name: str, repeats: int) -> None:
    table = tf.Variable(np.random.default_rng(0).normal(size=(6, 2)).astype(np.float32))
    optimizer = build_optimizer(OptimizerConfig(name=name, learning_rate=0.1), [table])
    step = tf.IndexedSlices(tf.ones([2, 2]), tf.constant([1, 4]), tf.constant([6, 2]))
    optimizer.apply([step])
    before = [np.array(v) for v in (table, *optimizer.slots[0])]
    rows = tf.constant([4] * (1 + repeats))
    optimizer.apply([tf.IndexedSlices(tf.ones([1 + repeats, 2]), rows, tf.constant([6, 2]))])
    for old, new in zip(before, (table, *optimizer.slots[0]), strict=True):
        np.testing.assert_array_equal(np.delete(old, 4, axis=0), np.delete(new.numpy(), 4, axis=0))
    assert (before[0][4] != table.numpy()[4]).all()
    assert int(optimizer.step) == 2  # the step count is global


@pytest.mark.parametrize("name", KERAS)
@pytest.mark.parametrize("form", ["dense", "slices", "every row and slices"])
@pytest.mark.parametrize("jit", [False, True], ids=["graph", "xla"])
def test_a_large_table_moves_in_blocks(name: str, form: str, jit: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(towers.optimizers, "BLOCK", 4 * 3)  # 4 rows: 11 rows are two blocks and a part of one
    rng = np.random.default_rng(1)
    start, dense = rng.normal(size=(11, 3)).astype(np.float32), rng.normal(size=(11, 3)).astype(np.float32)
    more, rows = rng.normal(size=(5, 3)).astype(np.float32), np.array([7, 2, 2, 10, 0])
    order = rng.permutation(11)
    ours, theirs = tf.Variable(start), tf.Variable(start)
    optimizer, keras = build_optimizer(OptimizerConfig(name=name, learning_rate=0.05), [ours]), KERAS[name](0.05)
    total = dense.copy()
    np.add.at(total, rows, more)

    @tf.function(jit_compile=jit)
    def step() -> None:
        slices = tf.IndexedSlices(tf.constant(more), tf.constant(rows))
        if form == "dense":
            gradient: Any = tf.constant(total)
        elif form == "slices":
            gradient = together(tf.IndexedSlices(tf.constant(dense[order]), tf.constant(order)), slices)
        else:
            halves = tf.IndexedSlices(slices.values / 2, slices.indices)
            gradient = together(halves, together(every_row(tf.constant(dense)), halves))
        optimizer.apply([gradient])

    for _ in range(3):
        step()
        keras.apply_gradients([(tf.constant(total), theirs)])
    np.testing.assert_allclose(ours, theirs, rtol=2e-5, atol=1e-6)


def together(*parts: tf.IndexedSlices) -> tf.IndexedSlices:
    """As TensorFlow adds up the gradients of a table that is read in several places."""
    return tf.IndexedSlices(
        tf.concat([part.values for part in parts], 0), tf.concat([part.indices for part in parts], 0)
    )


@pytest.mark.parametrize("name", KERAS)
def test_a_batch_that_reads_no_row_changes_none(name: str) -> None:
    """A batch may hold no history at all."""
    table = tf.Variable(np.ones((4, 2), np.float32))
    optimizer = build_optimizer(OptimizerConfig(name=name, learning_rate=0.1), [table])
    optimizer.apply([tf.IndexedSlices(tf.zeros([0, 2]), tf.zeros([0], tf.int32), tf.constant([4, 2]))])
    np.testing.assert_array_equal(table, np.ones((4, 2)))


@pytest.mark.parametrize("name", KERAS)
@pytest.mark.parametrize("size", [7, None], ids=["known size", "unknown size"])
def test_a_sparse_step_runs_on_a_gpu_and_makes_nothing_as_large_as_the_table(name: str, size: int | None) -> None:
    table, weights = tf.Variable(tf.zeros([1000, 4])), tf.Variable(tf.zeros([4]))
    optimizer = build_optimizer(OptimizerConfig(name=name), [table, weights])

    def step(values: tf.Tensor, rows: tf.Tensor) -> None:
        optimizer.apply([tf.IndexedSlices(values, rows), values[0]])

    signature = [tf.TensorSpec([size, 4]), tf.TensorSpec([size], tf.int64)]
    graph = tf.function(step, input_signature=signature).get_concrete_function().graph
    assert problems(graph) == []
    assert largest(graph)[0][0] <= 4 * 7


@pytest.mark.parametrize("name", KERAS)
def test_a_step_of_all_rows_runs_on_a_gpu_and_makes_only_blocks(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(towers.optimizers, "BLOCK", 40)
    table = tf.Variable(tf.zeros([1003, 4]))
    optimizer = build_optimizer(OptimizerConfig(name=name), [table])
    graph = (
        tf.function(lambda gradient: optimizer.apply([gradient])).get_concrete_function(tf.TensorSpec([1003, 4])).graph
    )
    assert problems(graph) == []
    assert largest(graph)[0][0] <= 40

    def slices(values: tf.Tensor, rows: tf.Tensor) -> None:
        optimizer.apply([tf.IndexedSlices(values, rows)])

    step = tf.function(slices).get_concrete_function(tf.TensorSpec([2000, 4]), tf.TensorSpec([2000], tf.int64))
    assert problems(step.graph) == []


def test_a_checkpoint_holds_the_step_and_the_moments_only(tmp_path: Path) -> None:
    table = tf.Variable(tf.zeros([5, 2]))
    optimizer = build_optimizer(OptimizerConfig(name="adam"), [table])
    path = tf.train.Checkpoint(optimizer=optimizer).write(str(tmp_path / "state"))
    names = [name for name, _ in tf.train.list_variables(path) if "OBJECT_GRAPH" not in name]
    assert sorted(name.split("/.ATTR")[0] for name in names) == [
        "optimizer/slots/0/0",
        "optimizer/slots/0/1",
        "optimizer/step",
        "optimizer/variables_in_order/0",
    ]
