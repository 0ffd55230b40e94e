"""The losses that TensorFlow, Keras or TensorFlow Recommenders have too, on the same draws and numbers."""

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_recommenders as tfrs

from tests.support.loss_cases import MARGIN, SOFTMAX
from towers.losses.scores import Scores, without_hits
from towers.losses.softmax import am_softmax, sampled_softmax
from towers.losses.two_terms import bce, nce, neg

ITEMS, WIDTH, BATCH, DRAWN = 20, 4, 6, 12


class Draw:
    """Vectors, positives and samples with accidental hits, and one expected count for each."""

    def __init__(self, positives: int, remove: bool) -> None:
        rng = np.random.default_rng(11)
        self.items = rng.normal(0, 1, (ITEMS, WIDTH)).astype(np.float32)
        self.queries = rng.normal(0, 1, (BATCH, WIDTH)).astype(np.float32)
        self.own = np.stack([rng.choice(ITEMS, positives, replace=False) for _ in range(BATCH)])
        # TensorFlow finds one copy only of an item that was drawn twice, so with removal the draws are distinct.
        self.sampled = rng.choice(ITEMS, DRAWN, replace=not remove)
        self.expected = rng.uniform(0.01, 3, ITEMS).astype(np.float32)
        self.remove = remove
        present, mask = tf.ones(self.own.shape, tf.bool), tf.ones([BATCH, DRAWN], tf.bool)
        hit = without_hits(mask, tf.constant(self.own), present, tf.constant(self.sampled))
        assert not np.asarray(hit).all()
        self.scores = Scores(
            tf.einsum("bd,bkd->bk", self.queries, self.items[self.own]),
            tf.constant(self.queries @ self.items[self.sampled].T),
            present,
            hit if remove else mask,
            tf.math.log(self.expected[self.own]),
            tf.math.log(self.expected[self.sampled]),
        )

    def tensorflows(self, function: Any, expected: np.ndarray) -> Any:
        return function(
            weights=self.items,
            biases=np.zeros(ITEMS, np.float32),
            labels=tf.constant(self.own),
            inputs=self.queries,
            num_sampled=DRAWN,
            num_classes=ITEMS,
            num_true=self.own.shape[1],
            sampled_values=(tf.constant(self.sampled), expected[self.own], expected[self.sampled]),
            remove_accidental_hits=self.remove,
        )


@pytest.mark.parametrize("remove", [True, False])
@pytest.mark.parametrize("positives", [1, 3])
class TestSameDraws:
    def test_sampled_softmax(self, positives: int, remove: bool) -> None:
        draw = Draw(positives, remove)
        wanted = draw.tensorflows(tf.nn.sampled_softmax_loss, draw.expected)
        np.testing.assert_allclose(sampled_softmax(draw.scores, **SOFTMAX), wanted, rtol=1e-5)

    def test_nce(self, positives: int, remove: bool) -> None:
        draw = Draw(positives, remove)
        wanted = draw.tensorflows(tf.nn.nce_loss, draw.expected)
        np.testing.assert_allclose(nce(draw.scores, log_z=0.0, label_smoothing=0.0), wanted, rtol=1e-5)

    def test_neg_is_nce_with_every_count_one(self, positives: int, remove: bool) -> None:
        draw = Draw(positives, remove)
        wanted = draw.tensorflows(tf.nn.nce_loss, np.ones(ITEMS, np.float32))
        np.testing.assert_allclose(neg(draw.scores, label_smoothing=0.0), wanted, rtol=1e-5)


def in_batch(logits: np.ndarray, item: np.ndarray, log_q: np.ndarray) -> Scores:
    """The batch's own items as candidates, accidental hits removed; the diagonal is the positive."""
    batch = len(item)
    positives, present = tf.constant(item[:, None]), tf.ones([batch, 1], tf.bool)
    return Scores(
        tf.constant(np.diag(logits)[:, None], tf.float32),
        tf.constant(logits, tf.float32),
        present,
        without_hits(tf.ones([batch, batch], tf.bool), positives, present, tf.constant(item)),
        tf.constant(log_q[:, None], tf.float32),
        tf.constant(log_q, tf.float32),
    )


def test_in_batch_softmax_equals_tensorflows_cross_entropy() -> None:
    rng = np.random.default_rng(5)
    logits, log_q = rng.normal(0, 3, (8, 8)).astype(np.float32), rng.normal(-4, 1, 8).astype(np.float32)
    wanted = tf.nn.sparse_softmax_cross_entropy_with_logits(np.arange(8), logits - log_q[None, :])
    got = sampled_softmax(in_batch(logits, np.arange(8), log_q), **SOFTMAX)
    np.testing.assert_allclose(got, wanted, rtol=1e-5)


def test_in_batch_softmax_equals_tfrs_retrieval_task() -> None:
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
    got = sampled_softmax(in_batch(query @ candidate.T, item, np.log(probability)), **SOFTMAX)
    np.testing.assert_allclose(np.sum(got), wanted, rtol=1e-5)


def test_label_smoothing_is_that_of_keras() -> None:
    rng = np.random.default_rng(9)
    logits, item = rng.normal(0, 2, (5, 5)).astype(np.float32), np.arange(5)
    softmax = tf.keras.losses.CategoricalCrossentropy(from_logits=True, label_smoothing=0.2, reduction="none")
    scores = in_batch(logits, item, np.zeros(5))
    wanted = softmax(np.eye(5), logits)
    np.testing.assert_allclose(sampled_softmax(scores, **(SOFTMAX | {"label_smoothing": 0.2})), wanted, rtol=1e-5)
    options = MARGIN | {"scale": 1.0, "margin": 0.0, "label_smoothing": 0.2}
    np.testing.assert_allclose(am_softmax(scores, **options), wanted, rtol=1e-5)
    sigmoid = tf.keras.losses.BinaryCrossentropy(from_logits=True, label_smoothing=0.2, reduction="none")
    np.testing.assert_allclose(neg(scores, label_smoothing=0.2), 5 * sigmoid(np.eye(5), logits), rtol=1e-5)
    labels = rng.random((5, 1)).astype(np.float32)
    got = bce(scores, labels=tf.constant(labels), label_smoothing=0.2)
    np.testing.assert_allclose(got, sigmoid(labels, scores.positive), rtol=1e-5)
