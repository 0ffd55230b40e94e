"""At most so many items of one value: against a slow loop over the whole catalogue."""

import itertools
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.diversity import diversify, search_diverse

values = st.sampled_from(["a", "b", "c", ""])
single = st.none() | values | st.sampled_from([1, 1.0, 2.5, math.nan])
several = st.none() | st.lists(st.none() | values, max_size=3)
catalogues = st.lists(single, max_size=30) | st.lists(several, max_size=30)


def loop(groups: list[Any], most: int, k: int) -> list[int]:
    """Places kept, by recounting all that was kept for each item: the definition."""
    kept: list[int] = []
    for place, group in enumerate(groups):
        own = group if isinstance(group, list) else [group]
        own = [value for value in own if value is not None and value == value]
        holders = [[other for other in kept if holds(groups[other], value)] for value in own]
        if len(kept) < k and all(len(each) < most for each in holders):
            kept.append(place)
    return kept


def holds(group: Any, value: Any) -> bool:
    return value in group if isinstance(group, list) else bool(group == value)


@given(groups=catalogues, most=st.integers(1, 3), k=st.integers(1, 12), filler=st.integers(0, 3))
def test_the_best_are_kept_as_the_loop_keeps_them(groups: list[Any], most: int, k: int, filler: int) -> None:
    rows = np.array([*range(100, 100 + len(groups)), *[-1] * filler], np.int64)
    scores = np.array([*np.linspace(1, 0, len(groups)), *[-np.inf] * filler], np.float32)
    kept, kept_scores = diversify(rows, scores, [*groups, *["a"] * filler], most, k)
    wanted = loop(groups, most, k)
    assert kept.tolist() == [100 + place for place in wanted]
    np.testing.assert_array_equal(kept_scores, scores[wanted])


@pytest.mark.parametrize("ending", ["short", "filled"])
@given(groups=catalogues.filter(len), most=st.integers(1, 3), k=st.integers(1, 12), gone=st.integers(0, 5))
def test_more_is_asked_for_until_k_are_there_or_there_is_no_more(
    ending: str, groups: list[Any], most: int, k: int, gone: int
) -> None:
    """`gone` items are counted in the total but never come back, as with a filter."""
    order = np.random.default_rng(len(groups)).permutation(len(groups))
    asked: list[int] = []

    def search(number: int) -> tuple[np.ndarray, np.ndarray]:
        asked.append(number)
        rows = order[:number].astype(np.int64)
        missing = (0, 0 if ending == "short" else number - len(rows))
        return np.pad(rows, missing, constant_values=-1), np.pad(-rows * 1.0, missing).astype(np.float32)

    def groups_of(rows: np.ndarray) -> list[Any]:
        assert (rows >= 0).all()
        return [groups[row] for row in rows.tolist()]

    rows, scores = search_diverse(search, groups_of, most, k, len(groups) + gone)
    wanted = [int(order[place]) for place in loop([groups[row] for row in order.tolist()], most, k)]
    assert rows.tolist() == wanted
    assert scores.tolist() == [-row for row in wanted]
    assert asked[0] == min(2 * k, len(groups) + gone) and max(asked) <= len(groups) + gone
    assert sum(number > len(groups) for number in asked) <= 1  # fewer than asked for: there are no more
    assert all(later <= 2 * earlier for earlier, later in itertools.pairwise(asked))


def test_one_search_is_enough_where_values_differ() -> None:
    asked: list[int] = []

    def search(number: int) -> tuple[np.ndarray, np.ndarray]:
        asked.append(number)
        return np.arange(number), np.zeros(number, np.float32)

    rows, _ = search_diverse(search, lambda rows: [f"value {row}" for row in rows], 1, 10, 1_000_000)
    assert rows.tolist() == list(range(10)) and asked == [20]
