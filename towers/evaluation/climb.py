"""Climbs to the place where a metric is best, in steps, and tells a gain from chance."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

STEP = 0.1
ERRORS = 2  # standard errors beyond which a gain is no chance


def climb(
    metric: Callable[[float], float], bound: Callable[[float], float], start: float, least: float, most: float
) -> tuple[float, float]:
    """Climbs from `start` in steps of 0.1 while the metric grows, from `least` to `most`.

    Args:
        metric: of a place.
        bound: of a place: what the metric is at most, at less cost; where that is no better, the metric is not asked.
        start: the first place.
        least: the lowest place.
        most: the highest place.

    Returns:
        The best place, and its metric.
    """
    best, value = start, metric(start)
    for direction in (-STEP, STEP):
        while least <= (place := round(best + direction, 6)) <= most and bound(place) > value:
            if (found := metric(place)) <= value:
                break
            best, value = place, found
        if best != start:
            break
    return best, value


def beyond_chance(gains: NDArray[np.float64]) -> bool:
    """Whether the mean of users' gains [Q], NaN where there is none, is more than two standard errors above 0.

    The gain of one user may always be chance.
    """
    there = gains[~np.isnan(gains)]
    return len(there) > 1 and float(there.mean()) > ERRORS * float(there.std(ddof=1) / np.sqrt(len(there)))
