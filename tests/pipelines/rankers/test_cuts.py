"""The first numbers of served vectors; tests/pipelines/bundles/test_export.py compares a whole report of them."""

import numpy as np
import pytest

from pipelines.rankers.cuts import first_numbers


@pytest.mark.parametrize("exponent", [-0.5, 0.0, 0.5, 1.0])
def test_first_numbers_of_served_vectors_are_those_of_a_smaller_model(exponent: float) -> None:
    raw = np.random.default_rng(3).normal(size=(20, 6))
    served = np.array([vector / np.linalg.norm(vector) ** exponent for vector in raw], np.float32)
    wanted = [vector[:2] / np.linalg.norm(vector[:2]) ** exponent for vector in raw]
    np.testing.assert_allclose(first_numbers(served, 2, exponent), wanted, rtol=1e-5)
    assert not first_numbers(np.float32([[0, 0, 1], [0, 0, 0]]), 2, exponent).any()
