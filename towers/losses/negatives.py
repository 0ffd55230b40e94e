"""Which logits of a batch count as negatives, and the correction for how they were drawn.

In: logits of every query against every candidate. Out: `Logits`, what any sampled loss takes.
"""

from dataclasses import dataclass

import tensorflow as tf


@dataclass(frozen=True)
class Logits:
    """Corrected logits of one batch.

    Attributes:
        positive_logits: [B] of each query's own item.
        negative_logits: [B, M].
        mask: bool [B, M]; False where a candidate does not count for that query.
    """

    positive_logits: tf.Tensor
    negative_logits: tf.Tensor
    mask: tf.Tensor


def in_batch(
    logits: tf.Tensor,
    *,
    item: tf.Tensor,
    log_expected_counts: tf.Tensor,
    correction: float,
    remove_accidental_hits: bool,
) -> Logits:
    """Each query's negatives are the other queries' items, corrected for how often an item is in a batch.

    An item enters a batch as often as it is popular, so the plain softmax learns log(P / q), a score that popularity
    discounts; subtracting log Q from every logit, the positive's too, restores log P.

    Args:
        logits: [B, B], query b against the item of query j; its own item on the diagonal.
        item: [B] item numbers.
        log_expected_counts: [B] log Q_j, Q_j = B q_j the expected number of times item j is in the batch.
        correction: strength c of ``s_j - c log Q_j``.
        remove_accidental_hits: other copies of a query's own item do not count as its negatives.

    Source: Yi et al., Sampling-bias-corrected neural modeling for large corpus item recommendations, RecSys 2019.
    """
    corrected = logits - correction * log_expected_counts[tf.newaxis, :]
    same = item[:, tf.newaxis] == item[tf.newaxis, :]
    own = tf.eye(tf.shape(logits)[0], dtype=tf.bool)
    return Logits(tf.linalg.diag_part(corrected), corrected, ~(same if remove_accidental_hits else own))
