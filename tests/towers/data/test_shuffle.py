"""The order of an epoch: permutations, the same whole or batch by batch."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from towers.data.shuffle import shuffled


@given(st.integers(1, 5000), st.integers(0, 2**40), st.sampled_from([10, 1 << 14]))
def test_the_order_is_a_permutation(count: int, key: int, drawn_whole: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("towers.data.shuffle.DRAWN_WHOLE", drawn_whole)
        assert sorted(shuffled(np.arange(count), count, key)) == list(range(count))


def test_epochs_have_orders_of_their_own() -> None:
    first, second = (shuffled(np.arange(1000), 1000, key) for key in (1, 2))
    assert (first != second).mean() > 0.98
    # Neighbours do not stay neighbours, and each tenth of the order draws from everywhere.
    assert np.abs(np.diff(first)).mean() > 250
    assert np.abs(first.reshape(10, 100).mean(axis=1) - 499.5).max() < 120


def test_a_seed_keeps_the_order_it_always_had() -> None:
    """What commit e5fbef9 gave: a run that it began goes on with the same batches."""
    kept = [6726, 6070, 2967, 24478, 10848, 22077, 37626, 28194]
    assert shuffled(np.arange(8), 40_000, 5).tolist() == kept
    assert shuffled(np.arange(8), 1_000, 5).tolist() == [478, 816, 154, 7, 779, 966, 751, 75]


@given(st.integers(1, 20_000), st.integers(0, 2**40))
def test_the_order_is_the_same_batch_by_batch(count: int, key: int) -> None:
    batches = [np.arange(begin, min(begin + 777, count)) for begin in range(0, count, 777)]
    order = np.concatenate([shuffled(batch, count, key) for batch in batches])
    assert shuffled(np.arange(count), count, key).tolist() == order.tolist()
