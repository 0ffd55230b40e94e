"""Estimates the uncertainty of means by the percentile bootstrap over users, with the same resamples for every column.

Takes one row per user and one column per figure; returns each column's mean and 95 % interval. Since all columns share
their resamples, subtracting the replicates of two columns is the paired bootstrap of their difference.
Source: Efron & Tibshirani, An Introduction to the Bootstrap, 1993, chapter 13.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipelines.console import Advance, no_bar

RESAMPLES = 1_000
LEVEL = 0.95
# Percentiles of resamples of fewer can be too close: of ten users' normal differences with a true mean of 0, one
# interval in ten leaves it out, of five one in six, and of one user every one.
FEWEST = 20
# Resampling counts held at once: 16 MB, so a million users need no more memory than a thousand.
_BLOCK = 2_000_000

Estimate = dict[str, float]


@dataclass(frozen=True)
class Bootstrap:
    """Means over users and their replicates under resampling.

    Attributes:
        names: column -> place.
        means: [M] means over the users.
        replicates: [R, M] means over R resamples of the users.
    """

    names: Mapping[str, int]
    means: NDArray[np.float64]
    replicates: NDArray[np.float64]

    def estimate(self, name: str) -> Estimate:
        """``{"value", "low", "high"}`` of one column."""
        place = self.names[name]
        return _interval(self.means[place], self.replicates[:, place])

    def difference(self, name: str, other: str) -> Estimate:
        """``{"value", "low", "high"}`` of column `name` minus column `other`, paired by user."""
        one, two = self.names[name], self.names[other]
        return _interval(self.means[one] - self.means[two], self.replicates[:, one] - self.replicates[:, two])

    def ratio(self, name: str, other: str) -> Estimate | None:
        """``{"value", "low", "high"}`` of the mean of `name` over the mean of `other`; None if the latter can be 0."""
        one, two = self.names[name], self.names[other]
        if self.means[two] == 0 or not self.replicates[:, two].all():
            return None
        return _interval(self.means[one] / self.means[two], self.replicates[:, one] / self.replicates[:, two])

    def mean(self, name: str, count: str) -> Estimate | None:
        """``{"value", "low", "high"}`` of the mean of what column `name` sums and column `count` counts, by user.

        Resamples in which nothing counts are left out; None if nothing counts at all.
        """
        total, number = self.names[name], self.names[count]
        if self.means[number] == 0:
            return None
        some = self.replicates[:, number] > 0
        value = self.means[total] / self.means[number]
        return _interval(value, self.replicates[some, total] / self.replicates[some, number])


def digits(estimate: Mapping[str, float], least: int) -> int:
    """How many digits a difference needs: `least`, or up to two more where a bound beside 0 would look like 0."""
    bounds = [bound for bound in (estimate["low"], estimate["high"]) if bound]
    return next((each for each in range(least, least + 3) if all(round(bound, each) for bound in bounds)), least)


def texts(estimate: Mapping[str, float], sign: str = "") -> tuple[str, str, str]:
    """Returns value, low and high of a difference as texts; each number gets its sign if `sign` is ``+``."""
    places = digits(estimate, 4)
    # Plus 0.0, because what is rounded to 0 may be "-0.0000".
    value, low, high = (f"{round(estimate[name], places) + 0.0:{sign}.{places}f}" for name in ("value", "low", "high"))
    return value, low, high


def opposite(difference: Mapping[str, float]) -> Estimate:
    """Returns the difference the other way round."""
    return {"value": -difference["value"], "low": -difference["high"], "high": -difference["low"]}


def bootstrap(
    values: NDArray[np.float64],
    names: Sequence[str],
    *,
    resamples: int = RESAMPLES,
    seed: int = 0,
    advance: Advance = no_bar,
) -> Bootstrap:
    """Resamples the users with replacement, `resamples` times.

    Args:
        values: [users, M], at least one user.
        names: [M] column names.
        resamples: number of replicates.
        seed: of the resampling; the same seed and number of users give the same resamples.
        advance: of `pipelines.console.progress`, in resamples.
    """
    replicates = np.zeros((resamples, values.shape[1]))
    for rows, counts in resampled(len(values), resamples, seed=seed):
        replicates[rows] = counts @ values / len(values)
        advance(len(counts))
    means = values.mean(axis=0)
    return Bootstrap({name: place for place, name in enumerate(names)}, means, replicates)


def resampled(
    users: int, resamples: int, *, seed: int = 0, width: int = 1
) -> Iterator[tuple[slice, NDArray[np.float64]]]:
    """Yields blocks of resamples: their places, and how often each user is in each of them, [block, users].

    Args:
        users: number of users.
        resamples: number of resamples.
        seed: the same seed and number of users give the same resamples.
        width: numbers that the caller holds for each resample; more of them make smaller blocks.
    """
    generator = np.random.default_rng(seed)
    rows = max(1, _BLOCK // max(users, width))
    for start in range(0, resamples, rows):
        block = min(rows, resamples - start)
        drawn = generator.integers(users, size=(block, users))
        # How often each user was drawn: a resample's sum is then a matrix product with the values. One resample at a
        # time, because its counts fit in the CPU's cache.
        counts = np.empty((block, users))
        for count, each in zip(counts, drawn, strict=True):
            count[:] = np.bincount(each, minlength=users)
        yield slice(start, start + block), counts


def _interval(value: np.floating[Any], replicates: NDArray[np.float64]) -> Estimate:
    tail = 50 * (1 - LEVEL)
    low, high = np.percentile(replicates, [tail, 100 - tail])
    return {"value": float(value), "low": float(low), "high": float(high)}
