"""Baselines against slow loops from their formulas."""

from collections import Counter

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st

from pipelines.rankers import item_knn
from pipelines.rankers.item_knn import ItemKnn, nearest_items, too_large
from pipelines.rankers.ordered_knn import OrderedKnn
from pipelines.rankers.popular import Popular, by_popularity

ITEMS = 9
Histories = list[list[int]]


def flat(histories: Histories) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    offsets = np.cumsum([0, *[len(each) for each in histories]])
    items = np.array([item for each in histories for item in each], dtype=np.int32)
    return np.repeat(np.arange(len(histories)), np.diff(offsets)), offsets, items


histories_strategy = st.lists(st.lists(st.integers(0, ITEMS - 1), max_size=7), min_size=1, max_size=8)


def test_by_popularity_breaks_ties_by_number() -> None:
    assert by_popularity(np.array([3, 5, 3, 0, 5])).tolist() == [1, 4, 0, 2, 3]
    assert by_popularity(np.array([0, 2**32 - 1], dtype=np.uint32)).tolist() == [1, 0]


@given(histories_strategy, st.permutations(range(ITEMS)), st.integers(1, 12))
def test_popular_lists_equal_the_slow_loop(histories: Histories, order: list[int], k: int) -> None:
    _, offsets, items = flat(histories)
    found = Popular(np.array(order)).lists(offsets, items, k)
    for seen, row in zip(histories, found.tolist(), strict=True):
        unseen = [item for item in order if item not in seen][:k]
        assert row == unseen + [-1] * (k - len(unseen))


def slow_scores(histories: Histories, neighbours: int, shrinkage: float) -> np.ndarray:
    """[users, ITEMS] item-kNN scores from the docstring's formula; ties among neighbours are avoided by the caller."""
    sets = [set(each) for each in histories]
    counts = Counter(item for each in sets for item in each)
    similarity = np.zeros((ITEMS, ITEMS))
    for i in range(ITEMS):
        for j in range(ITEMS):
            together = sum(1 for each in sets if i in each and j in each)
            if i != j and together:
                similarity[i, j] = together / (np.sqrt(counts[i] * counts[j]) + shrinkage)
    for j in range(ITEMS):
        similarity[np.argsort(-similarity[:, j])[neighbours:], j] = 0
    return np.array([similarity[sorted(each)].sum(axis=0) for each in sets])


@given(histories_strategy, st.sampled_from([0.0, 10.0]), st.booleans())
def test_knn_ranks_by_the_formula(histories: Histories, shrinkage: float, repeats: bool) -> None:
    users, offsets, items = flat(histories)
    nearest = nearest_items(users, items, (len(histories), ITEMS), neighbours=ITEMS, shrinkage=shrinkage)
    pairs = np.unique(np.stack([users, items], axis=1), axis=0)
    fitted = ItemKnn(sp.csr_array(nearest.T), by_popularity(np.bincount(pairs[:, 1], minlength=ITEMS)))
    expected = slow_scores(histories, ITEMS, shrinkage)
    popular = [item for item, _ in sorted(Counter(items.tolist()).items(), key=lambda pair: (-pair[1], pair[0]))]
    for query, row in enumerate(fitted.lists(offsets, items, ITEMS, repeats=repeats).tolist()):
        listed = [item for item in row if item >= 0]
        assert sorted(listed) == sorted(set(range(ITEMS)) - set(() if repeats else histories[query]))
        scores = expected[query][listed]
        np.testing.assert_allclose(scores, np.sort(scores)[::-1], atol=1e-6)
        if not histories[query] and len(histories) == 1:
            assert row == list(range(ITEMS))
        elif not histories[query] and all(len(set(each)) == len(each) for each in histories):
            assert listed[: len(popular)] == popular


def test_knn_keeps_the_nearest_neighbours_of_each_candidate(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = np.random.default_rng(0)
    # Weighted draws make counts differ, so that no two similarities tie.
    share = np.arange(1, ITEMS + 1) / np.arange(1, ITEMS + 1).sum()
    histories = [generator.choice(ITEMS, size=4, replace=False, p=share).tolist() for _ in range(60)]
    users, _, items = flat(histories)
    expected = slow_scores(histories, 3, 10.0)
    for block in (2_048, 4):
        monkeypatch.setattr(item_knn, "ITEM_BLOCK", block)
        nearest = nearest_items(users, items, (60, ITEMS), neighbours=3, shrinkage=10.0)
        one_item_histories = np.eye(ITEMS) @ nearest.T
        assert np.count_nonzero(one_item_histories, axis=0).max() == 3
        found = np.zeros((60, ITEMS))
        for user, each in enumerate(histories):
            found[user] = one_item_histories[each].sum(axis=0)
        np.testing.assert_allclose(found, expected, atol=1e-6)


def test_knn_finds_the_group() -> None:
    # Users of group g had items of group g only: 0-3 or 4-7. Item 8 is the most popular of all, with nobody else's.
    histories = [[0, 1, 2], [1, 2, 3], [0, 2, 3], [4, 5, 6], [5, 6, 7], [4, 6, 7], *[[8]] * 9]
    users, _, items = flat(histories)
    nearest = nearest_items(users, items, (len(histories), ITEMS), neighbours=3, shrinkage=10.0)
    fitted = ItemKnn(sp.csr_array(nearest.T), by_popularity(np.bincount(items, minlength=ITEMS)))
    found = fitted.lists(np.array([0, 1, 3, 3]), np.array([0, 4, 5]), 4)
    assert set(found[0, :3]) == {1, 2, 3}
    assert found[0, 3] == 8  # the list goes on by popularity
    assert set(found[1, :2]) == {6, 7}
    assert found[2].tolist() == [8, 2, 6, 0]  # no history: by popularity


def test_too_large_says_why() -> None:
    assert too_large(np.array([3, 4]), 100) is None
    assert "items" in str(too_large(np.array([3]), item_knn.MAX_ITEMS + 1))
    assert "pairs" in str(too_large(np.full(100, 100_000), 100))


def test_item_knn_in_order_keeps_the_largest_of_each_item(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(1)
    offsets, items = np.arange(41) * 9, rng.integers(0, 30, 360)
    whole = OrderedKnn(shrinkage=1.0).similarity(offsets, items, 30).toarray()
    monkeypatch.setattr("pipelines.rankers.ordered_knn.NEIGHBOURS", 4)
    kept = OrderedKnn(shrinkage=1.0).similarity(offsets, items, 30)
    for row, (all_of_it, found) in enumerate(zip(whole, kept.toarray(), strict=True)):
        assert np.count_nonzero(found) == 4, row
        np.testing.assert_array_equal(np.sort(found)[-4:], np.sort(all_of_it)[-4:])


@pytest.mark.parametrize("settings", [OrderedKnn(2, 0.5, 2.0, 3.0), OrderedKnn(9, 0.0, 0.5, 0.0)])
def test_item_knn_in_order_is_the_slow_loop(settings: OrderedKnn) -> None:
    rng, count = np.random.default_rng(0), 12
    lists = [rng.integers(0, count, size) for size in (0, 1, 5, 9, 3, 7)]
    offsets = np.cumsum([0, *map(len, lists)])
    scores = np.zeros((len(lists), count))
    together = np.zeros((count, count))
    for taken in lists:
        for place, first in enumerate(taken):
            for distance, second in enumerate(taken[place + 1 : place + 1 + settings.window], start=1):
                together[first, second] += distance**-0.5
                together[second, first] += settings.backward * distance**-0.5
    np.fill_diagonal(together, 0)
    counts = np.bincount(np.concatenate(lists), minlength=count)
    similarity = together / (np.sqrt(np.outer(counts, counts)) + settings.shrinkage + 1e-300)
    for user, taken in enumerate(lists):
        for item in set(taken.tolist()):
            newest = max(place for place, each in enumerate(taken) if each == item)
            scores[user] += 0.5 ** ((len(taken) - 1 - newest) / settings.half_life) * similarity[item]
        scores[user, taken] = 0
    taken = np.concatenate(lists)
    fitted = ItemKnn(settings.similarity(offsets, taken, count), np.arange(count), settings.half_life)
    found = fitted.lists(offsets, taken, 4)
    for user, row in enumerate(found):
        best = [item for item in np.argsort(-scores[user], kind="stable")[:4] if scores[user, item] > 0]
        np.testing.assert_allclose(scores[user, row[: len(best)]], scores[user, best], rtol=1e-5)
