"""The distance of two vectors of length one, from their cosine.

In: cosines. Out: distances that obey the triangle inequality, with a gradient that is finite everywhere.
"""

import tensorflow as tf

# Under the root, so that its slope stays finite: at cos = 1 the distance is 0.001 instead of 0 and the slope -500; at
# d = 0.1 it is 0.000005 too long. In the angle t, where cos = cos t, the slope is at most 0.71 as without it.
# The triangle inequality survives: sqrt(a^2 + e) + sqrt(b^2 + e) >= sqrt((a + b)^2 + e).
EPSILON = 1e-6


def sqrt_1_minus_cos(cosine: tf.Tensor) -> tf.Tensor:
    """``sqrt(1 - cos)``, of any shape; half the square of the Euclidean distance is what stands under the root.

    Rounding can bring a cosine above 1: the distance is that of 1, its gradient 0.
    """
    return tf.sqrt(tf.maximum(1.0 - cosine, 0.0) + EPSILON)


def euclidean(cosine: tf.Tensor) -> tf.Tensor:
    """``|u - v| = sqrt(2 - 2 cos)`` of vectors of length one, of any shape."""
    return 2.0**0.5 * sqrt_1_minus_cos(cosine)
