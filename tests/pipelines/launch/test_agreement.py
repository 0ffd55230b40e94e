"""Overlap and rank-biased overlap against sets and an endless sum; drift against known rotations."""

import tracemalloc

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import ortho_group

from pipelines.launch.agreement import P, drift, list_agreement

LISTS = st.lists(st.integers(0, 9), unique=True, max_size=6)


def padded(items: list[int], k: int) -> np.ndarray:
    return np.array([[*items, *[-1] * (k - len(items))]], np.int32)


def slow(one: list[int], other: list[int]) -> tuple[float, float]:
    """Overlap; the sum (1 - p) p^(d - 1) |common until d| / d over so many depths that the rest is nothing."""
    length = max(len(one), len(other))
    shares = [len({*one[:d]} & {*other[:d]}) / d for d in range(1, length + 1)]
    shares += [shares[-1]] * 1_000
    return shares[length - 1], sum((1 - P) * P**place * share for place, share in enumerate(shares))


@given(LISTS, LISTS)
def test_the_agreement_of_two_lists(one: list[int], other: list[int]) -> None:
    overlap, rbo = list_agreement(padded(one, 6), padded(other, 6))
    if one or other:
        np.testing.assert_allclose([overlap[0], rbo[0]], slow(one, other), atol=1e-9)
    else:
        assert np.isnan(overlap[0]) and np.isnan(rbo[0])


def test_equal_lists_agree_fully_and_strangers_not_at_all() -> None:
    lists = np.array([[3, 1, 2], [4, 5, -1]])
    np.testing.assert_allclose(list_agreement(lists, lists), np.ones((2, 2)))
    np.testing.assert_allclose(list_agreement(lists, lists + 10 * (lists >= 0)), np.zeros((2, 2)), atol=1e-12)


def test_more_users_than_a_block_are_compared_one_by_one() -> None:
    generator = np.random.default_rng(0)
    one, other = (generator.permuted(np.tile(np.arange(12), (2_100, 1)), axis=1)[:, :5] for _ in range(2))
    expected = [slow(first.tolist(), second.tolist()) for first, second in zip(one, other, strict=True)]
    np.testing.assert_allclose(np.transpose(list_agreement(one, other)), expected, atol=1e-9)


def test_memory_does_not_grow_with_the_square_of_the_length() -> None:
    k = 20_000  # whose square is 400 MB of marks alone
    lists = np.stack([np.arange(k, dtype=np.int32), np.arange(k, dtype=np.int32)[::-1]])
    tracemalloc.start()
    try:
        overlap, rbo = list_agreement(lists, lists[::-1])
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert overlap.tolist() == [1.0, 1.0] and rbo[0] == rbo[1] < 1e-3
    assert peak < 50e6


def vectors(seed: int, rows: int, dimension: int = 5) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(rows, dimension)).astype(np.float32)


def test_a_rotation_and_lengths_are_no_drift() -> None:
    items, queries = vectors(1, 30), vectors(2, 20)
    rotation = ortho_group.rvs(5, random_state=3).astype(np.float32)
    found = drift(items, 3 * items @ rotation, queries, queries @ rotation)
    np.testing.assert_allclose([found["items"], found["queries"]], 1, atol=1e-5)


def test_the_item_that_moved_is_found_and_one_without_a_vector_does_not_count() -> None:
    items, queries = vectors(1, 30), vectors(2, 20)
    other = items @ ortho_group.rvs(5, random_state=3).astype(np.float32)
    other[4], other[9] = -other[4], 0
    found = drift(items, other, queries, np.zeros_like(queries))
    assert np.isnan(found["cosines"][9])
    assert np.nanargmin(found["cosines"]) == 4
    assert found["queries"] is None
    np.testing.assert_allclose(found["items"], np.nanmean(found["cosines"]), rtol=1e-6)


def test_the_rotation_is_the_best_one() -> None:
    one, other = vectors(1, 30, 2), vectors(4, 30, 2)
    unit_one, unit_other = (each / np.linalg.norm(each, axis=1, keepdims=True) for each in (one, other))
    best = -1.0
    for angle in np.linspace(0, 2 * np.pi, 20_001):
        turn = np.array([[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]])
        best = max(best, *(float(np.mean((unit_one @ (turn @ flip) * unit_other).sum(1))) for flip in FLIPS))
    np.testing.assert_allclose(drift(one, other, one, other)["items"], best, atol=1e-6)


FLIPS = (np.eye(2), np.diag([1.0, -1.0]))


def test_models_of_two_dimensions_are_compared() -> None:
    items, queries = vectors(1, 30), vectors(2, 20)
    wide = [np.concatenate([np.zeros((len(each), 3), np.float32), each], axis=1) for each in (items, queries)]
    found = drift(items, wide[0], queries, wide[1])
    np.testing.assert_allclose([found["items"], found["queries"]], 1, atol=1e-5)
