"""Impressions as negatives: items that a query's own user was shown and did not take, beside the sampled candidates.

A loss with one log-sum-exp over its negatives takes n more terms for each query. An impression was not sampled, so it
has no log Q; its weight w, the same for all, multiplies its term:

``log [ sum_{j sampled} exp(s_j - c log Q_j) + w sum_{i shown} exp(s_i) ]``

Where the loss corrects fully (c = 1), the first sum estimates the one over the whole catalogue, in which each item
counts once: an impression then counts as w further items. Where it does not (c = 0), one counts as w sampled negatives.
Either way the optimum is no longer log P of the catalogue: it is lower by what the impressions add, for items that are
shown often and seldom taken. That is the purpose, and the bias.

Source: a small share of hard negatives beside many easy ones, Huang et al., Embedding-based retrieval in Facebook
search, KDD 2020, where impressions without a click alone were much worse than random items; several sources of
negatives in one softmax, Yang et al., Mixed negative sampling, WWW 2020.
"""

import math

import tensorflow as tf

from towers.losses.scores import Scores, log_sum_exp


def with_impressions(scores: Scores, shown: tf.Tensor, there: tf.Tensor, weight: float) -> Scores:
    """Adds impressions as candidates of single queries: M becomes M + n.

    Args:
        scores: of the sampled candidates.
        shown: [B, n] scores of impressions.
        there: bool [B, n]; False where a query has fewer than n.
        weight: w.
    """
    sampled = tf.zeros_like(scores.negative[0], tf.float32)
    without_q = tf.zeros_like(shown if scores.log_q_negative.shape.rank == 2 else shown[0], tf.float32)
    return scores._replace(
        negative=tf.concat([scores.negative, shown], axis=1),
        negative_mask=tf.concat([scores.negative_mask, there], axis=1),
        log_q_negative=tf.concat([scores.log_q_negative, without_q], axis=-1),
        log_weight=tf.concat([sampled, tf.fill([shown.shape[1]], math.log(weight))], axis=0),
    )


def own_sum(positive: tf.Tensor, present: tf.Tensor, shown: tf.Tensor, there: tf.Tensor, weight: float) -> tf.Tensor:
    """``log [ sum_k exp(l_k) + w sum_i exp(s_i) ]`` over a query's own candidates, positives and impressions: [B].

    Args:
        positive: [B, K] corrected logits.
        present: bool [B, K].
        shown, there, weight: as in `with_impressions`; n may be 0.
    """
    return log_sum_exp(tf.concat([positive, shown + math.log(weight)], axis=1), tf.concat([present, there], axis=1))
