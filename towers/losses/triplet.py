"""The triplet loss: an anchor nearer to its positive than to a negative, by a margin.

In: `Scores` of unscaled similarities. Out: one loss for each query.
"""

from typing import Literal

import tensorflow as tf

from towers.losses.distance import euclidean, sqrt_1_minus_cos
from towers.losses.masked import LOWEST, mean
from towers.losses.scores import Scores


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

    "all" is the mean over all (positive, negative) pairs. "hardest" takes each positive's largest gap. "semi_hard"
    takes its largest gap among those below 0 and above -m: a negative further than the positive, but within the margin;
    where there is none, the mean over all its gaps above -m. Both are means over the positives. 0 without a negative.

    Args:
        scores: cosines, or dot products where `on` is "similarity".
        on: what is compared; both distances are those of vectors of length one.
        mining: which triplets.
        smooth: softplus instead of the hinge.
        scale: g, of the smooth form.
        margin: m, in the unit of `on`.

    Returns:
        [B]. It holds [B, K, M] tensors, but for "hardest".

    Source: Schroff et al., FaceNet, CVPR 2015; all of a batch: Hermans et al., In defense of the triplet loss, 2017.
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
        return mean(_mean_of_last(penalty(gaps), counts), scores.positive_mask)
    counts &= gaps > -margin
    semi_hard = counts & (gaps < 0.0)
    chosen = tf.reduce_max(tf.where(semi_hard, gaps, LOWEST), axis=2)
    found = tf.reduce_any(semi_hard, axis=2)
    return mean(tf.where(found, penalty(chosen), _mean_of_last(penalty(gaps), counts)), scores.positive_mask)


def _mean_of_last(values: tf.Tensor, mask: tf.Tensor) -> tf.Tensor:
    """Mean over the last dimension of what counts; 0 where nothing does."""
    kept = tf.reduce_sum(tf.cast(mask, tf.float32), axis=2)
    return tf.reduce_sum(tf.where(mask, values, 0.0), axis=2) / tf.maximum(kept, 1.0)
