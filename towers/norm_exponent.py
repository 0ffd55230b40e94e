"""The exponent x of the served item vectors ``v / |v|^x``, as validation chooses it.

In: the metric as a function of x. Out: the best x. Training on the cosine leaves the lengths of the vectors free: an
item's length grows as it is trained on, so it tells of popularity. The cosine (x = 1) throws that away, the dot product
(x = 0) takes it at full strength; what ranks best lies in between, depends on the data, and costs nothing at serving.
"""

from collections.abc import Callable

import numpy as np

from towers.events import Floats
from towers.model import SHORTEST

STEP = 0.1
LEAST, MOST = -1.0, 1.0


def best_exponent(metric: Callable[[float], float], start: float) -> tuple[float, float]:
    """Climbs from `start` in steps of 0.1 for as long as the metric grows.

    Returns:
        The exponent, and the metric there.
    """
    best, value = start, metric(start)
    for direction in (-STEP, STEP):
        while LEAST <= (next_one := round(best + direction, 6)) <= MOST and (found := metric(next_one)) > value:
            best, value = next_one, found
        if best != start:
            break
    return best, value


def scaled(vectors: Floats, exponent: float) -> Floats:
    """``v / |v|^x`` of each row of `vectors` [R, D], as `towers.model.Tower.serve`."""
    norm = np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), SHORTEST)
    out: Floats = (vectors * norm**-exponent).astype(np.float32)
    return out
