"""Sums of equal rows, sums in place, and gradients of all rows found again among others."""

import numpy as np
import pytest
import tensorflow as tf

from towers.ops.row_gradients import added_rows, dense_part, every_row, summed_rows


@pytest.mark.parametrize("jit", [None, False, True], ids=["eager", "graph", "xla"])
def test_equal_rows_are_added_up(jit: bool | None) -> None:
    place = tf.Variable(tf.constant([9, -4, 2, 7, 1], tf.int64))  # whatever an earlier step left there
    sums = summed_rows if jit is None else tf.function(summed_rows, jit_compile=jit, autograph=False)
    total, rows, winner = sums(tf.constant([[1.0], [2.0], [4.0], [8.0]]), tf.constant([3, 1, 3, 0], tf.int64), place)
    assert total.numpy().ravel().tolist() == [5.0, 2.0, 5.0, 8.0]
    assert rows.numpy().tolist() == [3, 1, 3, 0]
    assert winner.numpy().tolist() in ([0, 1, 0, 3], [2, 1, 2, 3])


def test_sums_of_many_rows_equal_a_loop_over_them() -> None:
    rng = np.random.default_rng(0)
    values, rows = rng.normal(size=(500, 3)).astype(np.float32), rng.zipf(1.5, 500) % 40
    totals: dict[int, np.ndarray] = {}
    for row, value in zip(rows, values, strict=True):
        totals[row] = totals.get(row, np.zeros(3)) + value
    sums = summed_rows(tf.constant(values), tf.constant(rows), tf.Variable(tf.zeros([40], tf.int64)))[0]
    np.testing.assert_allclose(sums, [totals[row] for row in rows], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("jit", [None, False, True], ids=["eager", "graph", "xla"])
def test_slices_are_added_to_a_dense_gradient(jit: bool | None) -> None:
    def add(total: tf.Tensor) -> tf.Tensor:
        return added_rows(total, tf.IndexedSlices(tf.constant([[1.0], [2.0], [4.0]]), tf.constant([2, 0, 2])))

    total = tf.constant([[10.0], [20.0], [30.0]])
    sums = add(total) if jit is None else tf.function(add, jit_compile=jit, autograph=False)(total)
    assert sums.numpy().ravel().tolist() == [12.0, 20.0, 35.0]
    assert total.numpy().ravel().tolist() == [10.0, 20.0, 30.0]  # somebody else still has it


def parts_of(slices: tf.IndexedSlices, rows: int) -> tuple[bool, list[int]]:
    dense, others = dense_part(slices, rows)
    return dense is not None, sorted(other.indices.shape[0] for other in others)


def test_finds_all_rows_among_concatenated_slices() -> None:
    @tf.function(autograph=False)
    def step(some: tf.Tensor, table: tf.Variable) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.gather(table, some) ** 2) + tf.reduce_sum(tf.gather(table, some[:2]))
        gradient = tape.gradient(loss, table)
        assert parts_of(gradient, 4) == (False, [5])
        assert parts_of(every_row(tf.zeros([4, 2])), 4) == (True, [])
        both = tf.IndexedSlices(
            tf.concat([gradient.values, tf.zeros([4, 2])], 0),
            tf.concat([gradient.indices, tf.range(4, dtype=tf.int64)], 0),
        )
        assert parts_of(both, 4) == (True, [2, 3])
        assert parts_of(both, 5) == (False, [9])  # all rows of a shorter table, not of this one
        assert parts_of(tf.IndexedSlices(tf.zeros([4, 2]), tf.constant([0, 2, 1, 3])), 4) == (False, [4])

    step(tf.constant([0, 1, 2], tf.int64), tf.Variable(tf.ones([4, 2])))
    assert parts_of(every_row(tf.zeros([4, 2])), 4) == (True, [])  # eagerly, too
