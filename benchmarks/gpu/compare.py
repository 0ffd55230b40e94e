"""How far a cell ends from what TensorFlow made of it. No TensorFlow and no JAX."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Arrays = list[NDArray[Any]]


class Outcome(NamedTuple):
    """What the steps of a cell came to.

    Attributes:
        losses: [S].
        gradients: of the first step, of each variable that has one.
        state: what the steps write, after the last: tables, moments of Adam, counts and lists of samplers.
    """

    losses: NDArray[np.float32]
    gradients: Arrays
    state: Arrays


class Distance(NamedTuple):
    """How far two outcomes of one cell are apart; 0 where they agree, infinite where one has NaN.

    Attributes:
        losses: largest difference of a loss, as a share of the largest loss.
        gradients: ``|a - b| / |b|`` by the Euclidean norm, the largest of all variables.
        state: ``|a - b| / |b - start|``: as a share of how far the steps moved an array of floats, the largest.
        integers: how many arrays of integers differ. None may: then every draw was the same, too.
    """

    losses: float
    gradients: float
    state: float
    integers: int


# JAX on a CPU comes to 9e-7, 1e-6 and 4e-5: sums in another order change a gradient by a few times float32's 6e-8.
# TF32, with 10 bits, would change it by about 5e-4, another draw by far more. The state differs by more than the
# gradients: where one is nearly 0, Adam divides rounding by rounding.
MOST = Distance(losses=5e-5, gradients=5e-5, state=1e-3, integers=0)


def distance(found: Outcome, other: Outcome, start: Arrays) -> Distance:
    """How far `found` is from `other`; both began at `start`, the state before the first step."""
    changes = list(zip(found.state, other.state, start, strict=True))
    return Distance(
        losses=share(np.abs(found.losses - other.losses).max(), np.abs(other.losses).max()),
        gradients=max(share(_norm(a - b), _norm(b)) for a, b in zip(found.gradients, other.gradients, strict=True)),
        state=max(share(_norm(a - b), _norm(b - begin)) for a, b, begin in changes if b.dtype.kind == "f"),
        integers=sum(not np.array_equal(a, b) for a, b, _ in changes if b.dtype.kind != "f"),
    )


def near(found: Distance) -> bool:
    """Whether every distance is within `MOST`."""
    return all(one <= most for one, most in zip(found, MOST, strict=True))


def _norm(values: NDArray[Any]) -> float:
    return float(np.linalg.norm(np.asarray(values, np.float64)))


def share(part: float, whole: float) -> float:
    """`part` / `whole`: 0 where both are 0, infinite where only `whole` is or one of them is not finite."""
    if not np.isfinite([part, whole]).all():
        return float("inf")
    return float(part / whole) if whole else float("inf") if part else 0.0
