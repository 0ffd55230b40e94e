"""Samplers draw what their formula says: chi-square over five fixed seeds, with the power to see 2 % in one decile.

Deciles hold a tenth of the probability each. An effect of 2 % in one of them moves a chi-square of n draws by
n (0.002^2 / 0.1 + 0.002^2 / 0.9) = 4.4e-5 n: by 88 over the five seeds, where 9 +- 4 is usual.
"""

from collections.abc import Callable
from functools import cache
from itertools import combinations, permutations
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from numpy.typing import NDArray
from scipy.special import ndtr
from scipy.stats import chi2, ks_2samp

from towers.samplers.distinct import Plan, draw_distinct, plan
from towers.samplers.learned import LearnedUnigramNoise
from towers.samplers.noises import LogUniformNoise, Noise, UniformNoise, UnigramNoise

SEEDS = [tf.constant([seed, 77], tf.int64) for seed in range(5)]
DRAWS = 400_000
SMALL, LARGE = 1_000, 10_000_000
NAMES = ("uniform", "log_uniform", "learned_unigram", "unigram")
ALARM = 1e-4
Doubles = NDArray[np.float64]


@cache
def made(name: str, size: int) -> tuple[Noise, Doubles]:
    """A noise and its probabilities, from the specification's table."""
    rank = np.arange(size, dtype=np.float64)
    if name == "uniform":
        return UniformNoise(size), np.full(size, 1 / size)
    if name == "log_uniform":
        return LogUniformNoise(size), np.log1p(1 / (rank + 1)) / np.log1p(size)
    if name == "unigram":
        counts = np.maximum(1, 2e6 / (rank + 20) ** 0.9).astype(np.int64)
        weights = counts**0.75
        return UnigramNoise(counts, 0.75), weights / weights.sum()
    noise = LearnedUnigramNoise(size, 3_000_000)
    seen = (size ** np.random.default_rng(9).random(2_000_000)).astype(np.int64) - 1
    noise.learn(tf.constant(seen, tf.int64))
    p = 1 + np.bincount(seen, minlength=size)
    return noise, p / p.sum()


def bounds(mass: Doubles, number: int) -> NDArray[np.int64]:
    """[number + 1] the first item of each bin, and N; a bin has 1 / number of the mass, as nearly as can be."""
    total = np.cumsum(mass)
    inner = np.searchsorted(total - mass / 2, np.arange(1, number) * (total[-1] / number))
    return np.array([0, *inner, len(mass)])


def bins(mass: Doubles, number: int) -> NDArray[np.int64]:
    """[N] the bin of each item."""
    return np.repeat(np.arange(number), np.diff(bounds(mass, number)))


def unlikely(observed: Doubles, expected: Doubles, variance: Doubles | None = None) -> float:
    """p-value of the observed counts."""
    used = np.flatnonzero(expected)
    variance = expected if variance is None else variance
    return float(chi2.sf(np.sum((observed - expected)[used] ** 2 / variance[used]), len(used) - 1))


def p_values(draw: Callable[[tf.Tensor], NDArray[np.int64]], p: Doubles) -> dict[str, float]:
    """With replacement: by item where there are few, else by a thousand bins; and by decile."""
    drawn = np.sort(np.concatenate([draw(seed) for seed in SEEDS]))
    fine = np.arange(len(p) + 1) if len(p) == SMALL else bounds(p, 1_000)
    below = np.concatenate([[0.0], np.cumsum(p)])
    return {
        what: unlikely(np.diff(np.searchsorted(drawn, first)), np.diff(below[first]) * len(drawn))
        for what, first in {"fine": fine, "deciles": bounds(p, 10)}.items()
    }


# Which draw from a table or a list: that takes seconds to make for ten million, and is drawn from alike.
TABLES = ("learned_unigram", "unigram")
LONG = {(name, LARGE): pytest.mark.long for name in TABLES}


@pytest.mark.parametrize(
    ("name", "size"),
    [pytest.param(name, size, marks=LONG.get((name, size), ())) for name in NAMES for size in (SMALL, LARGE)],
)
def test_frequencies_with_replacement(name: str, size: int) -> None:
    noise, p = made(name, size)
    found = p_values(lambda seed: noise.draw(DRAWS, seed).numpy(), p)
    assert min(found.values()) > ALARM, found


def skewed(item: NDArray[np.int64], first: int, end: int) -> NDArray[np.int64]:
    """The same draws with 2 % of those between `first` and `end` missing, as from a sampler with that error."""
    hit = np.flatnonzero((item >= first) & (item < end))
    lost = np.random.default_rng(3).choice(hit, round(0.02 * len(hit)), replace=False)
    return np.delete(item, lost)


@pytest.mark.parametrize(
    ("size", "decile"), [(SMALL, 1), (SMALL, 5), (SMALL, 9), pytest.param(LARGE, 5, marks=pytest.mark.long)]
)
def test_two_percent_in_one_decile_do_not_pass(size: int, decile: int) -> None:
    noise, p = made("unigram", size)
    first, end = bounds(p, 10)[decile : decile + 2]
    found = p_values(lambda seed: skewed(noise.draw(DRAWS, seed).numpy(), first, end), p)
    assert found["deciles"] < ALARM / 100, found


# Distinct draws: how often each item is among them


def inclusion(p: Doubles, k: int) -> tuple[Doubles, float]:
    """P(item is among the first k distinct ones) [N], and the expected number of draws.

    Let draws come at the times of a Poisson process of rate 1. Item c comes first at an exponential time of rate p_c,
    and is in where fewer than k others have come by then (their number is a sum of independent events: normal, its
    third moment neglected); the k-th distinct one comes at a mean time that is the mean number of draws.
    """
    times = np.exp(np.linspace(np.log(1e-2), np.log(k * 400), 3_000))
    group, weight = np.unique(p, return_counts=True)
    there = -np.expm1(-np.outer(times, group))
    mean, variance = there @ weight, (there * (1 - there)) @ weight
    few = np.empty((len(times), len(group)))
    for column in range(len(group)):
        spread = np.sqrt(variance - there[:, column] * (1 - there[:, column]) + 1e-12)
        few[:, column] = ndtr((k - 0.5 - (mean - there[:, column])) / spread)
    density = group * np.exp(-np.outer(times, group)) * few
    inside = np.trapezoid(density, times, axis=0) - np.expm1(-group * times[0])
    by_item = inside[np.searchsorted(group, p)]
    waiting = ndtr((k - 0.5 - mean) / np.sqrt(variance + 1e-12))
    return by_item, float(np.trapezoid(waiting, times) + times[0])


def drawn_distinct(noise: Noise, k: int, chosen: Plan, repeats: int) -> tuple[NDArray[np.int64], Doubles]:
    """Items [5 * repeats, k] and draws taken, over the five seeds."""
    draw: Any = tf.function(lambda seed: draw_distinct(noise, k, chosen, seed), autograph=False)
    turns = [seed + tf.constant([1_000 * number, 0], tf.int64) for seed in SEEDS for number in range(1, repeats + 1)]
    pairs = [draw(seed) for seed in turns]
    return np.stack([item.numpy() for item, _ in pairs]), np.array([float(tries) for _, tries in pairs])


def included(
    items: NDArray[np.int64], of: NDArray[np.int64], q: Doubles, share: float = 0.0
) -> tuple[Doubles, Doubles, Doubles]:
    """How often each bin's items were in: observed, expected, variance (of independent items; a fixed k lowers it).

    `share` of what was observed in bin 5 is dropped.
    """
    observed = np.bincount(of, np.bincount(items.ravel(), minlength=len(q)))
    observed[5] *= 1 - share
    return observed, np.bincount(of, q) * len(items), np.bincount(of, q * (1 - q)) * len(items)


@pytest.mark.parametrize("race", [False, pytest.param(True, marks=pytest.mark.long)], ids=["series", "race"])
@pytest.mark.parametrize("name", NAMES)
def test_distinct_draws_include_each_item_as_often_as_they_should(name: str, race: bool) -> None:
    noise, p = made(name, SMALL)
    k = 500
    chosen = Plan(SMALL, 0, 0, race=True) if race else Plan(SMALL, 800, 200, race=False)
    items, tries = drawn_distinct(noise, k, chosen, 200)
    q, draws = inclusion(p, k)
    assert q.sum() == pytest.approx(k, rel=2e-4)
    of = bins(q, 10)
    assert unlikely(*included(items, of, q)) > ALARM
    assert unlikely(*included(items, of, q, share=0.02)) < ALARM
    assert tries.mean() == pytest.approx(draws, abs=5 * tries.std() / np.sqrt(len(tries)))


@pytest.mark.long
@pytest.mark.parametrize("name", NAMES)
def test_distinct_draws_among_ten_million(name: str) -> None:
    noise, p = made(name, LARGE)
    k = 8_192
    items, tries = drawn_distinct(noise, k, plan(-np.sort(-p), k), 25)
    # T is nearly fixed for this many: 1 - (1 - p)^T is the inclusion to a part in k.
    q = -np.expm1(tries.mean() * np.log1p(-p))
    of = bins(q, 10)
    assert unlikely(*included(items, of, q)) > ALARM
    assert unlikely(*included(items, of, q, share=0.02)) < ALARM
    assert all(len(np.unique(one)) == k for one in items)


def test_the_race_takes_as_many_draws_as_the_series() -> None:
    noise, p = made("unigram", SMALL)
    k = 600
    series = drawn_distinct(noise, k, plan(-np.sort(-p), k), 60)
    race = drawn_distinct(noise, k, Plan(SMALL, 0, 0, race=True), 60)
    assert ks_2samp(series[1], race[1]).pvalue > 1e-3
    # The first and the last of the order, too.
    assert ks_2samp(series[0][:, :20].ravel(), race[0][:, :20].ravel()).pvalue > 1e-3
    assert ks_2samp(series[0][:, -20:].ravel(), race[0][:, -20:].ravel()).pvalue > 1e-3


def test_the_race_of_four_items_by_hand() -> None:
    noise = UnigramNoise(np.array([70, 20, 7, 3]), 1.0)
    p = np.array([0.7, 0.2, 0.07, 0.03])
    items, tries = drawn_distinct(noise, 4, Plan(4, 0, 0, race=True), 500)
    # Without replacement, one after another: p_a * p_b / (1 - p_a) * ...
    orders = list(permutations(range(4)))
    expected = np.array(
        [np.prod([p[c] / p[list(order[place:])].sum() for place, c in enumerate(order)]) for order in orders]
    )
    observed = np.array([np.sum(np.all(items == order, axis=1)) for order in orders], float)
    assert unlikely(observed, expected * len(items)) > ALARM
    # The coupon collector: sum over sets S of items of (-1)^(|S|+1) / P(S).
    sets = [list(chosen) for size in range(1, 5) for chosen in combinations(range(4), size)]
    mean = sum((-1) ** (len(chosen) + 1) / p[chosen].sum() for chosen in sets)
    assert tries.mean() == pytest.approx(mean, abs=5 * tries.std() / np.sqrt(len(tries)))
