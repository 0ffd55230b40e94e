"""The weight of the prior climbs from the most likely one to the one that ranks best, if that is more than chance."""

from dataclasses import dataclass

import numpy as np
import pytest
from numpy.typing import NDArray

from towers.evaluation.validation import Ranking, climb
from towers.model.prior import Prior


@pytest.mark.parametrize("start", [-0.35, 0.0, 0.4, 0.9])
def test_it_finds_the_top_of_a_hill_within_a_step(start: float) -> None:
    best, value = climb(lambda x: -((x - 0.42) ** 2), start, -1.0, 1.0)
    assert abs(best - 0.42) <= 0.05 + 1e-9
    assert value == pytest.approx(-((best - 0.42) ** 2))


@pytest.mark.parametrize(("slope", "end"), [(1.0, 1.0), (-1.0, -0.3)])
def test_it_stays_within_its_bounds(slope: float, end: float) -> None:
    assert climb(lambda x: slope * x, 0.2, -0.3, 1.0)[0] == pytest.approx(end)


def test_a_flat_metric_moves_nothing() -> None:
    assert climb(lambda _: 0.5, 0.37, -1.0, 1.0) == (0.37, 0.5)


@dataclass(frozen=True)
class Hill(Ranking):
    """A ranking whose users each get `height - (now - 0.7)^2`, and noise that depends on the weight."""

    noise: float = 0.0
    users: int = 400

    def values(self, exponent: float, prior: Prior | None) -> NDArray[np.float64]:
        assert exponent == 1.0 and prior is not None and (prior.past, prior.length) == (0.2, 0.1)
        rng = np.random.default_rng(round(1e6 * prior.now))
        values = 1 - (prior.now - 0.7) ** 2 + self.noise * rng.normal(size=self.users)
        values[:3] = np.nan  # users without a target
        return values


def hill(noise: float) -> Hill:
    return Hill(None, None, None, None, None, noise=noise)  # type: ignore[arg-type]


def test_the_weight_that_ranks_best_is_kept() -> None:
    prior, value = hill(0.01).climbed(1.0, Prior(0.3, 0.2, 0.1))
    assert (prior.now, prior.past, prior.length) == (pytest.approx(0.7), 0.2, 0.1)
    assert value == pytest.approx(1.0, abs=0.01)


def test_what_chance_alone_may_gain_is_not() -> None:
    start = Prior(0.65, 0.2, 0.1)
    moved = [hill(noise).climbed(1.0, start)[0] != start for noise in np.linspace(2.0, 3.0, 40)]
    assert np.mean(moved) < 0.25  # at two standard errors, of the best of a few
