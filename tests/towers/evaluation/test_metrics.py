"""Metrics against values computed by hand and against slow loops from the formulas."""

import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from towers.evaluation import metrics

# Three queries: targets {5, 7, 9} with hits at ranks 2 and 4; targets {1}, no hit; no target at all.
LISTS = np.array([[3, 5, 8, 7], [2, 3, 4, -1], [1, 2, 3, 4]])
OFFSETS = np.array([0, 3, 4, 4])
ITEMS = np.array([5, 7, 9, 1])
COUNTS = np.diff(OFFSETS)


def test_hits_by_hand() -> None:
    expected = [[False, True, False, True], [False] * 4, [False] * 4]
    assert metrics.hits(LISTS, OFFSETS, ITEMS).tolist() == expected


@pytest.mark.parametrize(
    ("name", "k", "first", "second"),
    [
        ("recall", 2, 1 / 3, 0.0),
        ("recall", 4, 2 / 3, 0.0),
        ("recall", 10, 2 / 3, 0.0),
        # Two hits; three targets fit into four places, but only two into two.
        ("capped_recall", 4, 2 / 3, 0.0),
        ("capped_recall", 2, 1 / 2, 0.0),
        ("hit_rate", 1, 0.0, 0.0),
        ("hit_rate", 2, 1.0, 0.0),
        ("mrr", 1, 0.0, 0.0),
        ("mrr", 4, 1 / 2, 0.0),
        # log2(3) = 1.5849625, log2(5) = 2.3219281. DCG@4 = 1/1.5849625 + 1/2.3219281 = 1.0616064;
        # IDCG over min(4, 3) places = 1 + 0.6309298 + 0.5 = 2.1309298; their ratio is 0.4981888.
        ("ndcg", 4, 0.4981888, 0.0),
        # DCG@2 = 0.6309298, IDCG@2 = 1.6309298.
        ("ndcg", 2, 0.3868528, 0.0),
        ("precision", 2, 1 / 2, 0.0),
        ("precision", 4, 1 / 2, 0.0),
        ("precision", 10, 1 / 5, 0.0),
        # Hits at ranks 2 and 4 of three targets: (1/2 + 2/4) / min(4, 3).
        ("map", 4, 1 / 3, 0.0),
        ("map", 2, 1 / 4, 0.0),
    ],
)
def test_metrics_by_hand(name: str, k: int, first: float, second: float) -> None:
    found = metrics.METRICS[name](metrics.hits(LISTS, OFFSETS, ITEMS), COUNTS, k)
    assert found[:2] == pytest.approx([first, second], abs=1e-6)
    assert np.isnan(found[2])


def slow(name: str, ranking: list[int], targets: list[int], k: int) -> float:
    if not targets:
        return float("nan")
    ranks = [rank for rank, item in enumerate(ranking[:k], start=1) if item in targets]
    if name == "recall":
        return len(ranks) / len(targets)
    if name == "capped_recall":
        return len(ranks) / min(len(targets), k)
    if name == "hit_rate":
        return float(len(ranks) > 0)
    if name == "mrr":
        return 1 / ranks[0] if ranks else 0.0
    if name == "precision":
        return len(ranks) / k
    if name == "map":
        return sum(hit / rank for hit, rank in enumerate(ranks, start=1)) / min(k, len(targets))
    ideal = sum(1 / np.log2(rank + 1) for rank in range(1, min(k, len(targets)) + 1))
    return float(sum(1 / np.log2(rank + 1) for rank in ranks) / ideal)


@st.composite
def worlds(draw: st.DrawFn) -> tuple[list[list[int]], list[list[int]], int]:
    items = st.integers(0, 12)
    width = draw(st.integers(0, 8))
    queries = draw(st.integers(1, 6))
    lists = [draw(st.lists(items, max_size=width, unique=True)) for _ in range(queries)]
    targets = [draw(st.lists(items, max_size=6, unique=True)) for _ in range(queries)]
    return [each + [-1] * (width - len(each)) for each in lists], targets, draw(st.integers(1, 10))


@given(worlds())
def test_metrics_equal_the_slow_loop(world: tuple[list[list[int]], list[list[int]], int]) -> None:
    lists, targets, k = world
    offsets = np.cumsum([0, *[len(each) for each in targets]])
    items = np.array([item for each in targets for item in each], dtype=np.int32)
    hits = metrics.hits(np.array(lists, dtype=np.int32).reshape(len(lists), -1), offsets, items)
    for name, metric in metrics.METRICS.items():
        expected = [slow(name, *pair, k) for pair in zip(lists, targets, strict=True)]
        np.testing.assert_allclose(metric(hits, np.diff(offsets), k), expected, atol=1e-12, err_msg=name)


def test_large_item_numbers_do_not_overflow() -> None:
    last = np.iinfo(np.int32).max - 1
    lists = np.full((3, 1), last, dtype=np.int32)
    found = metrics.hits(lists, np.array([0, 1, 1, 2]), np.array([0, last], dtype=np.int32))
    assert found.tolist() == [[False], [False], [True]]


def test_exposure_and_coverage() -> None:
    exposure = metrics.exposure(LISTS, 10, 2)  # 3 5 | 2 3 | 1 2
    assert exposure.tolist() == [0, 1, 2, 2, 0, 1, 0, 0, 0, 0]
    assert metrics.coverage(exposure) == 4 / 10
    assert metrics.exposure(LISTS, 10, 4).sum() == 11  # twelve places, one of them padding
    assert metrics.exposure(np.array([[0, -1]]), 2, 2).tolist() == [1, 0]


def test_metrics_do_not_load_tensorflow() -> None:
    code = "import sys, towers.evaluation.metrics; print('tensorflow' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


@pytest.mark.parametrize(
    ("lists", "targets"), [([[0], [1]], [3, 9]), ([[3], [0]], [0, 1])], ids=["larger targets", "larger lists"]
)
def test_an_item_of_another_query_is_no_hit(lists: list[list[int]], targets: list[int]) -> None:
    """Numbered with steps of 2, the target 3 of the first query would be the item 1 of the second."""
    assert not metrics.hits(np.array(lists), np.array([0, 1, 2]), np.array(targets)).any()


def test_matches_name_the_target_of_the_query() -> None:
    expected = [[-1, 0, -1, 1], [-1] * 4, [-1] * 4]
    assert metrics.matches(LISTS, OFFSETS, ITEMS).tolist() == expected


@given(st.lists(st.integers(0, 30), min_size=1, max_size=8))
def test_gini_is_half_the_mean_difference_relative_to_the_mean(counts: list[int]) -> None:
    pairs = [abs(one - other) for one in counts for other in counts]
    mean = sum(counts) / len(counts)
    expected = sum(pairs) / len(pairs) / 2 / mean if mean else 0.0
    assert metrics.gini(np.array(counts)) == pytest.approx(expected, abs=1e-12)


def test_self_information_in_bits() -> None:
    # Of 16 users; an item without events counts as one of one event.
    assert metrics.self_information(np.array([8, 2, 1, 0]), 16) == pytest.approx([1, 3, 4, 4])


@given(worlds())
def test_similarity_within_a_list_is_the_mean_cosine_of_its_pairs(world: tuple[list[list[int]], Any, int]) -> None:
    lists, _, k = world
    vectors = np.random.default_rng(0).normal(size=(13, 3)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    vectors[4] = 0  # no vector
    ks = sorted((k, 2, 20))
    found = metrics.intra_list_similarity(np.array(lists, dtype=np.int32).reshape(len(lists), -1), vectors, ks)
    for values, each in zip(found, lists, strict=True):
        for value, depth in zip(values, ks, strict=True):
            shown = [item for item in each[:depth] if item not in (-1, 4)]
            cosines = [float(vectors[a] @ vectors[b]) for place, a in enumerate(shown) for b in shown[:place]]
            assert value == pytest.approx(np.mean(cosines), abs=1e-5) if cosines else np.isnan(value)
