"""Draws until k items are distinct: the one implementation for every noise.

`plan` decides from the probabilities of all items how many draws to make. `draw_distinct` returns k distinct items in
the order of their first draw, and T, the number of draws until then, with ``Q = 1 - (1 - q)^T``.
"""

import math
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from towers.ops.stateless_random import round_seed, uniforms
from towers.samplers.duplicates import first_copies, places, running_count

Doubles = NDArray[np.float64]
# Number of items handled one by one, and the growth of the groups of the rest.
_SINGLE, _GROWTH = 4_096, 1.01
# One draw costs about as much as one item of the race.
_RACE_FROM = 2


class Plan(NamedTuple):
    """How to draw distinct items.

    Attributes:
        size: N.
        first: draws in the first round; usually enough.
        more: draws in each further round.
        race: use `race`, because far more than N draws would be needed.
    """

    size: int
    first: int
    more: int
    race: bool


def distinct_count(q: tf.Tensor, tries: tf.Tensor) -> tf.Tensor:
    """``1 - (1 - q)^T`` without cancellation: float32's relative error at q = 1e-9 and below as at q = 1."""
    # Rounding may give the only item more than 1.
    return -tf.math.expm1(tries * tf.math.log1p(-tf.minimum(q, 1.0)))


def draw_distinct(noise: Any, count: int, plan: Plan, seed: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """The first k distinct items of an infinite series of draws.

    The series is drawn in rounds, `plan.first` items and then `plan.more` at a time, each from its own stream.

    Args:
        noise: `towers.samplers.noises.Noise`.
        count: k, at most N.
        plan: made for the same k.
        seed: int64 [2].

    Returns:
        int64 [k] items in the order of their first draw, and float32 scalar T.
    """
    if plan.race:
        return race(noise, count, seed)
    item, found, last = first_distinct(noise.draw(plan.first, seed), count, plan.size)

    def more(
        number: tf.Tensor, item: tf.Tensor, found: tf.Tensor, before: tf.Tensor, last: tf.Tensor
    ) -> tuple[tf.Tensor, ...]:
        # The items found so far come before the new draws. Padding at their end repeats the first item: no effect.
        series = tf.concat([item, noise.draw(plan.more, round_seed(seed, number))], axis=0)
        item, found, last = first_distinct(series, count, plan.size)
        return number + 1, item, found, before + plan.more, before + last - count

    _, item, _, _, tries = tf.while_loop(
        lambda number, item, found, before, tries: found < count,
        more,
        (tf.constant(1, tf.int64), item, found, tf.constant(plan.first, tf.int64), last),
        parallel_iterations=1,
    )
    return item, tf.cast(tries, tf.float32)


def first_distinct(series: tf.Tensor, count: int, size: int) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """The first `count` distinct items of a series.

    Args:
        series: int64 [L] items below `size`; L static.
        count: k.
        size: N.

    Returns:
        int64 [k] items in order, padded with the first; int64 number of distinct items in the series, which may exceed
        k; int64 position of the k-th in the series, counted from 1, meaningless if there are fewer.
    """
    length = series.shape[0]
    ordinal = running_count(first_copies(series, size))
    # The first position with ordinal j is that of the j-th distinct item. Segments 0 and k + 1 take the rest.
    segment = tf.cast(tf.minimum(ordinal, count + 1), tf.int64)
    place = tf.math.unsorted_segment_min(places(length), segment, count + 2)[1 : count + 1]
    inside = tf.cast(tf.where(place < length, place, tf.zeros_like(place)), tf.int64)
    return tf.gather(series, inside), tf.cast(ordinal[-1], tf.int64), inside[-1] + 1


def race(noise: Any, count: int, seed: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """The same distribution of items, order and T as `draw_distinct`, in O(N) however rare the last items are.

    If draws arrive as a Poisson process of rate 1, those of item c arrive at rate q_c: first at time E_c / q_c, E_c a
    standard exponential. The k earliest are the first k distinct items, in order. Given those, the number of draws from
    the i-th to the next one is geometric, with the probability of all items that are not among the first i.

    Args:
        noise: `towers.samplers.noises.Noise`.
        count: k, at most N.
        seed: int64 [2].

    Returns:
        int64 [k] items and float32 scalar T.
    """
    everyone = tf.constant(np.arange(noise.size), tf.int64)
    q = tf.cast(noise.probability(everyone), tf.float64)
    early = tf.math.log(q) - tf.math.log(-tf.math.log(_inner_uniforms(noise.size, seed)))
    top, item = tf.math.top_k(early, count)
    item = tf.cast(item, tf.int64)
    outside = tf.reduce_sum(tf.where(early < top[-1], q, tf.zeros_like(q)))
    unseen = outside + tf.cumsum(tf.gather(q, item), exclusive=True, reverse=True)[:-1]
    gap = tf.math.floor(
        tf.math.log(_inner_uniforms(count - 1, round_seed(seed, 1))) / tf.math.log1p(-tf.minimum(unseen, 1.0))
    )
    return item, tf.cast(float(count) + tf.reduce_sum(gap), tf.float32)


def _inner_uniforms(count: int, seed: tf.Tensor) -> tf.Tensor:
    """Uniforms above 0: float64 [count], odd multiples of 2^-54, rounded; once in 2^53 that is 1, an infinite key."""
    return uniforms(count, seed) + 2.0**-54


def plan(p: Doubles, count: int) -> Plan:
    """Plans how to draw `count` distinct items.

    The first round usually finds them all: the number of distinct items has a variance below ``sum Q (1 - Q)``, and the
    round allows for 4 standard deviations.

    Args:
        p: [N] probabilities, in falling order.
        count: k, at most N.
    """
    size = len(p)
    group, weight = _groups(p)
    needed = draws_until(group, weight, count - 0.5)
    if needed > _RACE_FROM * size:
        return Plan(size, 0, 0, race=True)
    with np.errstate(divide="ignore"):
        found = -np.expm1(needed * np.log1p(-group))
    margin = 4 * math.sqrt(float(np.sum(weight * found * (1 - found))) + 1)
    enough = draws_until(group, weight, min(count + margin, (count + size) / 2)) if count < size else 2 * needed
    first = math.ceil(min(enough, 2 * needed))
    return Plan(size, max(first, count), max(64, first // 4), race=False)


def draws_until(p: Doubles, weight: Doubles, distinct: float) -> float:
    """The T at which ``sum_c 1 - (1 - p_c)^T`` reaches `distinct`, which is below N."""
    with np.errstate(divide="ignore"):
        log_miss = np.log1p(-p)
    low, high = 0.0, 64 * math.log(2)
    for _ in range(60):
        middle = (low + high) / 2
        if float(np.sum(weight * -np.expm1(math.exp(middle) * log_miss))) < distinct:
            low = middle
        else:
            high = middle
    return math.exp(high)


def _groups(p: Doubles) -> tuple[Doubles, Doubles]:
    """Mean probability and size of groups of adjacent items: ten million items take no longer than a few thousand."""
    size = len(p)
    steps = _SINGLE * _GROWTH ** np.arange(1, max(1, math.ceil(math.log(max(size / _SINGLE, 1), _GROWTH)) + 1))
    edges = np.unique(np.concatenate([np.arange(min(size, _SINGLE)), steps[steps < size].astype(np.int64)]))
    weight = np.diff(np.concatenate([edges, [size]])).astype(np.float64)
    return np.add.reduceat(p, edges) / weight, weight
