"""Which impressions become negatives of an example, against slow loops over lists of them."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from towers.data.batch import Batch
from towers.data.events import Events
from towers.data.examples import Examples
from towers.data.feature_tables import FeatureTables
from towers.data.impressions import LOOKED_AT, NEVER, Impressions
from towers.data.item_ranks import ItemRanks

# Of one user: (item, when it was first taken); of rank 3 - item, and item 4 has none.
SHOWN = st.lists(st.tuples(st.integers(0, 4), st.sampled_from([2, 5, NEVER])), min_size=1, max_size=30)
RANKS = np.array([3, 2, 1, 0, -1])


def chosen(
    shown: list[tuple[int, int]], end: int, number: int, time: int, barred: list[int], *, nearest: bool, key: int = 0
) -> list[int]:
    items, taken = (np.array(each) for each in zip(*shown, strict=True))
    impressions = Impressions(
        items.astype(np.int32), taken.astype(np.int64), np.array([0]), np.array([end]), nearest, number
    )
    [found] = impressions.of_examples(np.array([0]), np.array([time]), RANKS, np.array([barred]), key)
    return list(found.tolist())


def loop(candidates: list[tuple[int, int]], number: int, time: int, barred: list[int]) -> list[int]:
    """The first `number` ranks that may be chosen, in the order given."""
    found: list[int] = []
    for item, taken in candidates[: LOOKED_AT * number]:
        rank = int(RANKS[item])
        if taken > time and rank >= 0 and rank not in [*barred, *found] and len(found) < number:
            found.append(rank)
    return found + [-1] * (number - len(found))


@settings(deadline=None)
@given(SHOWN, st.integers(1, 4), st.sampled_from([1, 2, 4, 5, 9]), st.lists(st.integers(-1, 3), max_size=2), st.data())
def test_the_nearest_before_an_example_that_its_user_had_not_taken(
    shown: list[tuple[int, int]], number: int, time: int, barred: list[int], data: st.DataObject
) -> None:
    end = data.draw(st.integers(0, len(shown)))
    found = chosen(shown, end, number, time, barred, nearest=True)
    assert found == loop(shown[:end][::-1], number, time, barred)


@settings(deadline=None)
@given(SHOWN, st.integers(1, 4), st.integers(0, 2**40))
def test_without_an_order_they_follow_a_random_one_and_wrap_round(
    shown: list[tuple[int, int]], number: int, key: int
) -> None:
    found = chosen(shown, len(shown), number, 4, [0], nearest=False, key=key)
    turns = [shown[place::-1] + shown[:place:-1] for place in range(len(shown))]
    assert found in [loop(turn, number, 4, [0]) for turn in turns]


def test_each_impression_is_chosen_as_often_as_any_other() -> None:
    """Of ten, one for each of 20,000 examples: 2,000 each, give or take four standard deviations."""
    size = 20_000
    ones = np.ones(size, np.int64)
    impressions = Impressions(np.arange(10, dtype=np.int32), np.full(10, NEVER), 0 * ones, 10 * ones, False, 1)
    for key in (0, 1):
        found = impressions.of_examples(np.arange(size), 0 * ones, np.arange(10), np.zeros((size, 0), np.int64), key)
        assert np.abs(np.bincount(found[:, 0], minlength=10) - 2_000).max() < 4 * (size * 0.09) ** 0.5


def examples(**options: int) -> Examples:
    """Three users of ten items each, of 40; each was shown the next ten, one of which they took at last."""
    user = np.repeat(np.arange(3, dtype=np.int32), 11)
    item = np.concatenate([[*range(10 * u, 10 * u + 10), 10 * u + 15] for u in range(3)]).astype(np.int32)
    offsets = np.array([0, 11, 22, 33], np.int64)
    events = Events(user, item, offsets, np.tile(np.arange(11), 3), np.arange(33))
    shown = np.concatenate([np.arange(10 * u + 10, 10 * u + 20) for u in range(3)]).astype(np.int32)
    taken = np.where(shown % 10 == 5, 10, NEVER)
    impressions = Impressions(
        shown, taken, 10 * user.astype(np.int64), 10 * user.astype(np.int64) + 10, nearest=False, number=4
    )
    tables = FeatureTables({"user_id": np.arange(1, 4, dtype=np.int32)}, {"item_id": np.arange(1, 41, dtype=np.int32)})
    catalogue = ItemRanks.of(np.arange(40, dtype=np.int32), 40)
    return Examples(events, tables, catalogue, 12, seed=3, impressions=impressions, **options)


def shown_to(batch: Batch) -> dict[tuple[int, int], list[int]]:
    """Of each example, by user and item: what it was shown, by item; each item's rank is its number."""
    return {
        (int(user), int(item[0])): shown.tolist()
        for user, item, shown in zip(batch.user, batch.item, batch.shown, strict=True)
    }


@pytest.mark.parametrize("positives", [1, 3])
@pytest.mark.parametrize("known", [0, 2, 20])
def test_none_is_a_positive_or_known_or_was_taken_by_then(positives: int, known: int) -> None:
    every = examples(positives=positives, known=known)
    seen = set()
    for step in range(every.steps):
        batch = every.batch(0, step)
        for row, ((user, own), shown) in enumerate(shown_to(batch).items()):
            assert set(shown) <= set(range(10 * user + 10, 10 * user + 20)) and len(set(shown)) == 4
            listed = {*batch.item[row][batch.present[row]].tolist(), *batch.known[row].tolist()}
            assert not set(shown) & listed
            if own == 10 * user + 15:
                assert own not in shown
            seen |= set(shown)
    # Before it was taken it was a negative like the others, unless it is known what the user takes.
    assert bool({15, 25, 35} & seen) == (known < 20)


def test_they_are_a_function_of_example_and_epoch_and_the_same_for_several_workers() -> None:
    every = examples()
    first, second = every.batch(0, 1), every.batch(1, 0)
    np.testing.assert_array_equal(examples().batch(0, 1).shown, first.shown)
    both = shown_to(first), shown_to(second)
    common = both[0].keys() & both[1].keys()
    assert common and any(both[0][each] != both[1][each] for each in common)
    halves = [replace(every, worker=rank, workers=2).batch(0, 1).shown for rank in range(2)]
    np.testing.assert_array_equal(np.concatenate(halves), first.shown)


def test_a_recipe_without_them_has_no_columns() -> None:
    assert replace(examples(), impressions=None).batch(0, 0).shown.shape == (12, 0)
