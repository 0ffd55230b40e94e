"""Mean and deviation, block by block, against NumPy over all values at once."""

import numpy as np
import pytest

from pipelines.dataset.vocabulary import with_moments
from towers.config.features import NumericFeature, VectorFeature
from towers.features.encoder import FeatureSpec

SIZES = (3, 0, 500, 1)


def test_numbers_of_all_blocks_count_alike() -> None:
    spec = FeatureSpec("price", NumericFeature(kind="numeric"))
    blocks = [np.random.default_rng(n).normal(100 * n, 1 + n, n) for n in SIZES]
    learnt, values = with_moments(spec, blocks), np.concatenate(blocks)
    assert (learnt.mean, learnt.deviation) == pytest.approx((values.mean(), values.std()), rel=1e-12)
    assert learnt.size == 0
    assert with_moments(spec, [np.zeros(0)]) == spec
    # Of equal numbers the mean, and so the deviation, is off by rounding.
    assert with_moments(spec, [np.full(1_000, np.log1p(0.03))]).deviation == 1.0
    # Weight decay leaves dead dimensions of an embedding; float32, in which they are divided, takes these for 0.
    assert with_moments(spec, [np.array([1e-39, 2e-39, 4e-39])]).deviation == 1.0
    assert with_moments(spec, [np.array([1e-30, 2e-30])]).deviation == pytest.approx(0.5e-30)


def test_each_place_of_a_vector_has_its_own_and_a_constant_one_deviates_by_one() -> None:
    spec = FeatureSpec("look", VectorFeature(kind="vector"))
    blocks = [np.random.default_rng(n).normal([0, 5e3, -1, 0], [1, 20, 1e-3, 0], (n, 4)) for n in SIZES]
    for block in blocks:
        block[:, 3] = np.float32(0.1)
    learnt, values = with_moments(spec, blocks), np.concatenate(blocks)
    np.testing.assert_allclose(learnt.mean, values.mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(learnt.deviation, [*values.std(axis=0)[:3], 1.0], rtol=1e-10)
    assert learnt.size == 4
    assert with_moments(spec, [np.zeros((0, 4))]).size == 4
