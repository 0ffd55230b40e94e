"""The bootstrap against a loop over the same draws and against the known error of a mean."""

import numpy as np
import pytest

from pipelines.rankers import bootstrap


def test_replicates_are_means_of_resampled_users(monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.random.default_rng(1).random((7, 2))
    draws = np.random.default_rng(3)
    expected = np.stack([values[draws.integers(7, size=7)].mean(axis=0) for _ in range(50)])
    whole = bootstrap.bootstrap(values, ["a", "b"], resamples=50, seed=3)
    np.testing.assert_allclose(whole.replicates, expected)
    monkeypatch.setattr(bootstrap, "_BLOCK", 14)
    blocked = bootstrap.bootstrap(values, ["a", "b"], resamples=50, seed=3)
    np.testing.assert_allclose(blocked.replicates, expected)


def test_interval_agrees_with_the_normal_error_of_a_mean() -> None:
    values = np.random.default_rng(0).random((4_000, 1))
    found = bootstrap.bootstrap(values, ["a"], resamples=4_000).estimate("a")
    error = 1.96 * values.std() / np.sqrt(len(values))
    assert found["value"] == pytest.approx(values.mean())
    # 4000 replicates give the 2.5 % quantile within about 3 % of its distance from the mean.
    assert found["value"] - found["low"] == pytest.approx(error, rel=0.1)
    assert found["high"] - found["value"] == pytest.approx(error, rel=0.1)


def test_difference_is_paired() -> None:
    noise = np.random.default_rng(0).random(200)
    values = np.stack([noise, noise - 0.25], axis=1)
    both = bootstrap.bootstrap(values, ["a", "b"])
    assert both.difference("a", "b") == pytest.approx({"value": 0.25, "low": 0.25, "high": 0.25})
    assert both.estimate("a")["high"] - both.estimate("a")["low"] > 0.01


def test_ratio_of_means() -> None:
    values = np.array([[1.0, 4.0], [2.0, 8.0], [4.0, 16.0]])
    both = bootstrap.bootstrap(values, ["a", "b"])
    assert both.ratio("a", "b") == pytest.approx({"value": 0.25, "low": 0.25, "high": 0.25})
    assert bootstrap.bootstrap(np.array([[1.0, 0.0]]), ["a", "b"]).ratio("a", "b") is None
    # A resample of the last two users alone has nothing to divide by.
    sparse = np.array([[1.0, 1.0], [1.0, 0.0], [0.0, 0.0]])
    assert bootstrap.bootstrap(sparse, ["a", "b"]).ratio("a", "b") is None


def test_the_interval_of_a_ratio_is_that_of_the_ratios_of_the_resamples() -> None:
    values = np.random.default_rng(0).random((500, 2))
    draws = np.random.default_rng(3)
    means = np.stack([values[draws.integers(500, size=500)].mean(axis=0) for _ in range(200)])
    low, high = np.percentile(means[:, 0] / means[:, 1], [2.5, 97.5])
    value = values[:, 0].mean() / values[:, 1].mean()
    found = bootstrap.bootstrap(values, ["a", "b"], resamples=200, seed=3).ratio("a", "b")
    assert found == pytest.approx({"value": value, "low": low, "high": high})
    assert low < value < high


def test_same_seed_same_interval_other_seed_another() -> None:
    values = np.random.default_rng(0).random((50, 1))
    once, again = (bootstrap.bootstrap(values, ["a"], seed=5).estimate("a") for _ in range(2))
    assert once == again
    assert bootstrap.bootstrap(values, ["a"], seed=6).estimate("a")["low"] != once["low"]


def test_one_user_has_no_spread() -> None:
    assert bootstrap.bootstrap(np.array([[0.5]]), ["a"]).estimate("a") == {"value": 0.5, "low": 0.5, "high": 0.5}
