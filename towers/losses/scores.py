"""What every loss of a query and its candidates takes: scores, masks, log Q. And the steps that shape the negatives.

In: scores of positives and candidates, as the towers and the sampler give them. Out: `Scores`.
"""

from typing import NamedTuple

import tensorflow as tf


class Scores(NamedTuple):
    """Scores of one batch: logits for a loss with a temperature, unscaled similarities for one with its own scale.

    Attributes:
        positive: [B, K] of each query's positives, the own one first.
        negative: [B, M].
        positive_mask: bool [B, K]; False where a query has fewer than K positives. The first is always there.
        negative_mask: bool [B, M]; False where a candidate does not count for that query: it gets probability 0.
        log_q_positive: [B, K] log Q of the positives, Q the expected number of times an item is among the candidates.
        log_q_negative: [M] or [B, M] log Q of the candidates.
    """

    positive: tf.Tensor
    negative: tf.Tensor
    positive_mask: tf.Tensor
    negative_mask: tf.Tensor
    log_q_positive: tf.Tensor
    log_q_negative: tf.Tensor

    def in_float32(self) -> "Scores":
        """The same in float32: exponentials of half-precision scores overflow at 11."""
        return self._replace(
            positive=tf.cast(self.positive, tf.float32),
            negative=tf.cast(self.negative, tf.float32),
            log_q_positive=tf.cast(self.log_q_positive, tf.float32),
            log_q_negative=tf.cast(self.log_q_negative, tf.float32),
        )


def without_negatives(positive: tf.Tensor, present: tf.Tensor) -> Scores:
    """Scores [B, K] of a loss that learns from labels: M is 0."""
    none = tf.zeros([tf.shape(positive)[0], 0])
    return Scores(positive, none, present, tf.cast(none, tf.bool), tf.zeros_like(positive), tf.zeros([0]))


def without_hits(mask: tf.Tensor, positives: tf.Tensor, present: tf.Tensor, candidates: tf.Tensor) -> tf.Tensor:
    """Takes the candidates that equal one of the query's positives out of the mask.

    What is left is no exact sample of the other items: the sampled loss is biased by a share of about Q of the
    positive, which vanishes as the catalogue grows.

    Args:
        mask: bool [B, M] or [1, M].
        positives: int64 [B, K] items.
        present: bool [B, K].
        candidates: int64 [M] items.

    Returns:
        bool [B, M].
    """
    for k in range(positives.shape[1]):  # K is small; [B, K, M] would not be
        same = (positives[:, k : k + 1] == candidates[tf.newaxis, :]) & present[:, k : k + 1]
        mask = mask & ~same
    return mask


def hardest(scores: Scores, count: int, strength: float) -> Scores:
    """Keeps each query's `count` negatives of the highest corrected score.

    Args:
        scores: of all candidates.
        count: at most M.
        strength: c / g, the correction in the unit of the scores.
    """
    # In float32: a half-precision difference would round distinct candidates to one rank.
    corrected = tf.cast(scores.negative, tf.float32) - strength * tf.cast(scores.log_q_negative, tf.float32)
    ranked = tf.where(scores.negative_mask, corrected, corrected.dtype.min)
    _, column = tf.math.top_k(tf.stop_gradient(ranked), count)
    column = tf.cast(column, tf.int64)  # the gradient of a gather does arithmetic on its indices
    log_q = tf.broadcast_to(scores.log_q_negative, tf.shape(scores.negative))
    return scores._replace(
        negative=tf.gather(scores.negative, column, batch_dims=1),
        negative_mask=tf.gather(scores.negative_mask, column, batch_dims=1),
        log_q_negative=tf.gather(log_q, column, batch_dims=1),
    )
