"""Log-uniform noise: by rank, with no table.

In: the number of items, which are numbered by falling frequency. Out: a `Noise`.
"""

import math

import tensorflow as tf

from towers.samplers.noise import Noise
from towers.streams import uniforms


class LogUniformNoise(Noise):
    """``P(c) = (log(c+2) - log(c+1)) / log(N+1)``, as TensorFlow's log_uniform_candidate_sampler.

    float64 uniforms: float32 ones have 2^24 values, so that most of ten million items could never be drawn. And log1p:
    in float32 ``log(c+2) - log(c+1)`` is 0 for most of them.

    Args:
        size: N.
    """

    def __init__(self, size: int) -> None:
        super().__init__(name="log_uniform_noise")
        self.size = size
        self._log_size = math.log1p(size)

    def draw(self, count: int, seed: tf.Tensor) -> tf.Tensor:
        """The inverse of ``P(<= c) = log(c+2) / log(N+1)``: floor(exp(u log(N+1))) - 1."""
        # A trifle less than log(N+1): rounding in exp must not reach N + 1 where u is next to 1.
        return tf.cast(tf.exp(uniforms(count, seed, self._log_size * (1 - 1e-14))), tf.int64) - 1

    def probability(self, item: tf.Tensor) -> tf.Tensor:
        """log1p(1 / (c+1)) / log(N+1): the difference of two logarithms without their cancellation."""
        return tf.math.log1p(1.0 / (tf.cast(item, tf.float32) + 1.0)) / self._log_size
