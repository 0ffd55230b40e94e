"""How many draws it takes until k are distinct, known before drawing.

In: the probabilities of all items. Out: the `Plan` for drawing k of them.
"""

import math

import numpy as np
from numpy.typing import NDArray

from towers.samplers.distinct import Plan

Doubles = NDArray[np.float64]
# Items that are looked at one by one, and the growth of the groups of the others.
_SINGLE, _GROWTH = 4_096, 1.01
# A draw costs about what an item of the race does.
_RACE_FROM = 2


def plan(p: Doubles, count: int) -> Plan:
    """How to draw `count` distinct items.

    The first round is so long that it mostly finds them: the number of distinct items has a variance below
    ``sum Q (1 - Q)``, and 4 standard deviations are allowed for.

    Args:
        p: [N] probabilities, falling.
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
    """The T for which ``sum_c 1 - (1 - p_c)^T`` is `distinct`, which is below N."""
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
    """Mean probability and size of groups of neighbours: ten million items take no longer than a few thousand."""
    size = len(p)
    steps = _SINGLE * _GROWTH ** np.arange(1, max(1, math.ceil(math.log(max(size / _SINGLE, 1), _GROWTH)) + 1))
    edges = np.unique(np.concatenate([np.arange(min(size, _SINGLE)), steps[steps < size].astype(np.int64)]))
    weight = np.diff(np.concatenate([edges, [size]])).astype(np.float64)
    return np.add.reduceat(p, edges) / weight, weight
