"""What a place in a list in the order of time weighs: the newest end R times the oldest, those between by R^p."""

import math
from typing import Any


def recency_weight(place: Any, recency: float) -> Any:
    """``R^p ln R / (R - 1)``, whose mean over p from 0 to 1 is 1.

    Args:
        place: p of each value, 0 (oldest) to 1 (newest), an array or a tensor of any shape.
        recency: R, above 1.
    """
    return recency**place * (math.log(recency) / (recency - 1))
