"""Dropout whose draws depend on the step's seed and a name alone.

In: numbers of any shape. Out: the same with a share of them at zero. Source: Srivastava et al., JMLR 2014.
"""

import tensorflow as tf

from towers.streams import bits, fold

DROPOUT = 1  # stream of a step's seed
WORDS = 2**32


def dropped(x: tf.Tensor, share: float, seed: tf.Tensor | None, name: str) -> tf.Tensor:
    """In training a seeded share of the numbers at zero, the others scaled up to the same expectation.

    Args:
        x: any shape.
        share: 0 to below 1, exact to 2^-32.
        seed: of the step, [2]; None outside training, where `x` stays as it is.
        name: of what drops out: others drop others.
    """
    if seed is None or not share:
        return x
    size = tf.size(x)
    # Half a 64-bit draw is enough for one number.
    pairs = tf.bitcast(bits((size + 1) // 2, fold(tf.cast(seed, tf.int64), name, DROPOUT)), tf.int32)
    words = tf.reshape(tf.reshape(pairs, [-1])[:size], tf.shape(x))
    least = tf.constant(round(share * WORDS) - WORDS // 2, tf.int32)
    return tf.where(words >= least, x / (1 - share), tf.zeros([], x.dtype))
