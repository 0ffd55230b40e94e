"""iALS beside a slow solver written from its loss, and how its settings are chosen."""

from itertools import islice, pairwise

import numpy as np
import pytest
import scipy.sparse as sp

from benchmarks.baselines import ials
from benchmarks.baselines.ials import Ials
from benchmarks.baselines.tuned import Penalty, climb

USERS, ITEMS, D = 12, 9, 3
SETTINGS = Ials(a0=0.2, reg=0.05, dimension=D, dtype=np.float64)


def taken_by() -> np.ndarray:
    """[users, items] what was taken; user 3 took nothing, user 5 everything."""
    dense = (np.random.default_rng(1).random((USERS, ITEMS)) < 0.4).astype(float)
    dense[3], dense[5] = 0, 1
    return dense


def solved(dense: np.ndarray, vectors: np.ndarray) -> np.ndarray:
    """Each row's vector where the gradient of the loss is zero, pair by pair."""
    found = np.zeros((len(dense), D))
    for row, wanted in enumerate(dense):
        left, right = np.zeros((D, D)), np.zeros(D)
        for take, vector in zip(wanted, vectors, strict=True):
            left += (take + SETTINGS.a0) * np.outer(vector, vector)
            right += take * vector
        left += SETTINGS.reg * (wanted.sum() + SETTINGS.a0 * len(vectors)) * np.eye(D)
        found[row] = np.linalg.solve(left, right)
    return found


def loss(dense: np.ndarray, users: np.ndarray, items: np.ndarray) -> float:
    total = 0.0
    for u, w in enumerate(users):
        total += SETTINGS.reg * (dense[u].sum() + SETTINGS.a0 * ITEMS) * (w @ w)
        for i, h in enumerate(items):
            total += dense[u, i] * (w @ h - 1) ** 2 + SETTINGS.a0 * (w @ h) ** 2
    for i, h in enumerate(items):
        total += SETTINGS.reg * (dense[:, i].sum() + SETTINGS.a0 * USERS) * (h @ h)
    return total


@pytest.mark.parametrize("numbers", [ials.BATCH_NUMBERS, 40], ids=["all at once", "few rows at once"])
def test_a_step_solves_each_row_exactly(monkeypatch: pytest.MonkeyPatch, numbers: int) -> None:
    monkeypatch.setattr(ials, "BATCH_NUMBERS", numbers)
    dense, items = taken_by(), np.random.default_rng(2).normal(size=(ITEMS, D))
    np.testing.assert_allclose(SETTINGS.step(sp.csr_array(dense), items), solved(dense, items), atol=1e-9)


def test_sweeps_alternate_and_lower_the_loss() -> None:
    dense = taken_by()
    taken = sp.csr_array(dense)
    sweeps = list(islice(SETTINGS.sweeps(taken), 4))
    losses = [loss(dense, *each) for each in sweeps]
    assert losses == sorted(losses, reverse=True) and losses[0] > losses[-1]
    for (users, _), (later, items) in pairwise(sweeps):
        np.testing.assert_allclose(items, solved(dense.T, users), atol=1e-9)
        np.testing.assert_allclose(later, solved(dense, items), atol=1e-9)


def test_a_singular_matrix_is_told() -> None:
    with pytest.raises(ValueError, match="reg 0: a matrix is not positive definite; use a larger reg"):
        Ials(a0=0.0, reg=0.0, dimension=D).step(sp.csr_array(np.eye(ITEMS)), np.ones((ITEMS, D)))


def test_a_climb_ends_where_no_step_is_better() -> None:
    ladder = (1.0, 2.0, 4.0, 8.0, 16.0)
    asked: list[float] = []

    def value(each: Penalty) -> float:
        asked.append(each.penalty)
        return -abs(each.penalty - 7)

    best, values = climb(Penalty(2.0), {"penalty": ladder}, value)
    assert best == Penalty(8.0)
    assert asked == [each.penalty for each in values] == [2.0, 4.0, 8.0, 16.0]
