"""The loss of labelled impressions: each example by itself.

In: `Scores`, of which only the positives matter, and labels. Out: one loss for each query.
"""

import tensorflow as tf

from towers.losses.masked import mean
from towers.losses.noise import logistic
from towers.losses.scores import Scores


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
