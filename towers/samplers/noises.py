"""Distributions over items: uniform, log-uniform by rank, by training counts, and by counts learned in training."""

import math
from abc import abstractmethod

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from towers.ops.stateless_random import uniforms

Doubles = NDArray[np.float64]


class Noise(tf.Module):
    """A distribution P over the items 0..N-1.

    Attributes:
        size: N.
    """

    size: int

    @abstractmethod
    def draw(self, count: int, seed: tf.Tensor) -> tf.Tensor:
        """Draws independent items: int64 [count]. `seed` is int64 [2]."""

    @abstractmethod
    def probability(self, item: tf.Tensor) -> tf.Tensor:
        """P of items of any shape: float32."""

    def learn(self, item: tf.Tensor) -> None:
        """Counts the positives `item` [B] if the distribution is learned."""


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


class LogUniformNoise(Noise):
    """``P(c) = (log(c+2) - log(c+1)) / log(N+1)``, as TensorFlow's log_uniform_candidate_sampler.

    The uniforms are float64: float32 has 2^24 of them, so most of ten million items could never be drawn. log1p gives
    the probability, because in float32 ``log(c+2) - log(c+1)`` is 0 for most items.

    Args:
        size: N.
    """

    def __init__(self, size: int) -> None:
        super().__init__(name="log_uniform_noise")
        self.size = size
        self._log_size = math.log1p(size)

    def draw(self, count: int, seed: tf.Tensor) -> tf.Tensor:
        """The inverse of ``P(<= c) = log(c+2) / log(N+1)``: floor(exp(u log(N+1))) - 1."""
        # Slightly below log(N+1): rounding in exp must not reach N + 1 when u is close to 1.
        return tf.cast(tf.exp(uniforms(count, seed, self._log_size * (1 - 1e-14))), tf.int64) - 1

    def probability(self, item: tf.Tensor) -> tf.Tensor:
        """log1p(1 / (c+1)) / log(N+1): the difference of two logarithms without cancellation."""
        return tf.math.log1p(1.0 / (tf.cast(item, tf.float32) + 1.0)) / self._log_size


class UnigramNoise(Noise):
    """``P(c) = count_c^power / sum count^power`` (Mikolov et al., NeurIPS 2013).

    Args:
        counts: [N] training examples of each item, at least 1.
        power: 1 gives the frequencies, 0 a uniform distribution.
    """

    def __init__(self, counts: NDArray[np.int64], power: float) -> None:
        super().__init__(name="unigram_noise")
        self.size = len(counts)
        p = power_probabilities(counts, power)
        keep, alias = alias_table(p)
        self._keep, self._alias = tf.constant(keep), tf.constant(alias)
        self._probability = tf.constant(p, tf.float32)

    def draw(self, count: int, seed: tf.Tensor) -> tf.Tensor:
        """Draws a column of the table, then the column's own item or its alias.

        Uses two uniforms: one would leave the second choice only the bits that the first has not used.
        """
        u = uniforms(2 * count, seed)
        column = tf.cast(u[:count] * self.size, tf.int64)
        own = u[count:] < tf.gather(self._keep, column)
        return tf.where(own, column, tf.gather(self._alias, column))

    def probability(self, item: tf.Tensor) -> tf.Tensor:
        """P of items of any shape: float32."""
        return tf.gather(self._probability, item)


def power_probabilities(counts: NDArray[np.int64], power: float) -> Doubles:
    """``count^power / sum count^power``, float64 [N]."""
    weight = counts.astype(np.float64) ** power
    return np.asarray(weight / weight.sum(), dtype=np.float64)


def alias_table(p: Doubles) -> tuple[Doubles, NDArray[np.int64]]:
    """The alias table of a distribution (Walker 1977; Vose 1991), built with array operations.

    Column c keeps its item with probability keep_c and gives alias_c otherwise. With w = N p, the heavy items (w >= 1)
    fill up the light ones (w < 1), both in order. Let D_i be the running sum of the light items' gaps 1 - w, and E_j
    that of the heavy items' excesses w - 1. The first heavy j with E_j >= D_{i-1} fills item i. Once the gaps pass E_j,
    at the first i with D_i > E_j, item j keeps 1 + E_j - D_i and j + 1 fills the rest (the sweep of Hübschle-Schneider
    & Sanders, 2019, as prefix sums).

    Args:
        p: [N], sums to 1.

    Returns:
        keep float64 [N], alias int64 [N].
    """
    size = len(p)
    w = p * size
    keep, alias = np.ones(size), np.arange(size, dtype=np.int64)
    light, heavy = np.flatnonzero(w < 1), np.flatnonzero(w >= 1)
    if not len(light) or not len(heavy):  # all equal: rounding may put each just below 1
        return keep, alias
    gaps, excess = np.cumsum(1 - w[light]), np.cumsum(w[heavy] - 1)
    giver = np.searchsorted(excess, np.concatenate([[0.0], gaps[:-1]]), side="left")
    # Rounding may leave no heavy item for the last gaps.
    keep[light], alias[light] = w[light], heavy[np.minimum(giver, len(heavy) - 1)]
    passed = np.searchsorted(gaps, excess, side="right")
    used_up = (passed < len(gaps)) & (np.arange(len(heavy)) < len(heavy) - 1)
    j = np.flatnonzero(used_up)
    keep[heavy[j]] = np.clip(1 + excess[j] - gaps[passed[j]], 0, 1)
    alias[heavy[j]] = heavy[j + 1]
    return keep, alias


class LearnedCounts(tf.Module):
    """``count_c / (N + T)``: counts start at 1, and each of the T positives seen adds 1.

    int64, because a float32 count would stop at 2^24.

    Args:
        size: N.
    """

    def __init__(self, size: int) -> None:
        super().__init__(name="learned_counts")
        self.size = size
        self.counts = tf.Variable(tf.ones([size], tf.int64), trainable=False, name="counts")
        self.total = tf.Variable(size, trainable=False, dtype=tf.int64, name="total")

    def probability(self, item: tf.Tensor) -> tf.Tensor:
        """P of items of any shape: float32."""
        return tf.cast(tf.gather(self.counts, item), tf.float32) / tf.cast(self.total, tf.float32)

    def add(self, item: tf.Tensor) -> None:
        """Adds 1 to the count of each of `item` [B]."""
        self.counts.scatter_add(tf.IndexedSlices(tf.ones_like(item), item))
        self.total.assign_add(tf.size(item, tf.int64))

    def replace(self, item: tf.Tensor, old: tf.Tensor, was_there: tf.Tensor) -> None:
        """Adds 1 for each of `item` [B] and subtracts 1 for each of `old` [B] where `was_there` (bool [B])."""
        less = -tf.cast(was_there, tf.int64)
        change = tf.concat([tf.ones_like(item), less], axis=0)
        self.counts.scatter_add(tf.IndexedSlices(change, tf.concat([item, old], axis=0)))
        self.total.assign_add(tf.size(item, tf.int64) + tf.reduce_sum(less))


class LearnedUnigramNoise(Noise):
    """Draws by `LearnedCounts` exactly, in O(1): r uniform below N + T is item r, or the (r - N)-th positive seen.

    The distribution is that of TensorFlow's learned_unigram_candidate_sampler. The list of positives holds `capacity`;
    then it wraps round, the oldest leave the list and the counts, and P is that of the last `capacity`.

    Args:
        size: N, below 2^32.
        capacity: positives that the list holds; at least a batch.
    """

    def __init__(self, size: int, capacity: int) -> None:
        super().__init__(name="learned_unigram_noise")
        self.size, self.capacity = size, capacity
        self.learned = LearnedCounts(size)
        # uint32: half of int64's memory, and int32 has no gather on a GPU.
        self.seen = tf.Variable(tf.zeros([capacity], tf.uint32), trainable=False, name="seen")
        self.position = tf.Variable(0, trainable=False, dtype=tf.int64, name="position")

    def draw(self, count: int, seed: tf.Tensor) -> tf.Tensor:
        """Of the N + T numbers, N are the items' initial counts and the rest are the positives seen."""
        number = tf.cast(uniforms(count, seed) * tf.cast(self.learned.total, tf.float64), tf.int64)
        place = tf.maximum(number - self.size, 0)
        return tf.where(number < self.size, number, tf.cast(tf.gather(self.seen, place), tf.int64))

    def probability(self, item: tf.Tensor) -> tf.Tensor:
        """count / (N + T)."""
        return self.learned.probability(item)

    def learn(self, item: tf.Tensor) -> None:
        """Appends the positives `item` [B] to the list; in a full list they replace the oldest."""
        if item.shape[0] is not None and item.shape[0] > self.capacity:
            raise ValueError(f"a batch of {item.shape[0]} positives does not fit a list of {self.capacity}")
        number = self.position + tf.range(tf.size(item, tf.int64))
        # One modulo instead of B: a batch passes the end of the list at most once.
        place = number - self.position // self.capacity * self.capacity
        place = tf.where(place < self.capacity, place, place - self.capacity)
        self.learned.replace(item, tf.cast(tf.gather(self.seen, place), tf.int64), number >= self.capacity)
        self.seen.scatter_update(tf.IndexedSlices(tf.cast(item, tf.uint32), place))
        self.position.assign_add(tf.size(item, tf.int64))
