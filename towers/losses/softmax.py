"""The softmax losses: cross-entropy of the positive among the candidates."""

import tensorflow as tf


def sampled_softmax(positive_logits: tf.Tensor, negative_logits: tf.Tensor, mask: tf.Tensor) -> tf.Tensor:
    """Softmax cross-entropy of the positive over {positive} + negatives.

    ``-s_y + log(exp s_y + sum_j exp s_j)``, written as ``softplus(log sum_j exp(s_j) - s_y)``, which is exact where the
    softmax itself overflows and 0 where every negative is masked.

    Args:
        positive_logits: [B], corrected.
        negative_logits: [B, M], corrected.
        mask: bool [B, M]; False takes a negative out.

    Returns:
        [B] losses.

    Source: Jean et al., On using very large target vocabulary for neural machine translation, ACL 2015.
    """
    lowest = negative_logits.dtype.min
    total = tf.reduce_logsumexp(tf.where(mask, negative_logits, lowest), axis=1)
    return tf.nn.softplus(total - positive_logits)
