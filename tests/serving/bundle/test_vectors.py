"""Vectors in requests: lists or NumPy arrays of exactly the length that the tower takes."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.bundle.manifest import FeatureSpec
from serving.bundle.request_features import check_features, is_missing, to_columns
from serving.errors import RequestError

LOOK = FeatureSpec(name="look", kind="vector", dtype="float32", length=3)
WRONG: list[tuple[Any, str, str]] = [
    ([0.5, 1.0], "look", "must hold 3 numbers, got 2"),
    (np.zeros(4), "look", "must hold 3 numbers, got 4"),
    ([[0.5], [1.0], [2.0]], "look.0", "must be a finite number that float32 can hold, got a list"),
    (np.zeros((3, 2)), "look.0", "must be a finite number that float32 can hold, got a list"),
    ([0.5, float("nan"), 1.0], "look.1", "must be a finite number that float32 can hold, got NaN"),
    (np.array([0.5, 1.0, np.inf]), "look.2", "must be a finite number that float32 can hold, got Infinity"),
    ([0.5, 1.0, 1e39], "look.2", "must be a finite number that float32 can hold, got 1e+39"),
    ([0.5, 1.0, 10**400], "look.2", "must be a finite number that float32 can hold, got a number"),
    ([0.5, "x", 1.0], "look.1", "must be a finite number that float32 can hold, got a string"),
    ([0.5, None, 1.0], "look.1", "must be a finite number that float32 can hold, got null"),
    ([0.5, True, 1.0], "look.1", "must be a finite number that float32 can hold, got true"),
    (0.5, "look", "must be a list, got a number"),
    ("0.5 1 2", "look", "must be a list, got a string"),
]


@pytest.mark.parametrize(("value", "field", "reason"), WRONG, ids=str)
def test_a_wrong_vector_is_refused_by_field(value: Any, field: str, reason: str) -> None:
    with pytest.raises(RequestError) as raised:
        check_features([LOOK], {"look": value})
    assert (raised.value.field, reason in raised.value.message) == (f"features.{field}", True), raised.value.message


@given(st.integers(1, 9), st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False) | st.integers(-9, 9)))
def test_just_the_length_of_the_tower_or_none_passes(length: int, numbers: list[float]) -> None:
    spec = LOOK.model_copy(update={"length": length})
    for value in (numbers, np.array(numbers)):
        if len(numbers) in (0, length):
            check_features([spec], {"look": value})
            assert is_missing(value) == (not numbers)
        else:
            with pytest.raises(RequestError, match=f"must hold {length} numbers, got {len(numbers)}"):
                check_features([spec], {"look": value})


def test_vectors_become_rows_and_missing_ones_nan() -> None:
    requests = [{"look": [1, 2.5, 3]}, {"look": None}, {}, {"look": []}, {"look": np.array([4.0, 5.0, 6.0])}]
    column = to_columns([LOOK], requests, {"look": 3})["look"]
    assert column.dtype == np.float32
    nan = [np.nan] * 3
    np.testing.assert_array_equal(column, [[1, 2.5, 3], nan, nan, nan, [4, 5, 6]])
    np.testing.assert_array_equal(to_columns([LOOK], [{}], {"look": 3})["look"], [nan])
