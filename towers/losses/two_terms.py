"""Losses with one term for positives and one for negatives: NCE, negative sampling, gBCE, cross-entropy, CCL, BSL.

Each returns one loss per query; NCE, negative sampling and gBCE sum over its candidates instead of averaging.
Cross-entropy takes labelled impressions: the labels, and `Scores` of which only the positives matter.
"""

import math
from typing import Any, Literal

import tensorflow as tf

from towers.config.loss_section import Loss
from towers.config.losses import Nce
from towers.losses.scores import Scores, corrected, count, log_sum_exp, mean, total


def logistic(logits: tf.Tensor, labels: tf.Tensor | float) -> tf.Tensor:
    """``-l log sig(x) - (1 - l) log sig(-x)``, of any shape."""
    return labels * tf.nn.softplus(-logits) + (1.0 - labels) * tf.nn.softplus(logits)


def nce(scores: Scores, *, log_z: float | tf.Tensor, label_smoothing: float) -> tf.Tensor:
    """Noise-contrastive estimation.

    With x = s - log Z - log Q and K positives with label t = 1/K each, as TensorFlow's num_true = K:
    ``sum_i [-t log sig(x_i) - (1 - t) log sig(-x_i)] - sum_j log sig(-x_j)``, which for one positive is
    ``-log sig(x_y) - sum_j log sig(-x_j)``.

    Label smoothing e turns every label t, 1/K for a positive and 0 for noise, into ``t (1 - e) + e / 2``, as in Keras.
    The sum over k noise samples then holds k e / 2 of positive label: with much noise, keep e far below 2 / k.

    Args:
        scores: logits.
        log_z: log of the normaliser: a number, a scalar tensor, or [B].
        label_smoothing: e.

    Returns:
        [B].

    Source: Gutmann & Hyvarinen, AISTATS 2010; Z fixed to 1: Mnih & Teh, ICML 2012.
    """
    scores = scores.in_float32()
    positive, negative = corrected(scores, 1.0)
    log_z = tf.cast(log_z, tf.float32)
    if log_z.shape.rank == 1:
        log_z = log_z[:, tf.newaxis]
    return _logistic(scores, positive - log_z, negative - log_z, label_smoothing)


def neg(scores: Scores, *, label_smoothing: float) -> tf.Tensor:
    """Negative sampling: `nce` without the correction and with log Z = 0.

    ``-log sig(s_y) - sum_j log sig(-s_j)``; K positives and label smoothing as in `nce`.

    Args:
        scores: logits.
        label_smoothing: e.

    Returns:
        [B].

    Source: Mikolov et al., Distributed representations of words and phrases, NeurIPS 2013.
    """
    scores = scores.in_float32()
    return _logistic(scores, scores.positive, scores.negative, label_smoothing)


def _logistic(scores: Scores, positive: tf.Tensor, negative: tf.Tensor, label_smoothing: float) -> tf.Tensor:
    label = 1.0 / tf.maximum(count(scores.positive_mask), 1.0)[:, tf.newaxis]
    ours = logistic(positive, (1.0 - label_smoothing) * label + label_smoothing / 2)
    return total(ours, scores.positive_mask) + total(logistic(negative, label_smoothing / 2), scores.negative_mask)


def gbce(scores: Scores, *, calibration: float, catalogue: int) -> tf.Tensor:
    """Generalised binary cross-entropy: `neg` whose positive term has the weight beta.

    ``-beta log sig(s_y) - sum_j log sig(-s_j)``, ``beta = a (t (1 - 1/a) + 1/a) = 1 - t (1 - a)``, ``a = k / (N - 1)``;
    K positives as in `neg`, beta before the label 1/K of each. t = 0 is `neg`; with t = 1, beta = a, the optimum
    ``sig(s_y) = beta P / (beta P + a (1 - P))`` is P itself, for uniform negatives without hits.

    k is counted for each query: the candidates that its mask leaves, whatever sampler they are from, each copy of an
    item once more. Without hits and known positives k falls, and with `hardest_negatives` it is how many are kept. In a
    batch, or with replacement, k may exceed N - 1: then every item is expected a > 1 times, and beta > 1 with t > 0.
    The paper divides the sum by k + 1; here it is a sum, as in `neg`.

    Args:
        scores: logits.
        calibration: t.
        catalogue: N.

    Returns:
        [B].

    Source: Petrov & Macdonald, gSASRec: reducing overconfidence in sequential recommendation, RecSys 2023.
    """
    scores = scores.in_float32()
    rate = count(scores.negative_mask) / max(1, catalogue - 1)
    beta = (1.0 - calibration * (1.0 - rate))[:, tf.newaxis]
    label = 1.0 / tf.maximum(count(scores.positive_mask), 1.0)[:, tf.newaxis]
    ours = beta * label * tf.nn.softplus(-scores.positive) + (1.0 - label) * tf.nn.softplus(scores.positive)
    return total(ours, scores.positive_mask) + total(tf.nn.softplus(scores.negative), scores.negative_mask)


def bce(scores: Scores, *, labels: tf.Tensor, label_smoothing: float) -> tf.Tensor:
    """Sigmoid cross-entropy, ``-l log sig(s) - (1 - l) log sig(-s)``, averaged over a query's items.

    Label smoothing e turns l into ``l (1 - e) + e / 2``, as in Keras.

    Args:
        scores: logits of the shown items, passed as positives.
        labels: [B, K] in [0, 1].
        label_smoothing: e.

    Returns:
        [B].

    Source: He et al., Neural collaborative filtering, WWW 2017.
    """
    scores = scores.in_float32()
    smoothed = (1.0 - label_smoothing) * tf.cast(labels, tf.float32) + label_smoothing / 2
    return mean(logistic(scores.positive, smoothed), scores.positive_mask)


class LogZ(tf.Module):
    """log Z: fixed (to 0 in Mnih & Teh 2012), one trained scalar, or linear in the query vector.

    Args:
        setting: the recipe's value.
        count: N. A trained log Z starts at log N, which is exact for scores of 0 and close for untrained towers.
    """

    def __init__(self, setting: str | float, count: int) -> None:
        super().__init__(name="log_z")
        self.setting = setting
        start = math.log(count)
        self.value = tf.Variable(start, name="log_z") if setting == "learned" else None
        self.head: Any = None
        if setting == "per_query":
            bias = tf.keras.initializers.Constant(start)
            self.head = tf.keras.layers.Dense(1, kernel_initializer="zeros", bias_initializer=bias, name="log_z")

    def __call__(self, query: tf.Tensor) -> Any:
        """Scalar, or [B] for `query` [B, D]."""
        if self.value is not None:
            return self.value.read_value()
        return self.setting if self.head is None else self.head(query)[:, 0]


def ccl(scores: Scores, *, margin: float, negative_weight: float) -> tf.Tensor:
    """Cosine contrastive loss, ``[1 - cos_y]+ + w mean_j [cos_j - m]+``, averaged over the positives.

    Args:
        scores: cosines.
        margin: m; a negative below it adds no loss.
        negative_weight: w.

    Returns:
        [B]; only the first term without a negative.

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
    own_column: int = 0,
) -> tf.Tensor:
    """Bilateral softmax, on logits l = s - c log Q.

    "own": ``-mean_i l_i + t2 log mean_j exp l_j``, i over the query's positives, j over its negatives without y.
    "batch": ``-log mean_i exp l_i + t2 log mean_j exp l_j``, i over its positives and the columns of the same user,
    which are then not negatives.

    Label smoothing e shrinks the first term: ``-(1 - e) (first term) - e (mean logit of all i and j)``.

    Args:
        scores: logits.
        positive_group: the range of i.
        negative_scale: t2.
        correction: strength c.
        label_smoothing: e.
        same_query: bool [B, M'], for "batch": which of the first M' columns, all but impressions, are positives of the
            same user, whatever `negative_mask` says. The columns from `own_column` on are the queries' own items, in
            order: that diagonal repeats the query's first positive, and is not counted again. None: no such column.
        own_column: for "batch", the column of the first query's own item.

    Returns:
        [B]; 0 without a negative, since a positive alone would grow without bound.

    Source: Wu et al., BSL: understanding and improving softmax loss for recommendation, 2023.
    """
    scores = scores.in_float32()
    positive, negative = corrected(scores, correction)
    present, mask = scores.positive_mask, scores.negative_mask
    if positive_group == "batch" and same_query is not None:
        same_query = tf.concat([same_query, tf.zeros_like(mask[:, tf.shape(same_query)[1] :])], axis=1)
        mask &= ~same_query
        others = tf.linalg.set_diag(same_query, tf.zeros([tf.shape(same_query)[0]], tf.bool), k=own_column)
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


def log_z_of(loss: Loss, count: int) -> LogZ | None:
    """log Z as a loss's settings ask for it; None for a loss that has none."""
    return LogZ(loss.log_z, count) if isinstance(loss, Nce) else None
