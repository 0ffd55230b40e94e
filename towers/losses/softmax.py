"""Softmax cross-entropy of the positives among sampled candidates, plain and with a margin.

The margin losses take `Scores` of unscaled cosines. The margin is a number, or adapts to the width of the classes: it
is then re-estimated during training and kept in a variable that is saved with the weights.
"""

from collections.abc import Iterable
from typing import Literal

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from towers.config.loss_section import Loss
from towers.config.margin_losses import DistanceSoftmax
from towers.data.events import Floats, Int64s
from towers.losses.scores import Scores, corrected, count, log_sum_exp, mean, sqrt_1_minus_cos, total

Distances = Iterable[tuple[Int64s, Floats]]
# Largest q of a positive, the float32 below 1: a positive that takes every draw leaves no other item to estimate.
MOST = 1.0 - 2.0**-24


def sampled_softmax(
    scores: Scores, *, correction: float, positive: Literal["included", "excluded"], label_smoothing: float
) -> tf.Tensor:
    """Sampled softmax.

    "included", with l_j = s_j - c log Q_j and K positives with label 1/K each, as TensorFlow's num_true = K:
    ``-mean_i l_i + log sum_{j in positives + samples} exp l_j``.

    "excluded", for independent draws: ``-w [s_y - log sum_{j != y} exp(s_j - c log Q'_j)]``,
    ``Q'_j = n q_j / (1 - q_y)``, n the negatives left, q_j = Q_j / M with all M columns; ``w = stop_gradient(1 - P)``,
    ``P = exp s_y / (exp s_y + sum_{j != y} exp(s_j - c log Q'_j))``. The mean over K positives; 0 without a negative.
    The value can be negative; with c = 1 its gradient estimates that of the full softmax.

    Label smoothing e adds ``e (mean of the positives' logits - mean of all logits)``: with "included" the cross-entropy
    against 1 - e on the positives and e spread evenly over all; with "excluded" for each positive beside the negatives.

    Args:
        scores: logits.
        correction: strength c.
        positive: whether the positive is among the candidates.
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


def _above_mean(positives: tf.Tensor, negatives: tf.Tensor, mask: tf.Tensor) -> tf.Tensor:
    """Each positive's logit minus the mean of itself and the negatives: [B, K]."""
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
        # log(1 - q_y) is the same for all negatives, so the mean holds n / (1 + n) of it.
        others = count(mask)[:, tf.newaxis]
        shift = correction * log_rest * others / (1.0 + others)
        losses += label_smoothing * (_above_mean(scores.positive, logits, mask) - shift)
    return mean(losses, scores.positive_mask)


def am_softmax(scores: Scores, *, scale: float, margin: float, correction: float, label_smoothing: float) -> tf.Tensor:
    """Additive margin softmax, ``log(1 + sum_j exp(g [cos_j + m - cos_y]))``.

    As a softmax, its logits are ``g (cos_y - m) - c log Q_y`` and ``g cos_j - c log Q_j``.

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
    return _by_a_lead(scores.in_float32(), scale, scale * margin, correction, label_smoothing)


def distance_softmax(
    scores: Scores, *, scale: float, margin: float | tf.Tensor, correction: float, label_smoothing: float
) -> tf.Tensor:
    """Softmax over distances, ``log(1 + sum_j exp(g [d_y + m - d_j]))``, ``d = sqrt(1 - cos)``.

    As a softmax, its logits are ``-g (d_y + m) - c log Q_y`` and ``-g d_j - c log Q_j``. sqrt(1 - cos) obeys the
    triangle inequality; 1 - cos does not.

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
    return _by_a_lead(near, scale, scale * tf.cast(margin, tf.float32), correction, label_smoothing)


def _by_a_lead(
    scores: Scores, scale: float, lead: float | tf.Tensor, correction: float, label_smoothing: float
) -> tf.Tensor:
    """Mean over a query's positives of the cross-entropy of one positive, its logit minus `lead`, and all negatives.

    ``mean_i log(1 + sum_j exp(l_j - l_i))``, plus ``e (l_i - mean of l_i and all l_j)`` with label smoothing.
    """
    positive, negative = corrected(scores, correction, scale)
    positive -= lead
    losses = tf.nn.softplus(log_sum_exp(negative, scores.negative_mask)[:, tf.newaxis] - positive)
    if label_smoothing:
        losses += label_smoothing * _above_mean(positive, negative, scores.negative_mask)
    return mean(losses, scores.positive_mask)


class AdaptiveMargin(tf.Module):
    """A margin that starts at 0 and every `every` epochs becomes the mean diameter of the classes, at most `most`.

    The diameter of a class is twice the mean distance of its samples to the centre. As ``d(a,b) <= d(a,c) + d(c,b)``,
    a margin this wide keeps a sample closer to all others of its class than to those of the next class.
    """

    def __init__(self, every: int, most: float) -> None:
        super().__init__()
        self.every, self.most = every, most
        self.value = tf.Variable(0.0, trainable=False, name="margin")

    def update(self, epoch: int, distances: Distances) -> dict[str, float]:
        """Re-estimates m after `epoch` epochs, if it is due.

        Args:
            epoch: number of epochs trained.
            distances: blocks of classes [n] and the distances [n] of one sample of each to the class's centre.

        Returns:
            Values for the log: the margin, and where it was re-estimated the estimate and whether it was clamped.
        """
        if epoch % self.every:
            return {"margin": float(self.value.numpy())}
        estimate = mean_diameter(distances)
        self.value.assign(min(estimate, self.most))
        clamped = float(estimate > self.most)
        return {"margin": float(self.value.numpy()), "margin_estimate": estimate, "margin_clamped": clamped}


def adaptive_margin(loss: Loss) -> AdaptiveMargin | None:
    """A new margin for a loss whose settings make it adaptive; None for any other loss."""
    if isinstance(loss, DistanceSoftmax) and loss.margin == "adaptive":
        return AdaptiveMargin(loss.margin_every, loss.margin_max)
    return None


def mean_diameter(distances: Distances) -> float:
    """Twice the mean over classes of the mean distance between a class's samples and its centre."""
    total: NDArray[np.float64] = np.zeros(0)
    count: NDArray[np.float64] = np.zeros(0)
    for classes, distance in distances:
        size = max(len(total), int(classes.max(initial=-1)) + 1)
        more = (0, size - len(total))
        total = np.pad(total, more) + np.bincount(classes, distance, size)
        count = np.pad(count, more) + np.bincount(classes, minlength=size).astype(np.float64)
    return float(2 * np.mean(total[count > 0] / count[count > 0])) if (count > 0).any() else 0.0
