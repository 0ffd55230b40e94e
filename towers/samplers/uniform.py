"""Uniform noise: every trained item alike.

In: the number of items. Out: a `Noise`.
"""

import tensorflow as tf

from towers.samplers.noise import Noise
from towers.streams import uniforms


class UniformNoise(Noise):
    """``P(c) = 1 / N`` (Bengio & Senecal, AISTATS 2003).

    Args:
        size: N, below 2^53.
    """

    def __init__(self, size: int) -> None:
        super().__init__(name="uniform_noise")
        self.size = size

    def draw(self, count: int, seed: tf.Tensor) -> tf.Tensor:
        """floor(u N); 53 random bits favour no item by more than N / 2^53."""
        return tf.cast(uniforms(count, seed, self.size), tf.int64)

    def probability(self, item: tf.Tensor) -> tf.Tensor:
        """1 / N for each."""
        return tf.ones_like(item, tf.float32) / self.size
