"""Figures of lists and their intervals, against a slow loop of resamples, item by item."""

from collections import Counter
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.console import no_bar
from pipelines.dataset.heldout import HeldOut
from pipelines.evaluation.figures import LIST_RESAMPLES, OF_LISTS, list_figures, numbers
from pipelines.rankers import bootstrap
from pipelines.rankers.evaluate import Evaluation, evaluate

ITEMS, KS = 12, (2, 4)
TAKERS = np.array([9, 7, 5, 4, 3, 2, 2, 1, 1, 1, 0, 0])
KNOWN = 16  # users, who take an item after another; two more take nothing, and one takes the first item three times
EVENTS = [(place % KNOWN, item) for place, item in enumerate(np.repeat(np.arange(ITEMS), TAKERS).tolist())]
EVENTS = sorted([*EVENTS, (3, 0), (3, 0)])
OFFSETS = np.searchsorted([user for user, _ in EVENTS], np.arange(KNOWN + 3))
TAKEN = np.array([item for _, item in EVENTS], np.int32)
POPULARITY = TAKERS + 2 * (np.arange(ITEMS) == 0)
VECTORS = np.random.default_rng(1).normal(size=(ITEMS, 3)).astype(np.float32)
VECTORS /= np.linalg.norm(VECTORS, axis=1, keepdims=True)
VECTORS[10] = 0  # without one
# The last two users' lists are short; the first item is in most.
LISTS = np.array([[0, 1, 2, 3], [0, 4, 1, 5], [6, 0, 10, 2], [0, 1, 7, 8], [9, 0, 3, -1], [5, -1, -1, -1]])


def evaluated(lists: np.ndarray, ks: tuple[int, ...] = KS) -> Evaluation:
    users = len(lists)
    every = np.arange(users + 1)
    held = HeldOut(
        users=np.arange(users, dtype=np.int32),
        target_offsets=every,
        target_items=np.zeros(users, np.int32),
        seen_offsets=np.zeros(users + 1, np.int64),
        seen_items=np.zeros(0, np.int32),
        dropped_targets=0,
    )
    rankers = {"exact": lambda block: lists[block.users]}
    return evaluate(rankers, held, VECTORS, ks, numbers=numbers(OFFSETS, TAKEN, ITEMS))


def slow(lists: list[list[int]]) -> dict[str, float | None]:
    """Each figure as docs/evaluation/report.md defines it."""
    shown = [item for items in lists for item in items]
    counts = [Counter(shown)[item] for item in range(ITEMS)]
    differences = sum(abs(one - other) for one in counts for other in counts)
    alike = []
    for items in lists:
        pairs = [float(VECTORS[a] @ VECTORS[b]) for a, b in combinations([i for i in items if i != 10], 2)]
        alike += [np.mean(pairs)] if pairs else []
    return {
        "coverage": len(set(shown)) / ITEMS,
        "gini": differences / (2 * ITEMS * sum(counts)) if shown else 0.0,
        "novelty": float(np.mean([-np.log2(max(TAKERS[i], 1) / KNOWN) for i in shown])) if shown else None,
        "popularity": float(np.mean([POPULARITY[i] for i in shown])) if shown else None,
        "similarity": float(np.mean(alike)) if alike else None,
    }


def first(lists: np.ndarray, k: int) -> list[list[int]]:
    return [[int(item) for item in items[:k] if item >= 0] for items in lists]


@pytest.mark.parametrize("k", KS)
def test_every_figure_and_interval_equals_a_slow_loop_of_resamples(k: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bootstrap, "_BLOCK", 7 * ITEMS)  # several blocks of resamples
    evaluation = evaluated(LISTS)
    found = list_figures(evaluation, evaluation.of_all(), no_bar)
    whole, users = first(LISTS, k), len(LISTS)
    draws = np.random.default_rng(0)
    replicates = [slow([whole[user] for user in draws.integers(users, size=users)]) for _ in range(bootstrap.RESAMPLES)]
    for key, name in OF_LISTS.items():
        estimate = found[key]["exact"][f"{name}@{k}"]
        value = slow(whole)[name]
        assert value is not None
        if name in ("coverage", "gini"):
            half = 1.959964 * np.std([each[name] for each in replicates[:LIST_RESAMPLES]], ddof=1)
            low, high = max(value - half, 0), min(value + half, 1)
        else:
            low, high = np.percentile([each[name] for each in replicates if each[name] is not None], [2.5, 97.5])
        assert estimate == pytest.approx({"value": value, "low": low, "high": high}, rel=1e-5), name
        assert estimate["low"] < estimate["value"] < estimate["high"]


lists_of_users = st.lists(
    st.lists(st.integers(0, ITEMS - 1), max_size=4, unique=True).map(lambda items: items + [-1] * (4 - len(items))),
    min_size=1,
    max_size=6,
).map(np.array)


@given(lists_of_users)
@settings(max_examples=25)
def test_an_interval_of_coverage_and_gini_holds_the_figure(lists: np.ndarray) -> None:
    evaluation = evaluated(lists, (4,))
    found, whole = list_figures(evaluation, evaluation.of_all(), no_bar), slow(first(lists, 4))
    for name in ("coverage", "gini"):
        estimate = found[name]["exact"][f"{name}@4"]
        assert 0 <= estimate["low"] <= estimate["value"] <= estimate["high"] <= 1
        assert estimate["value"] == pytest.approx(whole[name])
    for key, name in OF_LISTS.items():
        assert (found[key]["exact"][f"{name}@4"] is None) is (whole[name] is None)


def test_one_list_for_all_leaves_nothing_to_chance() -> None:
    evaluation = evaluated(np.repeat(LISTS[:1], 50, axis=0))
    found = list_figures(evaluation, evaluation.of_all(), no_bar)
    for key, name in OF_LISTS.items():
        for k in KS:
            estimate = found[key]["exact"][f"{name}@{k}"]
            assert estimate["high"] - estimate["low"] == pytest.approx(0, abs=1e-9), name
            assert estimate["value"] == pytest.approx(slow(first(LISTS[:1], k))[name], rel=1e-6)
