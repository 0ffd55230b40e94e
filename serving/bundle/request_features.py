"""Checks request features against the manifest, pads them, and turns them into one array per input of a tower.

An invalid value is a `RequestError` that names the field. No TensorFlow here.
"""

import json
import math
from collections.abc import Mapping, Sequence
from datetime import MAXYEAR, MINYEAR, UTC, datetime
from functools import partial
from typing import Any, Protocol
from zoneinfo import ZoneInfo

import numpy as np
from numpy.typing import NDArray

from serving.bundle.manifest import FeatureSpec
from serving.errors import RequestError
from serving.search.index import Floats

MISSING: dict[str, Any] = {"string": b"", "float32": math.nan, "int64": -1}
# The greatest value of an integer feature by its kind; Monday is weekday 0.
GREATEST = {"hour": 23, "weekday": 6}
GREATEST_INT64 = 2**63 - 1
CYCLE = 400  # years of the Gregorian calendar: whole weeks
HISTORY_KINDS = ("history", "history_times")  # lists that are cut to their last values if too long
GREATEST_FLOAT32 = 3.4028234663852886e38  # The largest finite float32.


class TowerEncoder(Protocol):
    """A tower of a bundle: `serving.bundle.encoder.Encoder`, or a wrapped function in a test."""

    def encode(self, requests: Sequence[Mapping[str, Any]]) -> Floats:
        """The vectors [B, D] of B requests; zero if training learnt nothing about a request's features."""
        ...


def check_features(specs: Sequence[FeatureSpec], features: Mapping[str, Any], item_id: str | None = None) -> None:
    """Checks the features of one request; None counts as missing. If they are an item's, `item_id` is its own.

    Raises:
        RequestError: an unknown name, a wrong type, a list that is too long, a vector of another length, a number out
            of range, not one time per item of a history, or the id of another item.
    """
    known = {spec.name: spec for spec in specs}
    for name, value in features.items():
        spec = known.get(name)
        if spec is None:
            raise _wrong(name, f"no such feature; this model knows {', '.join(sorted(known)) or 'none'}")
        if value is None:
            continue
        if spec.length is None:
            _check_value(spec, name, value)
            if spec.kind == "id" and item_id not in (None, value):
                raise _wrong(name, "must be the item's own id, which is added; leave it out")
            continue
        if isinstance(value, np.ndarray):
            value = value.tolist()
        if isinstance(value, str | bytes) or not isinstance(value, Sequence):
            raise _wrong(name, f"must be a list, got {type_name(value)}")
        if spec.kind == "vector" and len(value) not in (0, spec.length):
            raise _wrong(name, f"must hold {spec.length} numbers, got {len(value)}")
        if len(value) > spec.length and spec.kind not in HISTORY_KINDS:
            raise _wrong(name, f"at most {spec.length} values, got {len(value)}")
        if spec.kind == "history_times":
            history = features.get(history_of(name))
            items = len(history) if isinstance(history, Sequence) else 0
            if len(value) != items:
                raise _wrong(name, f"one time for each item of {history_of(name)}, {items} here; got {len(value)}")
        # Fast checks, for long lists
        kinds = set(map(type, value))
        if spec.dtype == "string" and kinds <= {str}:
            continue
        greatest = GREATEST.get(spec.kind, GREATEST_INT64)
        if spec.dtype == "int64" and kinds == {int} and min(value) >= 0 and max(value) <= greatest:
            continue
        if spec.dtype == "float32" and all(type(each) is float and abs(each) <= GREATEST_FLOAT32 for each in value):
            continue
        for place, each in enumerate(value):
            _check_value(spec, f"{name}.{place}", each)


def history_of(times: str) -> str:
    """The name of the history that an input of kind "history_times" belongs to."""
    return times.removesuffix("_times")


def is_missing(value: Any) -> bool:
    """Whether a checked value holds nothing: null, an empty string or vector, or a list of only empty strings."""
    if isinstance(value, np.ndarray):
        return not len(value)
    return value is None or (isinstance(value, Sequence) and all(each == "" for each in value))


def to_columns(
    specs: Sequence[FeatureSpec], requests: Sequence[Mapping[str, Any]], least_lengths: Mapping[str, int]
) -> dict[str, NDArray[Any]]:
    """One array per input: [B], or [B, L] with L the longest list of the batch, or `least_lengths` if that is more.

    Missing values, and the ends of short lists, get the dtype's missing value. Histories keep their last values.
    Strings become UTF-8 bytes, as a SavedModel expects.
    """
    columns: dict[str, NDArray[Any]] = {}
    for spec in specs:
        values = [request.get(spec.name) for request in requests]
        dtype: Any = object if spec.dtype == "string" else spec.dtype
        missing = MISSING[spec.dtype]
        if spec.length is None:
            raw = partial(_on_clock, spec) if spec.kind in GREATEST else _raw
            filled = [missing if value is None else raw(value) for value in values]
            columns[spec.name] = np.array(filled, dtype)
            continue
        lists = [[] if value is None else list(value)[-spec.length :] for value in values]
        width = max((len(each) for each in lists), default=0)
        width = max(width, least_lengths.get(spec.name, 1))
        column = np.full((len(lists), width), missing, dtype)
        for row, each in enumerate(lists):
            column[row, : len(each)] = [_raw(value) for value in each]
        columns[spec.name] = column
    return columns


def _check_value(spec: FeatureSpec, name: str, value: Any) -> None:
    if spec.dtype == "string":
        right, expected = isinstance(value, str), "a string"
    elif spec.dtype == "float32":
        # abs() of a huge int stays an int, and the comparison is exact: no OverflowError. NaN fails it too.
        right = _is_number(value) and bool(abs(value) <= GREATEST_FLOAT32)
        expected = "a finite number that float32 can hold"
    else:
        greatest = GREATEST.get(spec.kind, GREATEST_INT64)
        # JSON has one number type: 5.0 is an integer.
        right = _is_number(value) and bool(0 <= value <= greatest) and value == int(value)
        expected = f"a whole number from 0 to {greatest}"
        if spec.kind in GREATEST and isinstance(value, str):
            right = _is_moment(value)
            expected += ", or a time with its zone, such as '2026-01-31T18:30:00Z'"
    if not right:
        raise _wrong(name, f"must be {expected}, got {shown(value)}")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)


def _is_moment(text: str) -> bool:
    """Whether a text is an ISO-8601 time with its zone."""
    try:
        return datetime.fromisoformat(text).tzinfo is not None
    except ValueError:
        return False


def _on_clock(spec: FeatureSpec, value: Any) -> Any:
    """The hour or weekday of a checked value: the number itself, or a time read in the feature's zone."""
    if not isinstance(value, str):
        return value
    moment = datetime.fromisoformat(value)
    # At its ends the calendar has no room for zones; every CYCLE years it has the same days.
    years = {MINYEAR: CYCLE, MAXYEAR: -CYCLE}.get(moment.year, 0)
    local = moment.replace(year=moment.year + years).astimezone(
        UTC if spec.time_zone is None else ZoneInfo(spec.time_zone)
    )
    return local.hour if spec.kind == "hour" else local.weekday()


def _raw(value: Any) -> Any:
    # A lone surrogate has no UTF-8; JSON cannot carry one, and no stored id holds one.
    return value.encode("utf-8", "replace") if isinstance(value, str) else value


def shown(value: Any) -> str:
    """A caller's value if it is short and simple, else its JSON type: the answer must not echo a megabyte."""
    if isinstance(value, bool | int | float) and len(text := json.dumps(value)) <= 30:
        return text
    return type_name(value)


def type_name(value: Any) -> str:
    """The JSON type of a value."""
    if isinstance(value, str):
        return "a string"
    if isinstance(value, Mapping):
        return "an object"
    if isinstance(value, Sequence):
        return "a list"
    return "null" if value is None else "a number"


def _wrong(name: str, reason: str) -> RequestError:
    return RequestError.at(f"features.{name}", reason)
