"""Sign flips against enumeration and SciPy, Holm's correction against its procedure, the spread over seeds."""

from fractions import Fraction
from itertools import product
from statistics import stdev

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from pipelines.launch.significance import detectable, holm, seed_spread, sign_flip_p


def enumerated(differences: list[Fraction]) -> Fraction:
    """The share of all sign patterns whose sum is at least as far from 0, in exact arithmetic."""
    sums = [
        abs(sum(sign * each for sign, each in zip(signs, differences, strict=True)))
        for signs in product((1, -1), repeat=len(differences))
    ]
    return Fraction(sum(each >= abs(sum(differences)) for each in sums), len(sums))


@given(st.lists(st.fractions(-1, 1, max_denominator=6), min_size=1, max_size=8))
def test_few_users_give_the_exact_p_value_with_every_tie(differences: list[Fraction]) -> None:
    stored = np.array([float(each) for each in differences], np.float32).astype(np.float64)
    assert sign_flip_p(stored) == float(enumerated(differences))


@pytest.mark.parametrize("users", [3, 9, 12])
def test_few_users_give_what_scipy_gives(users: int) -> None:
    differences = np.random.default_rng(users).normal(0.3, 1, users)
    assert sign_flip_p(differences) == pytest.approx(reference(differences), abs=1e-12)


def reference(differences: np.ndarray) -> float:
    found = stats.permutation_test(
        (differences,),
        lambda sample, axis=-1: np.abs(np.mean(sample, axis=axis)),
        permutation_type="samples",
        alternative="greater",
        n_resamples=np.inf,
    )
    return float(found.pvalue)


def test_random_draws_come_close_to_all_of_them_and_follow_the_seed() -> None:
    differences = np.random.default_rng(5).normal(0.4, 1, 15)
    value, exact = sign_flip_p(differences, seed=1), reference(differences)
    assert abs(value - exact) < 4 * np.sqrt(exact * (1 - exact) / 10_000)
    assert value == sign_flip_p(differences, seed=1)
    assert value != sign_flip_p(differences, seed=2)


def test_the_observed_signs_count_among_the_draws() -> None:
    assert sign_flip_p(np.ones(1_100), draws=99) == 1 / 100


def test_users_without_a_difference_change_nothing() -> None:
    differences = np.random.default_rng(6).normal(0.2, 1, 30)
    assert sign_flip_p(np.concatenate([differences, np.zeros(50)])) == sign_flip_p(differences)
    assert sign_flip_p(np.zeros(50)) == 1


def test_without_a_true_difference_p_values_are_uniform() -> None:
    # The difference of two exponentials is symmetric, but far from normal.
    generator = np.random.default_rng(7)
    differences = generator.exponential(size=(600, 40)) - generator.exponential(size=(600, 40))
    p = np.array([sign_flip_p(each, draws=999, seed=seed) for seed, each in enumerate(differences)])
    assert stats.kstest(p, "uniform").pvalue > 0.01
    assert 0.02 < (p <= 0.05).mean() < 0.08


def test_what_could_have_been_shown_is_shown_four_times_out_of_five() -> None:
    differences = np.random.default_rng(8).normal(2.8 / np.sqrt(100), 1, (1_000, 100))
    shown = [sign_flip_p(each, draws=999, seed=seed) <= 0.05 for seed, each in enumerate(differences)]
    assert 0.76 < np.mean(shown) < 0.84


@given(st.lists(st.lists(st.floats(-1, 1), min_size=3, max_size=3), min_size=2, max_size=9))
def test_what_could_have_been_shown_follows_the_formula(rows: list[list[float]]) -> None:
    expected = [2.8 * stdev(column) / len(rows) ** 0.5 for column in zip(*rows, strict=True)]
    np.testing.assert_allclose(detectable(np.array(rows)), expected, atol=1e-12)


def rejected(p: list[float], level: float) -> list[bool]:
    """Holm's procedure as he wrote it: from the smallest on, until one is above level / what is left."""
    found = [False] * len(p)
    for step, place in enumerate(sorted(range(len(p)), key=p.__getitem__)):
        if p[place] * (len(p) - step) > level:
            break
        found[place] = True
    return found


@given(st.lists(st.floats(0, 1), min_size=1, max_size=10), st.floats(0.001, 0.999))
def test_adjusted_p_values_reject_what_holms_procedure_rejects(p: list[float], level: float) -> None:
    adjusted = holm(np.array(p))
    assert (adjusted <= level).tolist() == rejected(p, level)
    assert all(adjusted >= p) and all(adjusted <= 1)


def test_holm_on_a_worked_example() -> None:
    # R: p.adjust(c(0.01, 0.04, 0.03, 0.005), "holm")
    np.testing.assert_allclose(holm(np.array([0.01, 0.04, 0.03, 0.005])), [0.03, 0.06, 0.06, 0.02])


@pytest.mark.parametrize(("seeds", "others"), [(3, 3), (2, 1), (1, 4)])
def test_the_spread_over_seeds_is_the_interval_of_a_t_test(seeds: int, others: int) -> None:
    generator, beyond = np.random.default_rng(seeds), set()
    baseline, noise = generator.normal(0.1, 0.002, seeds), generator.normal(0.1, 0.002, others)
    for shift in np.linspace(-0.05, 0.05, 101):
        expected = stats.ttest_ind(noise + shift, baseline)
        found = seed_spread(baseline, noise + shift)
        assert found is not None
        interval = expected.confidence_interval(0.95)
        np.testing.assert_allclose([found["low"], found["high"]], [interval.low, interval.high])
        assert found["beyond"] == (expected.pvalue < 0.05)
        beyond.add(found["beyond"])
    assert beyond == {False, True}


def test_one_seed_each_has_no_spread() -> None:
    assert seed_spread(np.array([0.1]), np.array([0.2])) is None
