"""Contrastive losses that pull the positive and push the mean of the negatives, each by a term of its own.

In: `Scores`. Out: one loss for each query.
"""

from typing import Literal

import tensorflow as tf

from towers.losses.scores import Scores, corrected, count, log_sum_exp, mean, total


def ccl(scores: Scores, *, margin: float, negative_weight: float) -> tf.Tensor:
    """Cosine contrastive loss, ``[1 - cos_y]+ + w mean_j [cos_j - m]+``; the mean over the positives.

    Args:
        scores: cosines.
        margin: m, below which a negative is left alone.
        negative_weight: w.

    Returns:
        [B]; the first term alone without a negative.

    Source: Mao et al., SimpleX, CIKM 2021.
    """
    scores = scores.in_float32()
    pull = mean(tf.nn.relu(1.0 - scores.positive), scores.positive_mask)
    return pull + negative_weight * mean(tf.nn.relu(scores.negative - margin), scores.negative_mask)


def bsl(
    scores: Scores,
    *,
    positive_group: Literal["own", "batch"],
    negative_scale: float,
    correction: float,
    label_smoothing: float,
    same_query: tf.Tensor | None = None,
) -> tf.Tensor:
    """Bilateral softmax, on logits l = s - c log Q.

    "own": ``-mean_i l_i + t2 log mean_j exp l_j``, i over the query's positives, j over its negatives, never y.
    "batch": ``-log mean_i exp l_i + t2 log mean_j exp l_j``, i over its positives and the columns of the same user,
    which are no negatives then.

    Label smoothing e lowers the first term's share: ``-(1 - e) (first term) - e (mean logit of all i and j)``.

    Args:
        scores: logits.
        positive_group: what i runs over.
        negative_scale: t2.
        correction: strength c.
        label_smoothing: e.
        same_query: bool [B, M], for "batch": the columns that are positives of the same user, whatever `negative_mask`
            says of them. The first B columns are the batch's own items, in its order: the diagonal is the query's first
            positive once more, and is not counted again. None: no column is.

    Returns:
        [B]; 0 without a negative, as a positive alone would grow for ever.

    Source: Wu et al., BSL: understanding and improving softmax loss for recommendation, 2023.
    """
    scores = scores.in_float32()
    positive, negative = corrected(scores, correction)
    present, mask = scores.positive_mask, scores.negative_mask
    if positive_group == "batch" and same_query is not None:
        mask &= ~same_query
        others = tf.linalg.set_diag(same_query, tf.zeros_like(same_query[:, 0]))
        positive, present = tf.concat([positive, negative], axis=1), tf.concat([present, others], axis=1)
    if positive_group == "batch":
        attracted = log_sum_exp(positive, present) - tf.math.log(count(present))
    else:
        attracted = mean(positive, present)
    left = count(mask)
    loss = negative_scale * (log_sum_exp(negative, mask) - tf.math.log(tf.maximum(left, 1.0))) - attracted
    if label_smoothing:
        everything = (total(positive, present) + total(negative, mask)) / (count(present) + left)
        loss += label_smoothing * (attracted - everything)
    return tf.where(left > 0.0, loss, 0.0)
