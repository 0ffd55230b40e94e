"""The in-batch softmax against loops from its formula, TensorFlow's own cross-entropy and TFRS's retrieval task."""

import math

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_recommenders as tfrs

from towers.losses.negatives import in_batch
from towers.losses.softmax import sampled_softmax


def losses_of(logits, item, log_q, correction=1.0, remove=True):
    parts = in_batch(
        tf.constant(logits, tf.float32),
        item=tf.constant(item),
        log_expected_counts=tf.constant(log_q, tf.float32),
        correction=correction,
        remove_accidental_hits=remove,
    )
    return sampled_softmax(parts.positive_logits, parts.negative_logits, parts.mask).numpy()


def reference(logits, item, log_q, correction, remove):
    """-log of the positive's share, term by term."""
    out = []
    for b in range(len(item)):
        own = math.exp(logits[b][b] - correction * log_q[b])
        total = own
        for j in range(len(item)):
            hit = item[j] == item[b] if remove else j == b
            if not hit:
                total += math.exp(logits[b][j] - correction * log_q[j])
        out.append(-math.log(own / total))
    return out


@pytest.mark.parametrize("correction", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("remove", [True, False])
def test_equals_the_formula(correction: float, remove: bool) -> None:
    rng = np.random.default_rng(3)
    logits = rng.normal(0, 2, (6, 6))
    item = np.array([4, 1, 4, 2, 0, 1])  # with accidental hits
    log_q = np.log(rng.uniform(0.01, 3, 6))
    got = losses_of(logits, item, log_q, correction, remove)
    np.testing.assert_allclose(got, reference(logits, item, log_q, correction, remove), rtol=1e-5)


def test_equals_tensorflows_cross_entropy_without_hits() -> None:
    rng = np.random.default_rng(5)
    logits, log_q = rng.normal(0, 3, (8, 8)).astype(np.float32), rng.normal(-4, 1, 8).astype(np.float32)
    wanted = tf.nn.sparse_softmax_cross_entropy_with_logits(np.arange(8), logits - log_q[None, :])
    np.testing.assert_allclose(losses_of(logits, np.arange(8), log_q), wanted, rtol=1e-5)


def test_equals_tfrs_retrieval_task() -> None:
    rng = np.random.default_rng(7)
    query, candidate = rng.normal(0, 1, (8, 5)).astype(np.float32), rng.normal(0, 1, (8, 5)).astype(np.float32)
    item = np.array([3, 1, 3, 0, 2, 5, 6, 1])
    probability = rng.uniform(0.01, 0.5, 8).astype(np.float32)  # far above the 1e-6 at which TFRS clips
    task = tfrs.tasks.Retrieval(remove_accidental_hits=True)
    wanted = task(
        query,
        candidate,
        candidate_sampling_probability=probability,
        candidate_ids=tf.constant(item),
        compute_metrics=False,
        compute_batch_metrics=False,
    )
    got = losses_of(query @ candidate.T, item, np.log(probability))
    np.testing.assert_allclose(got.sum(), wanted, rtol=1e-5)


def test_a_constant_correction_changes_nothing() -> None:
    logits = np.random.default_rng(1).normal(0, 2, (5, 5))
    np.testing.assert_allclose(
        losses_of(logits, np.arange(5), np.full(5, -13.0)), losses_of(logits, np.arange(5), np.zeros(5)), rtol=1e-5
    )


def test_the_order_of_the_batch_changes_nothing() -> None:
    rng = np.random.default_rng(2)
    logits, item, log_q = rng.normal(0, 2, (7, 7)), np.array([0, 1, 0, 2, 3, 4, 2]), rng.normal(0, 1, 7)
    order = rng.permutation(7)
    shuffled = losses_of(logits[np.ix_(order, order)], item[order], log_q[order])
    np.testing.assert_allclose(shuffled, losses_of(logits, item, log_q)[order], rtol=1e-5)


@pytest.mark.parametrize("scale", [1e4, -1e4])
@pytest.mark.parametrize("item", [[0, 1, 2], [7, 7, 7]], ids=["negatives", "every negative masked"])
def test_extremes_stay_finite(scale: float, item: list[int]) -> None:
    logits = tf.Variable(np.eye(3) * scale, dtype=tf.float32)
    with tf.GradientTape() as tape:
        parts = in_batch(
            logits,
            item=tf.constant(item),
            log_expected_counts=tf.zeros(3),
            correction=1.0,
            remove_accidental_hits=True,
        )
        losses = sampled_softmax(parts.positive_logits, parts.negative_logits, parts.mask)
    gradient = tape.gradient(losses, logits)
    assert np.isfinite(losses).all()
    assert np.isfinite(gradient).all()
    if item == [7, 7, 7]:
        np.testing.assert_array_equal(losses, np.zeros(3))
        np.testing.assert_array_equal(gradient, np.zeros((3, 3)))


def test_the_correction_recovers_the_conditional_distribution() -> None:
    """On a known world the corrected optimum is log P + const, the uncorrected one log(P / q) + const."""
    conditional = np.array([[0.6, 0.3, 0.1], [0.2, 0.2, 0.6]])  # P(item | query), queries equally likely
    q = conditional.mean(axis=0)
    rng = np.random.default_rng(0)
    log_q = tf.constant(np.log(512 * q), tf.float32)
    for correction, wanted in ((1.0, np.log(conditional)), (0.0, np.log(conditional / q))):
        table = tf.Variable(tf.zeros([2, 3]))

        @tf.function
        def step(query, item, table=table, correction=correction):
            with tf.GradientTape() as tape:
                parts = in_batch(
                    tf.gather(tf.gather(table, query), item, axis=1),
                    item=item,
                    log_expected_counts=tf.gather(log_q, item),
                    correction=correction,
                    remove_accidental_hits=False,
                )
                loss = tf.reduce_mean(sampled_softmax(parts.positive_logits, parts.negative_logits, parts.mask))
            table.assign_sub(0.5 * tf.convert_to_tensor(tape.gradient(loss, table)))

        for _ in range(1500):
            query = rng.integers(0, 2, 512)
            item = (rng.random(512)[:, None] > conditional[query].cumsum(axis=1)).sum(axis=1)
            step(tf.constant(query), tf.constant(item))
        got = table.numpy()
        np.testing.assert_allclose(
            got - got.mean(axis=1, keepdims=True), wanted - wanted.mean(axis=1, keepdims=True), atol=0.08
        )
