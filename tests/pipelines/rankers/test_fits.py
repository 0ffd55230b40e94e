"""Item-kNN's options, EASE and favourites against slow loops from their formulas."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.rankers import ease, item_knn
from pipelines.rankers.ease import Ease, ease_factors, ease_weights
from pipelines.rankers.item_knn import ItemKnn, history, nearest_items, nearest_of
from pipelines.rankers.popular import Favourites

USERS, ITEMS = 40, 9


@pytest.fixture(scope="module")
def events() -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(3)
    share = np.arange(1, ITEMS + 1) / np.arange(1, ITEMS + 1).sum()
    chosen = [generator.choice(ITEMS, size=generator.integers(1, 7), replace=False, p=share) for _ in range(USERS)]
    users = np.repeat(np.arange(USERS), [len(each) for each in chosen])
    items = np.concatenate(chosen)
    # A repeated event counts once.
    return np.append(users, users[:2]), np.append(items, items[:2]).astype(np.int32)


def sets_of(users: np.ndarray, items: np.ndarray) -> list[set[int]]:
    return [set(items[users == user].tolist()) for user in range(USERS)]


@pytest.mark.parametrize("shrinkage", [0.0, 3.0, 100.0])
@pytest.mark.parametrize("damp_users", [False, True])
def test_similarities_equal_the_slow_loop(
    events: tuple[np.ndarray, np.ndarray], shrinkage: float, damp_users: bool
) -> None:
    taken = sets_of(*events)
    expected = np.zeros((ITEMS, ITEMS))
    for i in range(ITEMS):
        for j in range(ITEMS):
            both = [1 / np.log(np.e + len(each)) if damp_users else 1.0 for each in taken if {i, j} <= each]
            counts = [sum(item in each for each in taken) for item in (i, j)]
            if i != j:
                expected[j, i] = sum(both) / (np.sqrt(counts[0] * counts[1]) + shrinkage)
    found = nearest_items(
        *events, (USERS, ITEMS), neighbours=ITEMS, shrinkage=shrinkage, damp_users=damp_users
    ).toarray()
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_the_first_neighbours_are_those_of_a_smaller_fit(events: tuple[np.ndarray, np.ndarray]) -> None:
    many = nearest_items(*events, (USERS, ITEMS), neighbours=8, shrinkage=2.0)
    few = nearest_items(*events, (USERS, ITEMS), neighbours=3, shrinkage=2.0)
    assert np.diff(few.indptr).max() == 3
    np.testing.assert_array_equal(nearest_of(many, 3).toarray(), few.toarray())


@pytest.mark.parametrize("entries", [1, 20, 30])
def test_no_block_of_items_takes_more_memory_than_allowed(
    events: tuple[np.ndarray, np.ndarray], entries: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = nearest_items(*events, (USERS, ITEMS), neighbours=4, shrinkage=2.0)
    monkeypatch.setattr(item_knn, "BLOCK_BYTES", entries * item_knn.ENTRY_BYTES)
    blocks: list[int] = []
    found = nearest_items(*events, (USERS, ITEMS), neighbours=4, shrinkage=2.0, advance=blocks.append)
    np.testing.assert_array_equal(found.toarray(), whole.toarray())
    taken = sets_of(*events)
    beside = [len(set().union(*(each for each in taken if item in each))) for item in range(ITEMS)]
    ends = np.cumsum(blocks)
    assert ends[-1] == ITEMS and min(blocks) > 0
    for rows, end in zip(blocks, ends.tolist(), strict=True):
        assert rows == 1 or sum(beside[end - rows : end]) <= entries
    # A row has at most 9 entries: what fits is not split into single rows.
    assert (max(blocks) > 1) == (entries >= 2 * ITEMS)


def test_a_row_of_few_events_counts_those_and_not_all_items(monkeypatch: pytest.MonkeyPatch) -> None:
    # 100 users of two items each: a row has at most 2 entries, so that 25 rows fit where 50 entries do.
    items = np.arange(200)
    monkeypatch.setattr(item_knn, "BLOCK_BYTES", 50 * item_knn.ENTRY_BYTES)
    blocks: list[int] = []
    nearest_items(items // 2, items, (100, 200), neighbours=1, shrinkage=0.0, advance=blocks.append)
    assert blocks == [25] * 8


def test_the_weight_of_a_history_item_halves_with_its_place() -> None:
    # Item 4 is taken twice: at the places 0 and 2 from the end, of which the newest counts.
    found = history(np.array([0, 4, 4, 5]), np.array([7, 4, 1, 4, 0]), ITEMS, half_life=2).toarray()
    expected = np.zeros((3, ITEMS))
    expected[0, [4, 1, 7]] = 0.5 ** (np.array([0, 1, 3]) / 2)
    expected[2, 0] = 1
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    alike = history(np.array([0, 4]), np.array([7, 4, 1, 4]), ITEMS).toarray()
    assert alike.tolist() == [[0, 1, 0, 0, 1, 0, 0, 1, 0]]


def test_a_recent_item_outweighs_an_old_one() -> None:
    # Items 1 and 2 are neighbours of 0 and of 3; which of the two is newer decides.
    users, items = np.array([0, 0, 1, 1]), np.array([0, 1, 3, 2])
    nearest = nearest_items(users, items, (2, ITEMS), neighbours=5, shrinkage=0.0)
    fitted = ItemKnn(nearest.T.tocsr(), np.arange(ITEMS, dtype=np.int32), half_life=1.0)
    lists = fitted.lists(np.array([0, 2, 4]), np.array([0, 3, 3, 0]), 2)
    assert lists.tolist() == [[2, 1], [1, 2]]


@pytest.mark.parametrize("penalty", [0.5, 20.0])
def test_ease_is_the_least_squares_of_each_item_from_the_others(
    events: tuple[np.ndarray, np.ndarray], penalty: float
) -> None:
    taken = np.zeros((USERS, ITEMS))
    taken[events] = 1
    weights = ease_weights(*events, (USERS, ITEMS), penalty)
    assert np.diag(weights).tolist() == [0.0] * ITEMS
    for item in range(ITEMS):
        others = np.delete(np.arange(ITEMS), item)
        X = taken[:, others]
        expected = np.linalg.solve(X.T @ X + penalty * np.eye(ITEMS - 1), X.T @ taken[:, item])
        np.testing.assert_allclose(weights[others, item], expected, atol=1e-5)


@pytest.mark.parametrize("width", [3, ITEMS, 256])
def test_factors_are_the_nearest_of_their_width_to_the_scores(
    events: tuple[np.ndarray, np.ndarray], width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ease, "WIDTH", width)
    taken = np.zeros((USERS, ITEMS))
    taken[events] = 1
    left, sizes, right = np.linalg.svd(taken @ ease_weights(*events, (USERS, ITEMS), 2.0), full_matrices=False)
    sizes[width:] = 0
    users, items = ease_factors(*events, (USERS, ITEMS), 2.0)
    assert users.shape[1] == items.shape[1] == min(width, ITEMS)
    assert users.dtype == items.dtype == np.float32
    np.testing.assert_allclose(users @ items.T, (left * sizes) @ right, atol=1e-5)


@pytest.mark.parametrize("repeats", [False, True])
@pytest.mark.parametrize("k", [3, ITEMS, ITEMS + 4])
def test_ease_lists_are_the_unseen_items_by_score(events: tuple[np.ndarray, np.ndarray], k: int, repeats: bool) -> None:
    weights = ease_weights(*events, (USERS, ITEMS), 5.0)
    order = np.arange(ITEMS, dtype=np.int32)[::-1].copy()
    seen = [[2, 5], [], [0, 0, 8], [7]]
    offsets = np.cumsum([0, *map(len, seen)])
    items = np.array([item for own in seen for item in own], np.int32)
    lists = Ease(weights, order).lists(offsets, items, k, repeats=repeats)
    for own, row in zip(seen, lists.tolist(), strict=True):
        scores = {item: sum(weights[i, item] for i in set(own)) for item in range(ITEMS) if repeats or item not in own}
        best = sorted(scores, key=lambda item: -scores[item]) if own else order.tolist()
        assert row == (best + [-1] * k)[:k]


@pytest.mark.parametrize("repeats", [False, True])
def test_popularity_in_the_scores_of_ease_is_added_for_users_with_a_history(
    events: tuple[np.ndarray, np.ndarray], repeats: bool
) -> None:
    weights, order = ease_weights(*events, (USERS, ITEMS), 5.0), np.arange(ITEMS, dtype=np.int32)
    popularity = np.random.default_rng(0).random(ITEMS).astype(np.float32)
    seen = [[2, 5], [], [0]]
    offsets, items = np.array([0, 2, 2, 3]), np.array([2, 5, 0], np.int32)
    lists = Ease(weights, order, popularity).lists(offsets, items, 4, repeats=repeats)
    for own, row in zip(seen, lists.tolist(), strict=True):
        scores = {
            item: sum(weights[i, item] for i in own) + popularity[item]
            for item in range(ITEMS)
            if repeats or item not in own
        }
        assert row == (sorted(scores, key=lambda item: -scores[item])[:4] if own else order[:4].tolist())


@given(
    histories=st.lists(st.lists(st.integers(0, 6), max_size=9), min_size=1, max_size=4),
    order=st.permutations(range(7)),
    k=st.integers(1, 9),
)
def test_favourites_are_by_events_then_by_age_then_popular(
    histories: list[list[int]], order: list[int], k: int
) -> None:
    offsets = np.cumsum([0, *map(len, histories)])
    items = np.array([item for own in histories for item in own], np.int32)
    fitted = Favourites(np.array(order, np.int32))
    again = fitted.lists(offsets, items, k, repeats=True).tolist()
    once = fitted.lists(offsets, items, k).tolist()
    for own, repeated, unseen in zip(histories, again, once, strict=True):
        best = sorted(set(own), key=lambda item: (-own.count(item), own[::-1].index(item)))
        rest = [item for item in order if item not in own]
        assert repeated == ([*best, *rest] + [-1] * k)[:k]
        assert unseen == (rest + [-1] * k)[:k]


def test_too_large_is_what_the_limits_say(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(item_knn, "MAX_PAIRS", 25)
    assert item_knn.too_large(np.array([3, 4]), 10) is None
    assert item_knn.too_large(np.array([3, 5]), 10) == "left out: 34 pairs of events of the same user, more than 25"
