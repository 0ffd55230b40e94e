"""A limit on the items of one value: against a slow loop over the whole catalogue."""

import itertools
import math
from collections import Counter
from collections.abc import Collection
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.search.diversity import diversify, holding, search_diverse

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


@given(groups=catalogues, most=st.integers(1, 3), k=st.integers(1, 12), split=st.integers(0, 30))
def test_the_best_are_kept_as_the_loop_keeps_them(groups: list[Any], most: int, k: int, split: int) -> None:
    used: Counter[Any] = Counter()
    first = diversify(groups[:split], most, k, used)
    rest = diversify(groups[split:], most, k - len(first), used)
    assert [*first, *(place + min(split, len(groups)) for place in rest)] == loop(groups, most, k)


@pytest.mark.parametrize("ending", ["short", "filled"])
@given(groups=catalogues.filter(len), most=st.integers(1, 3), k=st.integers(1, 12), gone=st.integers(0, 5))
def test_more_is_asked_for_until_k_are_there_or_there_is_no_more(
    ending: str, groups: list[Any], most: int, k: int, gone: int
) -> None:
    """`gone` items are counted in the total but never come back, as with a filter."""
    order = np.random.default_rng(len(groups)).permutation(len(groups))
    asked: list[int] = []
    came: list[int] = []

    def search(number: int, hidden: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
        asked.append(number)
        rows = (order if hidden is None else order[~hidden[order]])[:number].astype(np.int64)
        came.extend(rows.tolist())
        missing = (0, 0 if ending == "short" else number - len(rows))
        return np.pad(rows, missing, constant_values=-1), np.pad(-place_of[rows] * 1.0, missing).astype(np.float32)

    def groups_of(rows: np.ndarray) -> list[Any]:
        assert (rows >= 0).all()
        return [groups[row] for row in rows.tolist()]

    def holders(some: Collection[Any]) -> np.ndarray:
        return np.array([any(holds(group, value) for value in some) for group in groups] + [False] * gone)

    place_of = np.argsort(order)
    rows, scores = search_diverse(search, groups_of, holders, most, k, len(groups) + gone)
    wanted = loop([groups[row] for row in order.tolist()], most, k)
    assert rows.tolist() == order[wanted].tolist()
    assert scores.tolist() == [-place for place in wanted]
    assert asked[0] == min(2 * k, len(groups) + gone) and max(asked) <= len(groups) + gone
    assert len(set(came)) == len(came), "no item comes twice"
    assert all(later <= 2 * earlier for earlier, later in itertools.pairwise(asked))


def test_one_search_is_enough_where_values_differ() -> None:
    asked: list[int] = []

    def search(number: int, hidden: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
        assert hidden is None
        asked.append(number)
        return np.arange(number), np.zeros(number, np.float32)

    rows, _ = search_diverse(search, lambda rows: [f"value {row}" for row in rows], never, 1, 10, 1_000_000)
    assert rows.tolist() == list(range(10)) and asked == [20]


def never(some: Collection[Any]) -> np.ndarray:
    raise AssertionError(f"no value is used up, yet {some} were asked for")


def test_few_values_are_not_looked_for_among_all_items() -> None:
    """Sorted by value, the worst case: 20,000 of one value, then 20,000 of the next; the best of all has none."""
    language = np.repeat(np.arange(10), 20_000)
    language[0] = -1
    looked_at: list[int] = []

    def search(number: int, hidden: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
        rows = np.arange(len(language)) if hidden is None else np.flatnonzero(~hidden)
        return rows[:number], -rows[:number].astype(np.float32)

    def groups_of(rows: np.ndarray) -> list[int | None]:
        looked_at.append(len(rows))
        return [None if value < 0 else value for value in language[rows].tolist()]

    rows, _ = search_diverse(
        search, groups_of, lambda some: np.isin(language, list(some)), most=2, k=100, total=len(language)
    )
    assert rows.tolist() == [0, 1, 2, *(start + n for start in range(20_000, len(language), 20_000) for n in (0, 1))]
    assert len(looked_at) <= 12 and max(looked_at) <= 8_192


def test_what_an_approximate_index_finds_late_stands_in_its_place() -> None:
    searches = iter([([5, 6, 1, 0, 4, 2], [4.0, 3.0, 1.0, 0.9, 0.8, 0.5]), ([7], [2.0])])
    groups = {5: "a", 6: "a", 1: "a", 0: "a", 4: "a", 2: "c", 7: "b"}

    def search(number: int, hidden: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
        rows, scores = next(searches)
        return np.array(rows[:number]), np.array(scores[:number], np.float32)

    def holders(some: Collection[Any]) -> np.ndarray:
        return np.array([groups.get(row) in some for row in range(20)])

    rows, scores = search_diverse(search, lambda rows: [groups[row] for row in rows.tolist()], holders, 1, 3, 20)
    assert rows.tolist() == [5, 7, 2] and scores.tolist() == [4.0, 2.0, 0.5]


@pytest.mark.parametrize(
    ("dtype", "column", "some", "right"),
    [
        (pl.String, ["a", None, "b", "^a$", ""], ["a", "", "gone"], [1, 0, 0, 0, 1]),
        (pl.Int64, [2**53, None, 2**53 + 1], [2**53 + 1], [0, 0, 1]),
        (pl.Float32, [0.1, math.nan, None, -0.0], [float(np.float32(0.1)), 0.0], [1, 0, 0, 1]),
        (pl.List(pl.String), [["a", "b"], [], None, [None, "b"], ["c"]], ["b", "gone"], [1, 0, 0, 1, 0]),
        (pl.String, [], ["a"], []),
        (pl.List(pl.String), [], ["a"], []),
    ],
)
def test_the_holders_of_values_are_found(dtype: Any, column: list[Any], some: list[Any], right: list[int]) -> None:
    found = holding(pl.Series(column, dtype=dtype), set(some))
    assert found.dtype == np.bool_ and found.tolist() == [bool(each) for each in right]
