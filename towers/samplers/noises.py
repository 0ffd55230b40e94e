"""Distributions over items: uniform, log-uniform by rank, by training counts."""

import math
from abc import abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from towers.data.events import Int64s
from towers.ops.stateless_random import uniforms

Doubles = NDArray[np.float64]
# Gives the value that a variable had in an earlier run; None if there was no such variable.
Earlier = Callable[[tf.Variable], NDArray[Any] | None]


class Noise(tf.Module):
    """A distribution P over the items 0..N-1.

    Attributes:
        size: N.
        learns: whether it counts the positives that pass.
    """

    size: int
    learns: ClassVar[bool] = False

    @abstractmethod
    def draw(self, count: int, seed: tf.Tensor) -> tf.Tensor:
        """Draws independent items: int64 [count]. `seed` is int64 [2]."""

    @abstractmethod
    def probability(self, item: tf.Tensor) -> tf.Tensor:
        """P of items of any shape: float32."""

    def learn(self, item: tf.Tensor) -> None:
        """Counts the positives `item` [B] if the distribution is learned."""

    def warm_start(self, value_of: Earlier, ranks: Int64s, share: float) -> None:
        """Starts from what an earlier run learnt, see `NegativeSampler.warm_start`."""


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
        counts: [N] training examples of each item; 0 for one whose events are no examples.
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
