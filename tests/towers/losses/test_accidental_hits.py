"""Which candidates are known items: against loops over all pairs, compiled or not."""

import numpy as np
import pytest
import tensorflow as tf

from tests.support.gpu_kernels import problems
from towers.losses.scores import known

# Items of a catalogue that fits a table, and of one that does not.
COUNTS = pytest.mark.parametrize("count", [40, 1 << 41], ids=["table", "search"])


def hits(items: tf.Tensor, candidates: tf.Tensor, count: int) -> tf.Tensor:
    return known(items, candidates, count).hits()


@COUNTS
@pytest.mark.parametrize("compiled", [False, True], ids=["graph", "xla"])
@pytest.mark.parametrize("seed", range(4))
def test_the_hits_are_those_of_loops(seed: int, compiled: bool, count: int) -> None:
    rng = np.random.default_rng(seed)
    candidates = rng.integers(0, 25, 30)
    items = rng.integers(-1, 40, (6, 7))  # some are none, some no candidate, some beyond the largest candidate
    items[0] = -1
    got = tf.function(hits, jit_compile=compiled, autograph=False)(tf.constant(items), tf.constant(candidates), count)
    wanted = [[candidates[j] in items[b].tolist() for j in range(30)] for b in range(6)]
    np.testing.assert_array_equal(got, wanted)
    some = known(tf.constant(items), tf.constant(candidates), count).rows(tf.constant(2), 3)
    np.testing.assert_array_equal(some.hits(), wanted[2:5])


def test_items_far_above_int32_are_told_apart() -> None:
    large = 1 << 40
    items, candidates = tf.constant([[large + 1]], tf.int64), tf.constant([large, large + 1, 1], tf.int64)
    np.testing.assert_array_equal(hits(items, candidates, 1 << 41), [[False, True, False]])


@COUNTS
@pytest.mark.parametrize("batch", [256, None], ids=["static shapes", "unknown batch"])
def test_it_stays_on_a_gpu(batch: int | None, count: int) -> None:
    inputs = tf.TensorSpec([batch, 3], tf.int64), tf.TensorSpec([512], tf.int64)
    assert problems(tf.function(hits, autograph=False).get_concrete_function(*inputs, count).graph) == []
