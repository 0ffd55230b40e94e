"""Sums, means and the log-sum-exp over the entries that count, and the logQ correction: the steps losses are made of.

In: values [B, X] and a mask. Out: one number for each row, finite in value and gradient where no entry counts.
"""

import tensorflow as tf

from towers.losses.scores import Scores

# Stands for -inf: no score comes near it, and it can still be scaled, added to and subtracted from in float32.
LOWEST = -1e30


def total(values: tf.Tensor, mask: tf.Tensor) -> tf.Tensor:
    """Sum of the entries that count: [B]; 0 where none does."""
    return tf.reduce_sum(tf.where(mask, values, 0.0), axis=1)


def count(mask: tf.Tensor) -> tf.Tensor:
    """How many entries count: float32 [B]."""
    return tf.reduce_sum(tf.cast(mask, tf.float32), axis=1)


def mean(values: tf.Tensor, mask: tf.Tensor) -> tf.Tensor:
    """Mean of the entries that count: [B]; 0 where none does."""
    return total(values, mask) / tf.maximum(count(mask), 1.0)


def log_sum_exp(values: tf.Tensor, mask: tf.Tensor) -> tf.Tensor:
    """Log of the sum of the exponentials of the entries that count: [B]; `LOWEST` where none does."""
    return tf.reduce_logsumexp(tf.where(mask, values, LOWEST), axis=1)


def corrected(scores: Scores, correction: float, scale: float = 1.0) -> tuple[tf.Tensor, tf.Tensor]:
    """Logits less the correction, ``g s - c log Q``.

    Args:
        scores: float32.
        correction: c.
        scale: g, that makes logits of the scores.

    Returns:
        Logits [B, K] of the positives, and [B, M] of the candidates.
    """
    positive, negative = scale * scores.positive, scale * scores.negative
    if correction:
        positive -= correction * scores.log_q_positive
        negative -= correction * scores.log_q_negative
    return positive, negative
