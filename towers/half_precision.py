"""Embedding tables that are stored in half precision and computed with in float32.

In: tables of any precision, row numbers; float32 values and noise. Out: float32 rows whose gradients are float32, too;
values rounded at random, so that many updates, each too small to be seen, add up in expectation.
"""

from collections.abc import Callable

import tensorflow as tf

# Of a number 2^e (1 + m): the bits of m that are kept, and the smallest e whose last bit is still one of its own: of
# float16 the smallest normal one, of bfloat16 one whose last bit float32 does not flush to zero.
_MANTISSA = {tf.bfloat16: 7, tf.float16: 10}
_LEAST = {tf.bfloat16: -119, tf.float16: -14}
_EXPONENT_BITS = 0x7F800000


def gathered(table: tf.Variable, rows: tf.Tensor) -> tf.Tensor:
    """Rows of a table, float32, of the shape of `rows` and one axis more."""
    return _widened(tf.gather(table, rows))


def whole(table: tf.Variable) -> tf.Tensor:
    """A whole table, float32."""
    return _widened(tf.convert_to_tensor(table))


def _widened(values: tf.Tensor) -> tf.Tensor:
    return values if values.dtype == tf.float32 else _in_float32(values)


@tf.custom_gradient
def _in_float32(values: tf.Tensor) -> tuple[tf.Tensor, Callable[[tf.Tensor], tf.Tensor]]:
    # The gradient stays as it is: in float16 one of a mean over a batch would vanish.
    return tf.cast(values, tf.float32), lambda gradient: gradient


def stochastic_round(values: tf.Tensor, noise: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    """One of the two neighbours of a value, each as likely as the value is near it: the expectation is the value.

    A value that the type can hold stays as it is, zero among them.

    Args:
        values: float32.
        noise: float32 in [0, 1), of the same shape.
        dtype: bfloat16 or float16.

    Source: Gupta et al., Deep learning with limited numerical precision, ICML 2015.
    """
    exponent = tf.bitwise.bitwise_and(tf.bitcast(values, tf.uint32), tf.constant(_EXPONENT_BITS, tf.uint32))
    unit = tf.maximum(tf.bitcast(exponent, tf.float32), 2.0 ** _LEAST[dtype]) * 2.0 ** -_MANTISSA[dtype]
    # Powers of two divide exactly, and the quotient is below 2^11: what is lost of the noise is below 2^-12.
    return tf.cast(tf.floor(values / unit + noise) * unit, dtype)
