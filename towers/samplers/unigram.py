"""Unigram noise: items by a power of their training counts, through an alias table.

In: training counts. Out: a `Noise`.
"""

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from towers.samplers.noise import Noise
from towers.streams import uniforms

Doubles = NDArray[np.float64]


class UnigramNoise(Noise):
    """``P(c) = count_c^power / sum count^power`` (Mikolov et al., NeurIPS 2013).

    Args:
        counts: [N] training examples of each item, at least 1.
        power: 1 is the frequency itself, 0 is uniform.
    """

    def __init__(self, counts: NDArray[np.int64], power: float) -> None:
        super().__init__(name="unigram_noise")
        self.size = len(counts)
        p = power_probabilities(counts, power)
        keep, alias = alias_table(p)
        self._keep, self._alias = tf.constant(keep), tf.constant(alias)
        self._probability = tf.constant(p, tf.float32)

    def draw(self, count: int, seed: tf.Tensor) -> tf.Tensor:
        """A column of the table, then the column's own item or its alias. Two uniforms: one would leave
        the second choice only the bits that the first has not used."""
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
    """The alias table of a distribution (Walker 1977; Vose 1991), in whole-array steps.

    Column c keeps its item with probability keep_c and gives alias_c otherwise. With w = N p, the light items (w < 1)
    are filled up in order by the heavy ones in order. With D_i the light items' summed gaps 1 - w and E_j the heavy
    ones' summed excesses w - 1, item i takes its gap from the first heavy j with E_j >= D_{i-1}; and j, once the gaps
    pass E_j at the first i with D_i > E_j, keeps 1 + E_j - D_i itself and has the rest filled by j + 1 (the sweep of
    Hübschle-Schneider & Sanders, 2019, in prefix sums).

    Args:
        p: [N], sums to 1.

    Returns:
        keep float64 [N], alias int64 [N].
    """
    size = len(p)
    w = p * size
    keep, alias = np.ones(size), np.arange(size, dtype=np.int64)
    light, heavy = np.flatnonzero(w < 1), np.flatnonzero(w >= 1)
    if not len(light) or not len(heavy):  # all alike: rounding may put each of them just below 1
        return keep, alias
    gaps, excess = np.cumsum(1 - w[light]), np.cumsum(w[heavy] - 1)
    giver = np.searchsorted(excess, np.concatenate([[0.0], gaps[:-1]]), side="left")
    # Rounding may leave the last gaps without a giver.
    keep[light], alias[light] = w[light], heavy[np.minimum(giver, len(heavy) - 1)]
    passed = np.searchsorted(gaps, excess, side="right")
    used_up = (passed < len(gaps)) & (np.arange(len(heavy)) < len(heavy) - 1)
    j = np.flatnonzero(used_up)
    keep[heavy[j]] = np.clip(1 + excess[j] - gaps[passed[j]], 0, 1)
    alias[heavy[j]] = heavy[j + 1]
    return keep, alias
