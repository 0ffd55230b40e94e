"""A distribution over items, and the sampler that draws a batch's negatives from it.

In: a batch's positives and a seed. Out: k items shared by the batch, with replacement or distinct, and their Q.
"""

from abc import abstractmethod

import tensorflow as tf

from towers.samplers.distinct import Plan, distinct_count, draw_distinct
from towers.samplers.drawn import NegativeSampler, Sample
from towers.streams import fold


class Noise(tf.Module):
    """P over the items 0..N-1.

    Attributes:
        size: N.
    """

    size: int

    @abstractmethod
    def draw(self, count: int, seed: tf.Tensor) -> tf.Tensor:
        """Independent items: int64 [count]. `seed` is int64 [2]."""

    @abstractmethod
    def probability(self, item: tf.Tensor) -> tf.Tensor:
        """P of items of any shape: float32."""

    def learn(self, item: tf.Tensor) -> None:
        """Counts the positives `item` [B], where the distribution is learned."""
        del item


class NoiseSampler(NegativeSampler):
    """Draws k negatives from `noise`, shared by the whole batch.

    Q is ``k q`` with replacement, ``1 - (1 - q)^T`` for distinct draws, T their number until k were distinct.

    Args:
        noise: the distribution.
        count: k.
        plan: how distinct ones are drawn; None draws with replacement.
        name: the sampler's; with `part`, its place in a mixture, it sets the random stream.
        part: see name.
    """

    def __init__(self, noise: Noise, count: int, plan: Plan | None, name: str, part: int = 0) -> None:
        super().__init__(name=name)
        self.noise = noise
        self._count, self._plan, self._stream, self._part = count, plan, name, part

    def sample(self, positives: tf.Tensor, seed: tf.Tensor) -> Sample:
        """k items."""
        del positives
        own_seed = fold(seed, self._stream, self._part)
        every = tf.ones([self._count], tf.bool)
        if self._plan is None:
            return Sample(self.noise.draw(self._count, own_seed), every, tf.constant(self._count, tf.float32))
        item, tries = draw_distinct(self.noise, self._count, self._plan, own_seed)
        return Sample(item, every, tries)

    def expected_count(self, item: tf.Tensor, tries: tf.Tensor) -> tf.Tensor:
        """Q of items of any shape."""
        q = self.noise.probability(item)
        return tries * q if self._plan is None else distinct_count(q, tries)

    def learn(self, item: tf.Tensor) -> None:
        """Counts the positives, where the distribution is learned."""
        self.noise.learn(item)
