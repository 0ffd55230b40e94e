"""Losses that judge each item by a logistic regression of its own: NCE, negative sampling, labelled impressions.

In: `Scores`. Out: one loss for each query; of NCE and negative sampling a sum over its candidates, not a mean.
"""

import math
from typing import Any

import tensorflow as tf

from towers.losses.scores import Scores, corrected, count, mean, total


def logistic(logits: tf.Tensor, labels: tf.Tensor | float) -> tf.Tensor:
    """``-l log sig(x) - (1 - l) log sig(-x)``, of any shape."""
    return labels * tf.nn.softplus(-logits) + (1.0 - labels) * tf.nn.softplus(logits)


def nce(scores: Scores, *, log_z: float | tf.Tensor, label_smoothing: float) -> tf.Tensor:
    """Noise-contrastive estimation.

    With x = s - log Z - log Q and K positives of label t = 1/K each, TensorFlow's num_true = K:
    ``sum_i [-t log sig(x_i) - (1 - t) log sig(-x_i)] - sum_j log sig(-x_j)``, which for one positive is
    ``-log sig(x_y) - sum_j log sig(-x_j)``.

    Label smoothing e turns every label t, 1/K of a positive and 0 of noise, into ``t (1 - e) + e / 2``, as Keras does.
    The sum over k noise samples then holds k e / 2 of positive label: with much noise keep e far below 2 / k.

    Args:
        scores: logits.
        log_z: log of the normaliser: a number, a scalar, or [B].
        label_smoothing: e.

    Returns:
        [B].

    Source: Gutmann & Hyvarinen, AISTATS 2010; Z fixed to 1: Mnih & Teh, ICML 2012.
    """
    scores = scores.in_float32()
    positive, negative = corrected(scores, 1.0)
    log_z = tf.cast(log_z, tf.float32)
    if log_z.shape.rank == 1:
        log_z = log_z[:, tf.newaxis]
    return _logistic(scores, positive - log_z, negative - log_z, label_smoothing)


def neg(scores: Scores, *, label_smoothing: float) -> tf.Tensor:
    """Negative sampling: `nce` without the correction and with log Z = 0.

    ``-log sig(s_y) - sum_j log sig(-s_j)``; K positives and label smoothing as in `nce`.

    Args:
        scores: logits.
        label_smoothing: e.

    Returns:
        [B].

    Source: Mikolov et al., Distributed representations of words and phrases, NeurIPS 2013.
    """
    scores = scores.in_float32()
    return _logistic(scores, scores.positive, scores.negative, label_smoothing)


def _logistic(scores: Scores, positive: tf.Tensor, negative: tf.Tensor, label_smoothing: float) -> tf.Tensor:
    label = 1.0 / tf.maximum(count(scores.positive_mask), 1.0)[:, tf.newaxis]
    ours = logistic(positive, (1.0 - label_smoothing) * label + label_smoothing / 2)
    return total(ours, scores.positive_mask) + total(logistic(negative, label_smoothing / 2), scores.negative_mask)


def bce(scores: Scores, *, labels: tf.Tensor, label_smoothing: float) -> tf.Tensor:
    """Sigmoid cross-entropy, ``-l log sig(s) - (1 - l) log sig(-s)``, the mean over a query's items.

    Label smoothing e turns l into ``l (1 - e) + e / 2``, as in Keras.

    Args:
        scores: logits of the shown items as its positives.
        labels: [B, K] in [0, 1].
        label_smoothing: e.

    Returns:
        [B].

    Source: He et al., Neural collaborative filtering, WWW 2017.
    """
    scores = scores.in_float32()
    smoothed = (1.0 - label_smoothing) * tf.cast(labels, tf.float32) + label_smoothing / 2
    return mean(logistic(scores.positive, smoothed), scores.positive_mask)


class LogZ(tf.Module):
    """log Z: fixed (Mnih & Teh 2012 fix it to 0), one trained scalar, or linear in the query's vector.

    Args:
        setting: the recipe's.
        count: N. What is trained starts at log N, the log Z of scores that are all 0; those of new towers nearly are.
    """

    def __init__(self, setting: str | float, count: int) -> None:
        super().__init__(name="log_z")
        self.setting = setting
        start = math.log(count)
        self.value = tf.Variable(start, name="log_z") if setting == "learned" else None
        self.head: Any = None
        if setting == "per_query":
            bias = tf.keras.initializers.Constant(start)
            self.head = tf.keras.layers.Dense(1, kernel_initializer="zeros", bias_initializer=bias, name="log_z")

    def __call__(self, query: tf.Tensor) -> Any:
        """Scalar, or [B] for `query` [B, D]."""
        if self.value is not None:
            return self.value.read_value()
        return self.setting if self.head is None else self.head(query)[:, 0]
