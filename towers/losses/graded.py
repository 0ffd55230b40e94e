"""The loss of graded lists: an item of a higher grade above one of a lower, the more so the larger the difference.

In: `Scores`, of which only the positives matter, and grades. Out: one loss for each query.
"""

from typing import Literal

import tensorflow as tf

from towers.losses.scores import Scores

# Keeps 0 / 0 out of a list of one grade; no difference of two grades comes near it.
EPSILON = 1e-12


def graded_hinge(scores: Scores, *, labels: tf.Tensor, margin: float, pairs: Literal["list", "batch"]) -> tf.Tensor:
    """``sum_{a,b} [l_a - l_b]+ [s_b - s_a + m]+ / (sum_{a,b} [l_a - l_b]+ + eps)`` over all ordered pairs of one list.

    "list": the list is a query's K items. "batch": all items of the batch make one list of B K. A query then gets B
    times the part of the pairs whose higher item is its own, so that the mean over the batch is the formula, and an
    example weight is that of those pairs. It holds [B K, B K] tensors.

    Args:
        scores: similarities of the list's items as its positives.
        labels: [B, K] grades.
        margin: m.
        pairs: which list.

    Returns:
        [B]; 0 for a list of one grade.

    Source: Herbrich et al., Large margin rank boundaries for ordinal regression, 2000, weighted by the grades'
    difference.
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
