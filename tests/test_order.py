"""The order of an epoch: permutations, parts of their own, short runs of neighbours from all over the set."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from towers.order import RUNS, in_parts, part_of, shuffled


@given(st.integers(1, 5000), st.integers(0, 2**40), st.sampled_from([10, 1 << 14]))
@settings(deadline=None)
def test_the_order_is_a_permutation(count: int, key: int, drawn_whole: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("towers.order.DRAWN_WHOLE", drawn_whole)
        assert sorted(shuffled(np.arange(count), count, key)) == list(range(count))


def test_epochs_have_orders_of_their_own() -> None:
    first, second = (shuffled(np.arange(1000), 1000, key) for key in (1, 2))
    assert (first != second).mean() > 0.98
    # Neighbours do not stay neighbours, and each tenth of the order draws from everywhere.
    assert np.abs(np.diff(first)).mean() > 250
    assert np.abs(first.reshape(10, 100).mean(axis=1) - 499.5).max() < 120


@given(st.integers(1, 20_000), st.integers(0, 2**40), st.integers(500, 5_000), st.sampled_from([10, 1 << 14]))
@settings(deadline=None)
def test_the_order_by_parts_is_a_permutation_batch_by_batch(count: int, key: int, part: int, drawn_whole: int) -> None:
    batches = [np.arange(begin, min(begin + 777, count)) for begin in range(0, count, 777)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("towers.order.DRAWN_WHOLE", drawn_whole)
        order = np.concatenate([in_parts(batch, count, key, part) for batch in batches])
        assert in_parts(np.arange(count), count, key, part).tolist() == order.tolist()
    assert np.bincount(order, minlength=count).tolist() == [1] * count


@given(st.integers(10**6, 10**9), st.integers(1, 50))
def test_parts_are_alike_large(count: int, parts: int) -> None:
    part = -(-count // parts)
    parts = -(-count // part)
    edges = [number * count // parts for number in range(parts + 1)]
    slack = RUNS * parts
    for number, (low, high) in enumerate(pairwise(edges)):
        assert part_of(min(low + slack, high), count, part) == part_of(high - 1, count, part) == number


@pytest.mark.parametrize("epoch", [0, 1])
def test_a_part_holds_runs_from_all_over_the_set_in_an_order_of_their_own(epoch: int) -> None:
    parts, part = 10, 9_984
    count = parts * part
    order = in_parts(np.arange(count), count, 7_000_003 + epoch, part)
    run, group = part // RUNS, parts * part // RUNS
    other = in_parts(np.arange(count), count, 7_000_013 + epoch, part)
    for number, chosen in enumerate(order.reshape(parts, part)):
        # One run of each group: of each tenth of the set a tenth, give or take the runs at its ends.
        assert np.abs(np.bincount(chosen // (count // 10), minlength=10) - part / 10).max() <= 2 * run
        ordered = np.sort(chosen)
        ends = np.flatnonzero(np.diff(ordered) > 1)
        assert RUNS // 2 <= len(ends) <= RUNS, "runs of neighbours"
        assert len(np.unique(np.diff(ordered)[ends])) > RUNS // 4, "another run of each group"
        assert np.diff(ordered).max() < 2 * group
        # Within a part the order is random, and elsewhere parts and beginnings are others.
        assert np.abs(np.diff(chosen)).mean() > count / 4
        assert len(np.intersect1d(chosen, other[number * part : (number + 1) * part])) < 0.3 * part
        elsewhere = np.sort(other[:part])
        assert not set(ordered[ends] % run) & set(elsewhere[:-1][np.diff(elsewhere) > 1] % run)


def test_a_set_of_one_part_keeps_the_order_it_always_had() -> None:
    """What commit e5fbef9 gave: a run that it began goes on with the same batches."""
    kept = [6726, 6070, 2967, 24478, 10848, 22077, 37626, 28194]
    assert in_parts(np.arange(8), 40_000, 5, 40_000).tolist() == kept
    assert in_parts(np.arange(8), 1_000, 5, 40_000).tolist() == [478, 816, 154, 7, 779, 966, 751, 75]
