"""Softmax cross-entropy of the positives among sampled candidates, and the form of it that margin losses share.

In: `Scores`. Out: one loss for each query.
"""

from typing import Literal

import tensorflow as tf

from towers.losses.masked import corrected, count, log_sum_exp, mean, total
from towers.losses.scores import Scores

# Largest q of a positive, the float32 below 1: a positive that is drawn each time leaves no other item to estimate.
MOST = 1.0 - 2.0**-24


def sampled_softmax(
    scores: Scores, *, correction: float, positive: Literal["included", "excluded"], label_smoothing: float
) -> tf.Tensor:
    """Sampled softmax.

    "included", with l_j = s_j - c log Q_j and K positives:
    ``-mean_i l_i + log sum_{j in positives + samples} exp l_j``, TensorFlow's num_true = K, whose labels are 1/K each.

    "excluded", for independent draws: ``-w [s_y - log sum_{j != y} exp(s_j - c log Q'_j)]``,
    ``Q'_j = n q_j / (1 - q_y)``, n the negatives left, q_j = Q_j / M with all M columns; ``w = stop_gradient(1 - P)``,
    ``P = exp s_y / (exp s_y + sum_{j != y} exp(s_j - c log Q'_j))``. The mean over K positives; 0 without a negative.
    Its value can be negative; with c = 1 its gradient is an estimate of the full softmax's.

    Both: label smoothing e adds ``e (mean of the positives' logits - mean of all logits)``, which in the first is the
    cross-entropy against 1 - e on the positives and e spread evenly over all.

    Args:
        scores: logits.
        correction: strength c.
        positive: is it among the candidates?
        label_smoothing: e.

    Returns:
        [B].

    Source: Jean et al., On using very large target vocabulary for neural machine translation, ACL 2015; excluded:
    Khrylchenko et al., RecSys 2025.
    """
    scores = scores.in_float32()
    if positive == "excluded":
        return _excluded(scores, correction, label_smoothing)
    present, mask = scores.positive_mask, scores.negative_mask
    positives, negatives = corrected(scores, correction)
    own = log_sum_exp(positives, present)
    average = mean(positives, present)
    # softplus is exact where the softmax itself overflows, and 0 where every negative is masked.
    loss = tf.nn.softplus(log_sum_exp(negatives, mask) - own) + (own - average)
    if label_smoothing:
        everything = (total(positives, present) + total(negatives, mask)) / (count(present) + count(mask))
        loss += label_smoothing * (average - everything)
    return loss


def each_against_negatives(
    positives: tf.Tensor, present: tf.Tensor, negatives: tf.Tensor, mask: tf.Tensor, label_smoothing: float
) -> tf.Tensor:
    """Mean over a query's positives of the softmax cross-entropy of that one among itself and the negatives.

    ``mean_i log(1 + sum_j exp(l_j - l_i))``, plus ``e (l_i - mean of l_i and all l_j)`` with label smoothing.

    Args:
        positives: logits [B, K].
        present: bool [B, K].
        negatives: logits [B, M].
        mask: bool [B, M].
        label_smoothing: e.

    Returns:
        [B].
    """
    losses = tf.nn.softplus(log_sum_exp(negatives, mask)[:, tf.newaxis] - positives)
    if label_smoothing:
        losses += label_smoothing * _above_mean(positives, negatives, mask)
    return mean(losses, present)


def _above_mean(positives: tf.Tensor, negatives: tf.Tensor, mask: tf.Tensor) -> tf.Tensor:
    """How far each positive's logit is above the mean of itself and the negatives: [B, K]."""
    others = count(mask)[:, tf.newaxis]
    return (others * positives - total(negatives, mask)[:, tf.newaxis]) / (1.0 + others)


def _excluded(scores: Scores, correction: float, label_smoothing: float) -> tf.Tensor:
    mask = scores.negative_mask
    log_columns = tf.math.log(tf.cast(tf.shape(scores.negative)[1], tf.float32))
    log_left = tf.math.log(tf.maximum(count(mask), 1.0))[:, tf.newaxis]
    logits = scores.negative - correction * (log_left + scores.log_q_negative - log_columns)
    log_rest = tf.math.log1p(-tf.minimum(tf.exp(scores.log_q_positive - log_columns), MOST))  # log(1 - q_y), [B, K]
    rest = log_sum_exp(logits, mask)[:, tf.newaxis] + correction * log_rest
    losses = tf.stop_gradient(tf.sigmoid(rest - scores.positive)) * (rest - scores.positive)
    if label_smoothing:
        # log(1 - q_y) is the same for all negatives, so their mean takes n / (1 + n) of it.
        others = count(mask)[:, tf.newaxis]
        shift = correction * log_rest * others / (1.0 + others)
        losses += label_smoothing * (_above_mean(scores.positive, logits, mask) - shift)
    return mean(losses, scores.positive_mask)
