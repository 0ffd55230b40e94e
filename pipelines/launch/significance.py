"""Tests of paired differences: sign flips, Holm's correction, what could have been shown, the spread over seeds.

Takes differences per user, or figures per seed. Of figures that cannot be paired, the interval of their difference.
"""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from pipelines.rankers.bootstrap import Estimate

DRAWS = 10_000
LEVEL = 0.05
# 1.96 + 0.84: a true difference of this many standard errors is shown on 80 of 100 test sets at the 5 % level.
DETECTABLE = 2.8
# Per user values are float32: sums that are equal in truth differ by less than this share of all absolute values.
_ROUNDING = 1e-7
_BLOCK = 4_000_000  # signs held at once, 32 MB

Floats = NDArray[np.float64]


def difference(one: Estimate, other: Estimate) -> Estimate:
    """The interval of a difference from the intervals of both, as if they were of different users.

    It is wider than the paired one where both models please the same users. Source: Zou & Donner, Statistics in
    Medicine 27, 2008 (method of variance estimates recovery).
    """
    value = one["value"] - other["value"]
    below = math.hypot(one["value"] - one["low"], other["high"] - other["value"])
    above = math.hypot(one["high"] - one["value"], other["value"] - other["low"])
    return {"value": value, "low": value - below, "high": value + above}


def sign_flip_p(differences: Floats, *, draws: int = DRAWS, seed: int = 0) -> float:
    """Tests whether paired differences have mean 0: the two-sided p-value of the randomisation test by sign flips.

    If the two sides were alike, each user's difference could as well have had the other sign. The p-value is the share
    of sign patterns whose mean is at least as far from 0 as the observed one: of all patterns if there are at most
    `draws`, else of random ones, the observed one counted among them.
    Source: Fisher, The Design of Experiments, 1935, section 21; Phipson & Smyth 2010 for the one that is counted.

    Args:
        differences: [users].
        draws: number of random patterns.
        seed: of the patterns.
    """
    # A difference of 0 has no sign: without these users the p-value is the same.
    some = differences[differences != 0]
    exact = len(some) <= np.log2(draws)
    total = some.sum()
    limit = abs(total) - _ROUNDING * np.abs(some).sum()
    patterns = _all_patterns(len(some)) if exact else _random_patterns(len(some), draws, seed)
    reached = sum(int((np.abs(2 * (positive @ some) - total) >= limit).sum()) for positive in patterns)
    return reached / 2 ** len(some) if exact else (reached + 1) / (draws + 1)


def _all_patterns(users: int) -> Iterator[Floats]:
    yield (np.arange(2**users)[:, None] >> np.arange(users) & 1).astype(np.float64)


def _random_patterns(users: int, draws: int, seed: int) -> Iterator[Floats]:
    generator = np.random.default_rng(seed)
    rows = max(1, _BLOCK // users)
    for start in range(0, draws, rows):
        block = min(rows, draws - start)
        bits = np.frombuffer(generator.bytes(-(-block * users // 8)), np.uint8)
        yield np.unpackbits(bits, count=block * users).reshape(block, users).astype(np.float64)


def holm(p: Floats) -> Floats:
    """Adjusts p-values so that the chance of any false finding among them is at most the level, [M].

    Source: Holm, A simple sequentially rejective multiple test procedure, 1979.
    """
    order = np.argsort(p, kind="stable")
    adjusted = np.empty(len(p))
    adjusted[order] = np.minimum(np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1)), 1)
    return adjusted


def detectable(differences: Floats) -> Floats:
    """The smallest true differences that such a test set shows four times out of five at the 5 % level, unadjusted.

    Args:
        differences: [users, M], at least two users.

    Returns:
        [M] 2.8 times the standard error of the mean difference.
    """
    errors: Floats = differences.std(axis=0, ddof=1) / np.sqrt(len(differences))
    return DETECTABLE * errors


def seed_spread(baseline: Floats, other: Floats) -> dict[str, Any] | None:
    """Compares two recipes by what their seeds reach: Student's t with a common variance.

    Args:
        baseline: [S] the figure of each seed.
        other: [T] likewise.

    Returns:
        ``standard_deviation`` of seeds of one recipe, ``low`` and ``high`` of the 95 % interval of the mean difference,
        ``beyond``: whether it excludes 0. None if neither side has two seeds.
    """
    freedom = len(baseline) + len(other) - 2
    if freedom < 1:
        return None
    squares = sum(float(((side - side.mean()) ** 2).sum()) for side in (baseline, other))
    deviation = float(np.sqrt(squares / freedom))
    reach = float(stats.t.ppf(1 - LEVEL / 2, freedom)) * deviation * np.sqrt(1 / len(baseline) + 1 / len(other))
    difference = float(other.mean() - baseline.mean())
    return {
        "standard_deviation": deviation,
        "low": difference - reach,
        "high": difference + reach,
        "beyond": bool(abs(difference) > reach),
    }
