"""Exact top-k of many queries against a full sort: ties, seen items, too few items, sizes that do not fit."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from towers.evaluation import top_k as module
from towers.evaluation.top_k import top_k

small = st.integers(-2, 2)


def sorted_rows(queries: np.ndarray, items: np.ndarray, k: int, seen: list[list[int]]) -> list[list[int]]:
    """The definition: all dot products of one query, sorted; equal ones by row, seen ones left out, filled with -1."""
    lists = []
    for query, hidden in zip(queries, seen, strict=True):
        left = [row for row in range(len(items)) if row not in hidden]
        best = sorted(left, key=lambda row: (-float(query @ items[row]), row))[:k]
        lists.append(best + [-1] * (k - len(best)))
    return lists


def flat(seen: list[list[int]]) -> tuple[np.ndarray, np.ndarray]:
    offsets = np.concatenate([[0], np.cumsum([len(rows) for rows in seen])]).astype(np.int64)
    return offsets, np.array([row for rows in seen for row in rows], np.int32)


@given(data=st.data(), k=st.integers(1, 12), count=st.integers(1, 30), asked=st.integers(0, 5))
@settings(max_examples=50)
def test_equals_a_full_sort_on_ties_blocks_and_seen_items(data: st.DataObject, k: int, count: int, asked: int) -> None:
    draw = data.draw
    items = np.array(draw(st.lists(st.tuples(small, small), min_size=count, max_size=count)), np.float32)
    queries = np.array(draw(st.lists(st.tuples(small, small), min_size=asked, max_size=asked)), np.float32)
    queries = queries.reshape(-1, 2)
    seen = draw(st.lists(st.lists(st.integers(0, count - 1), max_size=count), min_size=asked, max_size=asked))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "QUERIES", draw(st.integers(1, 6)))
        patch.setattr(module, "ITEMS", draw(st.integers(1, 31)))
        patch.setattr(module, "_merged", MERGED[group := draw(st.sampled_from([1, 3, 8]))])
        patch.setattr(module, "GROUP", group)
        found = top_k(queries, items, k, *flat(seen))
    assert found.dtype == np.int32
    assert found.tolist() == sorted_rows(queries, items, k, seen)


# A graph holds the size of its groups, so each size has graphs of its own.
MERGED = {
    size: module.tf.function(module._merged.python_function, input_signature=module.SIGNATURE, autograph=False)
    for size in (1, 3, 8)
}


@pytest.mark.parametrize("k", [1, 20, 200])
def test_equals_a_full_sort_at_the_size_of_its_own_groups(k: int) -> None:
    rng = np.random.default_rng(k)
    # Whole numbers: every sum is exact, in any order, and many scores are equal.
    queries, items = rng.integers(-3, 4, (9, 6)).astype(np.float32), rng.integers(-3, 4, (1_000, 6)).astype(np.float32)
    seen = [rng.choice(1_000, size).tolist() for size in (0, 3, 400, 8, 1, 0, 990, 5, 30)]
    assert top_k(queries, items, k, *flat(seen)).tolist() == sorted_rows(queries, items, k, seen)


def test_rows_that_are_none_hide_nothing() -> None:
    found = top_k(
        np.ones((1, 1), np.float32), np.array([[1], [2]], np.float32), 2, np.array([0, 2]), np.array([-1, -1])
    )
    assert found.tolist() == [[1, 0]]


def test_no_items_and_no_queries() -> None:
    none = np.zeros(1, np.int64), np.zeros(0, np.int32)
    assert top_k(np.zeros((0, 2), np.float32), np.ones((3, 2), np.float32), 2, *none).shape == (0, 2)
    offsets = np.zeros(3, np.int64)
    assert (
        top_k(np.ones((2, 2), np.float32), np.zeros((0, 2), np.float32), 2, offsets, none[1]).tolist() == [[-1] * 2] * 2
    )


def test_the_best_may_each_lie_in_a_group_of_their_own() -> None:
    items = np.zeros((6 * module.GROUP, 1), np.float32)
    best = np.arange(5) * module.GROUP + 7
    items[best, 0] = [3, 1, 5, 4, 2]
    found = top_k(np.ones((1, 1), np.float32), items, 5, np.zeros(2, np.int64), np.zeros(0, np.int32))
    assert found[0].tolist() == best[[2, 3, 0, 4, 1]].tolist()
