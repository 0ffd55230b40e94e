"""Losses on pairs of items: the triplet loss, the unified pair loss, circle, and the hinge of graded lists.

Each takes `Scores` of unscaled similarities and returns one loss per query. The graded hinge reads only the positives.
"""

from typing import Literal

import tensorflow as tf

from towers.losses.scores import LOWEST, Scores, corrected, euclidean, log_sum_exp, mean, sqrt_1_minus_cos, weighted

# Avoids 0 / 0 for a list of one grade; far below any difference of two grades.
EPSILON = 1e-12


def triplet(
    scores: Scores,
    *,
    on: Literal["similarity", "euclidean", "sqrt_1_minus_cos"],
    mining: Literal["all", "semi_hard", "hardest"],
    smooth: bool,
    scale: float,
    margin: float,
) -> tf.Tensor:
    """``[gap + m]+``, or smooth ``softplus(g (gap + m))``; gap is ``s_n - s_p`` or, on a distance, ``d_p - d_n``.

    "all" averages over all (positive, negative) pairs. "hardest" takes each positive's largest gap. "semi_hard" takes
    its largest gap between -m and 0: a negative further away than the positive, but within the margin. Without one, it
    averages over all its gaps above -m. Every mining averages over the positives. The loss is 0 without a negative.

    Args:
        scores: cosines, or dot products where `on` is "similarity".
        on: what is compared; both distances assume vectors of length one.
        mining: which triplets.
        smooth: softplus instead of the hinge.
        scale: g of the smooth form.
        margin: m, in the unit of `on`.

    Returns:
        [B]. Builds [B, K, M] tensors, except with "hardest".

    Source: Schroff et al., FaceNet, CVPR 2015; whole batches: Hermans et al., In defense of the triplet loss, 2017.
    """
    scores = scores.in_float32()
    positive, negative = scores.positive, scores.negative
    if on != "similarity":
        distance = euclidean if on == "euclidean" else sqrt_1_minus_cos
        positive, negative = -distance(positive), -distance(negative)

    def penalty(gap: tf.Tensor) -> tf.Tensor:
        return tf.nn.softplus(scale * (gap + margin)) if smooth else tf.nn.relu(gap + margin)

    if mining == "hardest":
        nearest = tf.reduce_max(tf.where(scores.negative_mask, negative, LOWEST), axis=1, keepdims=True)
        return mean(penalty(nearest - positive), scores.positive_mask)
    gaps = negative[:, tf.newaxis, :] - positive[:, :, tf.newaxis]
    counts = tf.broadcast_to(scores.negative_mask[:, tf.newaxis, :], tf.shape(gaps))
    if mining == "all":
        return mean(mean(penalty(gaps), counts), scores.positive_mask)
    counts &= gaps > -margin
    semi_hard = counts & (gaps < 0.0)
    chosen = tf.reduce_max(tf.where(semi_hard, gaps, LOWEST), axis=2)
    found = tf.reduce_any(semi_hard, axis=2)
    return mean(tf.where(found, penalty(chosen), mean(penalty(gaps), counts)), scores.positive_mask)


def pair(scores: Scores, *, scale: float, margin: float, correction: float) -> tf.Tensor:
    """``log[1 + sum_{i<=K} sum_{j<=L} exp(g (s_n^j - s_p^i + m))]``, with ``g s - c log Q`` in place of each ``g s``.

    The double sum factorises, so the loss is a softplus of two log-sum-exps. With one positive, m = 0 gives the softmax
    over g s, and m > 0 gives additive margin softmax. As g grows, loss / g tends to the hinge of the hardest pair.

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

    ``a_p = [O_p - s_p]+`` and ``a_n = [s_n - O_n]+`` pace each similarity; no gradient flows through them. Both are
    capped at what a cosine in [-1, 1] can give, which bounds the gradient for any scores.

    Args:
        scores: cosines.
        scale: g.
        margin: m, the source of the defaults below.
        positive_optimum: O_p, by default 1 + m.
        negative_optimum: O_n, by default -m.
        positive_delta: D_p, by default 1 - m; 0 for both deltas is the margin-free form.
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
    # Not clip_by_value: an optimum beyond the cosines (O_p < -1, O_n > 1) must make the pace 0.
    pace_positive = tf.minimum(tf.nn.relu(best - scores.positive), max(best + 1.0, 0.0))
    pace_negative = tf.minimum(tf.nn.relu(scores.negative - worst), max(1.0 - worst, 0.0))
    positive = -scale * tf.stop_gradient(pace_positive) * (scores.positive - shift_positive)
    negative = weighted(scale * tf.stop_gradient(pace_negative) * (scores.negative - shift_negative), scores)
    return tf.nn.softplus(log_sum_exp(negative, scores.negative_mask) + log_sum_exp(positive, scores.positive_mask))


def graded_hinge(scores: Scores, *, labels: tf.Tensor, margin: float, pairs: Literal["list", "batch"]) -> tf.Tensor:
    """``sum_{a,b} [l_a - l_b]+ [s_b - s_a + m]+ / (sum_{a,b} [l_a - l_b]+ + eps)`` over all ordered pairs of one list.

    "list": each query's K items are a list. "batch": all B K items of the batch are one list. A query's loss is then B
    times the share of the pairs whose higher item is its own, so that the mean over the batch is the formula and an
    example weight applies to those pairs. This builds [B K, B K] tensors.

    Args:
        scores: similarities of the list's items, passed as positives.
        labels: [B, K] grades.
        margin: m.
        pairs: what forms a list.

    Returns:
        [B]; 0 for a list of one grade.

    Source: Herbrich et al., Large margin rank boundaries for ordinal regression, 2000, weighted by the difference of
    grades.
    """
    scores = scores.in_float32()
    values, grades, present = scores.positive, tf.cast(labels, tf.float32), scores.positive_mask
    width = values.shape[1]
    if pairs == "batch":
        values, grades, present = (tf.reshape(tensor, [1, -1]) for tensor in (values, grades, present))
    both = present[:, :, tf.newaxis] & present[:, tf.newaxis, :]
    weight = tf.where(both, tf.nn.relu(grades[:, :, tf.newaxis] - grades[:, tf.newaxis, :]), 0.0)
    hinge = tf.nn.relu(values[:, tf.newaxis, :] - values[:, :, tf.newaxis] + margin)
    above, weights = tf.reduce_sum(weight * hinge, axis=2), tf.reduce_sum(weight, axis=2)
    if pairs == "list":
        return tf.reduce_sum(above, axis=1) / (tf.reduce_sum(weights, axis=1) + EPSILON)
    of_query, weight_of_query = (tf.reduce_sum(tf.reshape(part, [-1, width]), axis=1) for part in (above, weights))
    return of_query / (tf.reduce_mean(weight_of_query) + EPSILON)
