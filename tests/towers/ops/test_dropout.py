"""Dropout: its share, its scale, and draws that depend on seed and name alone."""

import numpy as np
import pytest
import tensorflow as tf

from tests.support.gpu_kernels import problems
from towers.ops.stateless_random import dropped

SEED = tf.constant([3, 4])


@pytest.mark.parametrize("share", [0.01, 0.3, 0.5, 0.9])
@pytest.mark.parametrize("shape", [[99_999], [111, 30, 30]])
def test_a_share_is_dropped_and_the_rest_is_scaled_up(shape: list[int], share: float) -> None:
    x = dropped(tf.ones(shape), share, SEED, "x").numpy()
    assert x.shape == tuple(shape)
    np.testing.assert_allclose(np.unique(x), [0, 1 / (1 - share)], rtol=1e-6)
    deviation = (share * (1 - share) / x.size) ** 0.5
    assert abs((x == 0).mean() - share) < 4 * deviation
    zero = x.reshape(-1) == 0
    half = (x.size + 1) // 2
    assert abs((zero[half:] & zero[: x.size - half]).mean() - share**2) < 8 * deviation  # they share a draw of 64 bits


def test_nothing_is_dropped_outside_training_or_without_a_share() -> None:
    x = tf.random.stateless_normal([1000], [1, 2])
    assert dropped(x, 0.5, None, "x") is x
    assert dropped(x, 0.0, SEED, "x") is x


@pytest.mark.parametrize("jit_compile", [False, True])
def test_seed_and_name_determine_the_draws_compiled_or_not(jit_compile: bool) -> None:
    x = tf.ones([5_001])
    draw = tf.function(lambda seed, name: dropped(x, 0.4, seed, name), jit_compile=jit_compile, autograph=False)
    first = dropped(x, 0.4, SEED, "x").numpy()
    np.testing.assert_array_equal(draw(SEED, "x"), first)
    for other in (draw(SEED + 1, "x"), draw(SEED, "y")):
        # Independent draws drop the same number with probability 0.16.
        assert abs(((other.numpy() == 0) & (first == 0)).mean() - 0.16) < 0.03


def test_it_stays_on_a_gpu() -> None:
    step = tf.function(lambda x, seed: dropped(x, 0.4, seed, "x"), autograph=False)
    graph = step.get_concrete_function(tf.TensorSpec([64, 8]), tf.TensorSpec([2], tf.int32)).graph
    assert problems(graph) == []
