"""The learning rate of each step against Keras's schedules, and by hand where Keras has none."""

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from towers.config.sections import OptimizerConfig
from towers.training.optimizers import rate_share


def shares(steps: int, upto: int, **settings: Any) -> list[float]:
    config = OptimizerConfig(**settings)
    return [float(rate_share(config, steps, tf.constant(t, tf.int64))) for t in range(upto)]


@pytest.mark.parametrize("final", [0.0, 0.25])
def test_cosine_and_linear_are_keras_s(final: float) -> None:
    cosine = tf.keras.optimizers.schedules.CosineDecay(1.0, 17, alpha=final)
    linear = tf.keras.optimizers.schedules.PolynomialDecay(1.0, 17, final)
    for name, keras in (("cosine", cosine), ("linear", linear)):
        right = [float(keras(t)) for t in range(21)]  # past the end, too
        np.testing.assert_allclose(shares(17, 21, schedule=name, final_share=final), right, rtol=1e-5, atol=1e-7)


def test_the_rate_rises_first_as_keras_s_does() -> None:
    keras = tf.keras.optimizers.schedules.CosineDecay(0.0, 12, warmup_target=1.0, warmup_steps=5)
    right = [float(keras(t)) for t in range(20)]
    np.testing.assert_allclose(shares(17, 20, schedule="cosine", warmup_steps=5), right, rtol=1e-5, atol=1e-7)


def test_a_constant_rate_rises_too_and_then_stays() -> None:
    assert shares(9, 4) == [1, 1, 1, 1]
    np.testing.assert_allclose(shares(9, 7, warmup_steps=4), [0, 0.25, 0.5, 0.75, 1, 1, 1])


def test_a_warm_up_longer_than_the_run_only_rises() -> None:
    np.testing.assert_allclose(shares(3, 3, schedule="linear", warmup_steps=4), [0, 0.25, 0.5])
