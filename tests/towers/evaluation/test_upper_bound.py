"""The upper bound on hits: those of a ranking of candidates and targets alone, and at least those of all items."""

from unittest import mock

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from towers.evaluation import metrics
from towers.evaluation.metrics import METRICS
from towers.evaluation.upper_bound import upper_bound


@given(st.integers(0, 10_000), st.integers(1, 12), st.integers(1, 20), st.integers(1, 25), st.integers(0, 8))
def test_it_is_that_of_a_ranking_of_the_candidates_and_the_targets(
    seed: int, users: int, length: int, k: int, most: int
) -> None:
    rng = np.random.default_rng(seed)
    vectors = rng.normal(size=(60, 4)).astype(np.float32)
    queries = rng.normal(size=(users, 4)).astype(np.float32)
    lists = np.array([rng.permutation(60)[:length] for _ in range(users)], np.int32).reshape(users, length)
    lists[rng.random(lists.shape) < 0.2] = -1
    held = [rng.permutation(60)[: rng.integers(0, most + 1)].astype(np.int32) for _ in range(users)]
    held = [np.where(rng.random(len(own)) < 0.2, -1, own).astype(np.int32) for own in held]
    offsets = np.concatenate([[0], np.cumsum([len(own) for own in held])]).astype(np.int64)
    targets = np.concatenate([np.empty(0, np.int32), *held]).astype(np.int32)
    # Without the margin for rounding, and in blocks of a few targets.
    with mock.patch.multiple("towers.evaluation.upper_bound", ROUNDING=0.0, TARGETS=5):
        found = upper_bound(lists, queries, vectors, targets, offsets, k)
    assert found.shape == (users, k)
    for user, own in enumerate(held):
        scores = vectors @ queries[user]
        own = own[own >= 0]
        some = np.union1d(lists[user][lists[user] >= 0], own)
        ranked = some[np.argsort(-scores[some])][:k]
        assert found[user].nonzero()[0].tolist() == np.isin(ranked, own).nonzero()[0].tolist()
        every = np.isin(np.argsort(-scores)[:k], own)[np.newaxis]
        for metric in METRICS.values():
            assert not metric(found[user : user + 1], np.array([len(own)]), k) < metric(every, np.array([len(own)]), k)


def test_without_items_there_is_no_hit() -> None:
    nothing, one = np.full((2, 3), -1, np.int32), np.array([-1], np.int32)
    found = upper_bound(nothing, np.ones((2, 4), np.float32), np.empty((0, 4), np.float32), one, np.array([0, 1, 1]), 2)
    assert found.tolist() == [[False, False]] * 2


def test_rounding_costs_no_hit() -> None:
    """A target with the score of a candidate may stand before it."""
    vectors = np.array([[0.1, 0.7], [0.1, 0.7], [0.0, 0.1]], np.float32)
    found = upper_bound(
        np.array([[1, 2]], np.int32), np.ones((1, 2), np.float32), vectors, np.array([0], np.int32), np.array([0, 1]), 1
    )
    assert metrics.recall(found, np.array([1]), 1).tolist() == [1.0]
