"""Losses of all pairs of an anchor's positives and negatives at once: the unified pair loss and circle.

In: `Scores` of unscaled similarities. Out: one loss for each query, all of whose K positives stand in one formula.
"""

import tensorflow as tf

from towers.losses.masked import corrected, log_sum_exp
from towers.losses.scores import Scores


def pair(scores: Scores, *, scale: float, margin: float, correction: float) -> tf.Tensor:
    """``log[1 + sum_{i<=K} sum_{j<=L} exp(g (s_n^j - s_p^i + m))]``, with ``g s - c log Q`` in place of each ``g s``.

    The double sum is a product of two, so the loss is a softplus of two log-sum-exps. One positive and m = 0 make the
    softmax over g s, with m additive margin softmax; as g grows, loss / g tends to the hinge of the hardest pair.

    Args:
        scores: similarities.
        scale: g.
        margin: m.
        correction: strength c.

    Returns:
        [B]; 0 without a negative.

    Source: Sun et al., Circle loss, CVPR 2020, eq. 1.
    """
    scores = scores.in_float32()
    positive, negative = corrected(scores, correction, scale)
    negatives = log_sum_exp(negative, scores.negative_mask)
    return tf.nn.softplus(negatives + log_sum_exp(-positive, scores.positive_mask) + scale * margin)


def circle(
    scores: Scores,
    *,
    scale: float,
    margin: float,
    positive_optimum: float | None,
    negative_optimum: float | None,
    positive_delta: float | None,
    negative_delta: float | None,
) -> tf.Tensor:
    """Circle loss, ``log[1 + sum_j exp(g a_n^j (s_n^j - D_n)) sum_i exp(-g a_p^i (s_p^i - D_p))]``.

    ``a_p = [O_p - s_p]+`` and ``a_n = [s_n - O_n]+`` are each similarity's own pace; no gradient goes through them.
    Both are held to what a cosine in [-1, 1] can give, so that the gradient is bounded whatever the scores.

    Args:
        scores: cosines.
        scale: g.
        margin: m, that sets the others where they are None.
        positive_optimum: O_p, by default 1 + m.
        negative_optimum: O_n, by default -m.
        positive_delta: D_p, by default 1 - m; 0 here and below is the margin-free form.
        negative_delta: D_n, by default m.

    Returns:
        [B]; 0 without a negative.

    Source: Sun et al., Circle loss, CVPR 2020, eq. 6.
    """
    scores = scores.in_float32()
    best = 1.0 + margin if positive_optimum is None else positive_optimum
    worst = -margin if negative_optimum is None else negative_optimum
    shift_positive = 1.0 - margin if positive_delta is None else positive_delta
    shift_negative = margin if negative_delta is None else negative_delta
    # Not clip_by_value: an optimum beyond the cosines (O_p < -1, O_n > 1) makes the pace 0.
    pace_positive = tf.minimum(tf.nn.relu(best - scores.positive), max(best + 1.0, 0.0))
    pace_negative = tf.minimum(tf.nn.relu(scores.negative - worst), max(1.0 - worst, 0.0))
    positive = -scale * tf.stop_gradient(pace_positive) * (scores.positive - shift_positive)
    negative = scale * tf.stop_gradient(pace_negative) * (scores.negative - shift_negative)
    return tf.nn.softplus(log_sum_exp(negative, scores.negative_mask) + log_sum_exp(positive, scores.positive_mask))
