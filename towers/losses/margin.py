"""Softmax losses in which the positive has to win by a margin, on the cosine or on the distance.

In: `Scores` of unscaled cosines. Out: one loss for each query, the mean over its positives.
"""

import tensorflow as tf

from towers.losses.distance import sqrt_1_minus_cos
from towers.losses.masked import corrected
from towers.losses.scores import Scores
from towers.losses.softmax import each_against_negatives


def am_softmax(scores: Scores, *, scale: float, margin: float, correction: float, label_smoothing: float) -> tf.Tensor:
    """Additive margin softmax, ``log(1 + sum_j exp(g [cos_j + m - cos_y]))``.

    As a softmax its logits are ``g (cos_y - m) - c log Q_y`` and ``g cos_j - c log Q_j``.

    Args:
        scores: cosines.
        scale: g.
        margin: m.
        correction: strength c.
        label_smoothing: e, spread over the positive and the negatives.

    Returns:
        [B].

    Source: Wang et al., Additive margin softmax for face verification, Signal Processing Letters 2018.
    """
    scores = scores.in_float32()
    positive, negative = corrected(scores, correction, scale)
    return each_against_negatives(
        positive - scale * margin, scores.positive_mask, negative, scores.negative_mask, label_smoothing
    )


def distance_softmax(
    scores: Scores, *, scale: float, margin: float | tf.Tensor, correction: float, label_smoothing: float
) -> tf.Tensor:
    """Softmax over distances, ``log(1 + sum_j exp(g [d_y + m - d_j]))``, ``d = sqrt(1 - cos)``.

    As a softmax its logits are ``-g (d_y + m) - c log Q_y`` and ``-g d_j - c log Q_j``. sqrt(1 - cos) obeys the
    triangle inequality, which 1 - cos does not.

    Args:
        scores: cosines.
        scale: g.
        margin: m, a number or a scalar tensor.
        correction: strength c.
        label_smoothing: e, spread over the positive and the negatives.

    Returns:
        [B].

    Source: after Wang et al., Signal Processing Letters 2018, on a metric.
    """
    scores = scores.in_float32()
    near = scores._replace(positive=-sqrt_1_minus_cos(scores.positive), negative=-sqrt_1_minus_cos(scores.negative))
    positive, negative = corrected(near, correction, scale)
    return each_against_negatives(
        positive - scale * tf.cast(margin, tf.float32),
        scores.positive_mask,
        negative,
        scores.negative_mask,
        label_smoothing,
    )
