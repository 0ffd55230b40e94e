"""Products of queries and candidates, in float32 or through bfloat16: the largest matrices of a step.

In: float32 matrices. Out: float32 ones, whatever they were multiplied in.
"""

import tensorflow as tf


def product(
    left: tf.Tensor, right: tf.Tensor, *, half: bool, transpose_a: bool = False, transpose_b: bool = False
) -> tf.Tensor:
    """``left right``, with `half` from bfloat16 copies: 8 bits of each factor, the sum of their products in float32.

    What comes out is rounded to bfloat16, too, a relative error of at most 2^-8. The gradients of it are such products.

    Args:
        left, right: matrices, not yet transposed.
        half: use bfloat16.
    """
    if not half:
        return tf.matmul(left, right, transpose_a=transpose_a, transpose_b=transpose_b)
    left, right = tf.cast(left, tf.bfloat16), tf.cast(right, tf.bfloat16)
    return tf.cast(tf.matmul(left, right, transpose_a=transpose_a, transpose_b=transpose_b), tf.float32)
