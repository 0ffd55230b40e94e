"""What shapes the negatives before any loss sees them, against loops over sets."""

import numpy as np
import pytest
import tensorflow as tf

from tests.support.gpu_kernels import problems
from towers.losses.scores import Scores, hardest, without_hits

COMPILED = pytest.mark.parametrize("compiled", [False, True], ids=["as it is", "compiled"])


def scores_of(negative: np.ndarray, mask: np.ndarray, log_q: np.ndarray, dtype: tf.DType = tf.float32) -> Scores:
    batch = len(negative)
    return Scores(
        tf.zeros([batch, 1], dtype),
        tf.constant(negative, dtype),
        tf.ones([batch, 1], tf.bool),
        tf.constant(mask),
        tf.zeros([batch, 1]),
        tf.constant(log_q, tf.float32),
    )


@COMPILED
@pytest.mark.parametrize("rows", [1, 5], ids=["mask [1, M]", "mask [B, M]"])
def test_hits_are_the_candidates_that_equal_a_present_positive(rows: int, compiled: bool) -> None:
    rng = np.random.default_rng(0)
    mask, positives = rng.random((rows, 40)) < 0.8, rng.integers(0, 12, (5, 3))
    present, candidates = rng.random((5, 3)) < 0.6, rng.integers(0, 12, 40)
    got = tf.function(without_hits, jit_compile=compiled, autograph=False)(
        *map(tf.constant, (mask, positives, present, candidates))
    )
    wanted = [
        [
            bool(mask[b if rows > 1 else 0, j]) and candidates[j] not in positives[b][present[b]].tolist()
            for j in range(40)
        ]
        for b in range(5)
    ]
    np.testing.assert_array_equal(got, wanted)


@COMPILED
@pytest.mark.parametrize("strength", [0.0, 0.5])
@pytest.mark.parametrize("shared", [True, False], ids=["log_q [M]", "log_q [B, M]"])
def test_the_hardest_are_those_of_the_highest_corrected_score(strength: float, shared: bool, compiled: bool) -> None:
    rng = np.random.default_rng(3)
    negative, log_q = rng.normal(0, 1, (5, 9)).astype(np.float32), rng.normal(-3, 2, 9 if shared else (5, 9))
    mask = rng.random((5, 9)) < 0.7
    mask[0], mask[1] = False, [True] + [False] * 8

    def kept(scores: Scores) -> Scores:
        return hardest(scores, 3, strength)

    got = tf.function(kept, jit_compile=compiled, autograph=False)(scores_of(negative, mask, log_q))
    every_log_q = np.broadcast_to(log_q, negative.shape)
    for b in range(5):
        columns = sorted(np.flatnonzero(mask[b]), key=lambda j: negative[b, j] - strength * every_log_q[b, j])[-3:]
        counts = got.negative_mask[b].numpy()
        assert counts.sum() == len(columns)
        np.testing.assert_allclose(sorted(got.negative[b].numpy()[counts]), sorted(negative[b, columns]))
        np.testing.assert_allclose(
            sorted(got.log_q_negative[b].numpy()[counts]), sorted(every_log_q[b, columns]), rtol=1e-6
        )


def test_the_gradient_of_the_hardest_reaches_only_them() -> None:
    negative = tf.constant([[0.3, 0.9, -0.2, 0.5]])
    with tf.GradientTape() as tape:
        tape.watch(negative)
        scores = scores_of(negative.numpy(), np.ones((1, 4), bool), np.zeros(4))._replace(negative=negative)
        total = tf.reduce_sum(hardest(scores, 2, 0.0).negative)
    np.testing.assert_array_equal(tape.gradient(total, negative), [[0, 1, 0, 1]])


@pytest.mark.parametrize("dtype", [tf.float16, tf.bfloat16])
def test_half_precision_is_ranked_without_rounding_and_without_overflow(dtype: tf.DType) -> None:
    # Halves near 60000 are 32 apart, and less a log Q of -10000 they overflow: below the masked ones, or all one rank.
    scores = scores_of(np.array([[60000.0, 60000.0, -60000.0]]), np.array([[True, True, False]]), np.array([1.0, 0, 0]))
    got = hardest(scores._replace(negative=tf.cast(scores.negative, dtype)), 1, 1.0)
    np.testing.assert_array_equal(got.log_q_negative, [[0.0]])
    low = scores_of(np.array([[-60000.0, 0.0]]), np.array([[True, False]]), np.array([1e4, 0.0]))
    got = hardest(low._replace(negative=tf.cast(low.negative, dtype)), 1, 1.0)
    np.testing.assert_array_equal(got.negative_mask, [[True]])


def test_in_float32_casts_what_a_loss_computes_with() -> None:
    scores = scores_of(np.zeros((1, 2)), np.ones((1, 2), bool), np.zeros(2), tf.float16).in_float32()
    assert {tensor.dtype for tensor in scores if tensor is not None} == {tf.float32, tf.bool}


@pytest.mark.parametrize("static", [True, False], ids=["static shapes", "unknown batch"])
def test_each_step_stays_on_a_gpu(static: bool) -> None:
    batch = 256 if static else None
    items, wide = tf.TensorSpec([512], tf.int64), tf.TensorSpec([batch, 512], tf.bool)
    three, present = tf.TensorSpec([batch, 3], tf.int64), tf.TensorSpec([batch, 3], tf.bool)
    scores = Scores(
        tf.TensorSpec([batch, 3]),
        tf.TensorSpec([batch, 512]),
        present,
        wide,
        tf.TensorSpec([batch, 3]),
        tf.TensorSpec([512]),
    )
    for step, inputs in (
        (without_hits, (wide, three, present, items)),
        (lambda given: hardest(given, 16, 0.1), (scores,)),
    ):
        assert problems(tf.function(step, autograph=False).get_concrete_function(*inputs).graph) == []
