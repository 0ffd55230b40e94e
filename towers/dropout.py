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
    # Half a 64-bit draw is enough for one number. int64, as int32 would stay in host memory beside a GPU.
    drawn = bits((size + 1) // 2, fold(tf.cast(seed, tf.int64), name, DROPOUT))
    low = tf.constant(WORDS - 1, tf.int64)
    halves = tf.bitwise.bitwise_and([drawn, tf.bitwise.right_shift(drawn, tf.constant(32, tf.int64))], low)
    words = tf.reshape(tf.reshape(halves, [-1])[:size], tf.shape(x))
    return tf.where(words >= round(share * WORDS), x / (1 - share), tf.zeros([], x.dtype))
