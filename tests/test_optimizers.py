"""Row-sparse steps against Keras's dense ones, and rows that must stand still."""

import numpy as np
import pytest
import tensorflow as tf

from towers.config import OptimizerConfig
from towers.optimizers import build_optimizer, summed_rows

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
def test_untouched_rows_and_their_moments_stand_still(name: str) -> None:
    table = tf.Variable(np.random.default_rng(0).normal(size=(6, 2)).astype(np.float32))
    optimizer = build_optimizer(OptimizerConfig(name=name, learning_rate=0.1), [table])
    step = tf.IndexedSlices(tf.ones([2, 2]), tf.constant([1, 4]), tf.constant([6, 2]))
    optimizer.apply([step])
    before = [np.array(v) for v in (table, *optimizer.slots[0])]
    optimizer.apply([tf.IndexedSlices(tf.ones([2, 2]), tf.constant([4, 4]), tf.constant([6, 2]))])
    for old, new in zip(before, (table, *optimizer.slots[0]), strict=True):
        np.testing.assert_array_equal(np.delete(old, 4, axis=0), np.delete(new.numpy(), 4, axis=0))
    assert (before[0][4] != table.numpy()[4]).all()
    assert int(optimizer.step) == 2  # the step count is global


def test_equal_rows_are_added_up() -> None:
    rows, total = summed_rows(tf.IndexedSlices(tf.constant([[1.0], [2.0], [4.0], [8.0]]), tf.constant([3, 1, 3, 0])))
    assert rows.numpy().tolist() == [0, 1, 3, 3]
    assert total.numpy().ravel().tolist() == [8.0, 2.0, 5.0, 5.0]


@pytest.mark.parametrize("name", KERAS)
def test_a_batch_that_reads_no_row_changes_none(name: str) -> None:
    """A batch may hold no history at all."""
    table = tf.Variable(np.ones((4, 2), np.float32))
    optimizer = build_optimizer(OptimizerConfig(name=name, learning_rate=0.1), [table])
    optimizer.apply([tf.IndexedSlices(tf.zeros([0, 2]), tf.zeros([0], tf.int32), tf.constant([4, 2]))])
    np.testing.assert_array_equal(table, np.ones((4, 2)))
