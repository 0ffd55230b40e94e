"""Filters equal a slow loop over rows of plain Python values, and each mistake in one is told with its place."""

import json
import math
import operator
from threading import Thread
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from serving.errors import RequestError
from serving.search.conditions import Condition, check, kinds
from serving.search.diversity import holding, values_at
from serving.search.filter_masks import Masks, canonical, mask

# Names that Polars would take for patterns, and one that is a key of conditions.
TEXT, NUMBER, WHOLE, TAGS = "^t.*$", "*", "and", "tags"
SCHEMA = {TEXT: pl.String, NUMBER: pl.Float64, WHOLE: pl.Int64, TAGS: pl.List(pl.String)}
COLUMNS = kinds(pl.DataFrame(schema=SCHEMA).schema)
SINGLE = ["eq", "in", "not_in", "lt", "lte", "gt", "gte"]

CONDITIONS: TypeAdapter[Any] = TypeAdapter(Condition)


class Body(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")
    filter: Condition | None = None


def loop(condition: dict[str, Any], row: dict[str, Any]) -> bool:
    """The definition, of one item."""
    if "and" in condition:
        return all(loop(each, row) for each in condition["and"])
    if "or" in condition:
        return any(loop(each, row) for each in condition["or"])
    if "not" in condition:
        return not loop(condition["not"], row)
    came, op, value = row[condition["column"]], condition["op"], condition["value"]
    if came is None or (isinstance(came, float) and math.isnan(came)):
        return bool(op == "not_in")
    if op == "in":
        return came in value
    if op == "not_in":
        return came not in value
    if op == "has":
        return value in came
    # Python orders strings by code point, too.
    return bool(
        {"eq": operator.eq, "lt": operator.lt, "lte": operator.le, "gt": operator.gt, "gte": operator.ge}[op](
            came, value
        )
    )


# Few values, so that equal ones meet; letters beyond 16 bits sort elsewhere in UTF-16; "" is not missing.
texts = st.sampled_from(["", "a", "b", "ab", "é", "￿", "\U0001f600", "\0"])
numbers = st.sampled_from([0.0, -0.0, 1.0, -1.5, 2.0**60, 5e-324, 1.7e308])
wholes = st.integers(-3, 3)


def comparisons(column: str, values: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    def of(op: str) -> st.SearchStrategy[dict[str, Any]]:
        value = st.lists(values, max_size=4) if op in ("in", "not_in") else values
        return st.fixed_dictionaries({"column": st.just(column), "op": st.just(op), "value": value})

    return st.sampled_from(["has"] if column == TAGS else SINGLE).flatmap(of)


leaves = st.one_of(
    comparisons(TEXT, texts),
    comparisons(NUMBER, numbers | wholes),
    comparisons(WHOLE, wholes | numbers),
    comparisons(TAGS, texts),
)
conditions = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.builds(lambda each: {"and": each}, st.lists(inner, min_size=1, max_size=3)),
        st.builds(lambda each: {"or": each}, st.lists(inner, min_size=1, max_size=3)),
        st.builds(lambda each: {"not": each}, inner),
    ),
    max_leaves=6,
).filter(lambda condition: depth(condition) <= 8)
rows = st.fixed_dictionaries(
    {
        TEXT: st.none() | texts,
        NUMBER: st.none() | st.just(math.nan) | numbers,
        WHOLE: st.none() | wholes,
        TAGS: st.none() | st.lists(st.none() | texts, max_size=3),
    }
)


def depth(condition: Any) -> int:
    inside = [*condition.get("and", []), *condition.get("or", []), *([condition["not"]] if "not" in condition else [])]
    return 1 + max(map(depth, inside), default=0)


@given(condition=conditions, items=st.lists(rows, max_size=8))
@settings(max_examples=200)
def test_a_mask_equals_the_loop_and_so_does_that_of_its_canonical_text(
    condition: dict[str, Any], items: list[dict[str, Any]]
) -> None:
    frame = pl.DataFrame(items, schema=SCHEMA)
    read = Body.model_validate_json(json.dumps({"filter": condition})).filter
    check(read, COLUMNS)
    wanted = [loop(condition, row) for row in items]
    found = mask(read, frame)
    assert found.dtype == np.bool_ and found.tolist() == wanted
    again = CONDITIONS.validate_json(canonical(read))
    assert mask(again, frame).tolist() == wanted
    assert canonical(again) == canonical(read)
    assert Body(filter=read).model_dump() == {"filter": condition}


def test_texts_numbers_and_lists_of_texts_are_filtered_and_other_types_are_not() -> None:
    frame = pl.DataFrame(
        {
            "text": ["x", "y", None],
            "empty": pl.Series([[], [], None], dtype=pl.List(pl.String)),
            "small": pl.Series([1, 2, None], dtype=pl.UInt8),
            "flag": [True, False, None],
            "numbers": [[1], [2], None],
        }
    )
    assert kinds(frame.schema) == {"text": "string", "empty": "list", "small": "number"}
    condition = {"or": [{"column": "text", "op": "eq", "value": "x"}, {"column": "empty", "op": "has", "value": "x"}]}
    assert mask(CONDITIONS.validate_python(condition), frame).tolist() == [True, False, False]
    assert mask(CONDITIONS.validate_python({"column": "small", "op": "gt", "value": -1.5}), frame).tolist() == [
        True, True, False,
    ]  # fmt: skip


def leaf(**changed: Any) -> dict[str, Any]:
    return {"column": TEXT, "op": "eq", "value": "a"} | changed


def nested(levels: int) -> dict[str, Any]:
    return leaf() if levels == 1 else {"not": nested(levels - 1)}


FORMS = 'must be {"column", "op", "value"}, {"and": [...]}, {"or": [...]} or {"not": {...}}'


@pytest.mark.parametrize(
    ("condition", "place", "rule"),
    [
        (7, "filter", FORMS),
        ({}, "filter", FORMS),
        ({"and": [leaf()], "or": [leaf()]}, "filter", FORMS),
        ({"or": [leaf(), {"column": TEXT, "op": "eq"}]}, "filter.or.1", FORMS),
        ({"or": [leaf(), leaf(more=1)]}, "filter.or.1", "hold no other key"),
        ({"and": []}, "filter.and", "at least one condition"),
        ({"and": leaf()}, "filter.and", "at least one condition"),
        ({"and": [leaf(), leaf(op="like")]}, "filter.and.1.op", "must be one of eq, in, not_in, lt, lte, gt, gte, has"),
        ({"not": {"and": [leaf(column=3)]}}, "filter.not.and.0.column", "valid string"),
        (leaf(value=True), "filter.value", "must be a string, a finite number, or a list of them"),
        (leaf(value=None), "filter.value", "must be a string, a finite number, or a list of them"),
        (leaf(value=10**400), "filter.value", "must be a string, a finite number, or a list of them"),
        (leaf(op="in", value=["a", ["b"]]), "filter.value", "must hold strings or finite numbers only"),
        (leaf(op="in", value=["a"] * 1_001), "filter.value", "at most 1,000 values, not 1,001"),
        (nested(9), "filter", "at most 8 conditions deep"),
        ({"and": [leaf()] * 64}, "filter", "at most 64 conditions"),
        ({"and": [leaf()] * 100_000}, "filter", "at most 64 conditions"),
    ],
)  # fmt: skip
def test_a_wrong_form_is_told_with_its_place(condition: Any, place: str, rule: str) -> None:
    with pytest.raises(ValidationError) as raised:
        Body.model_validate_json(json.dumps({"filter": condition}))
    told = {".".join(map(str, each["loc"])): each["msg"] for each in raised.value.errors()}
    assert list(told) == [place]
    assert rule in told[place]


def test_the_limits_themselves_are_allowed_and_no_filter_is_none() -> None:
    for condition in (nested(8), {"and": [leaf()] * 63}, leaf(op="in", value=["a"] * 1_000)):
        assert Body.model_validate({"filter": condition}).filter is not None
    assert Body.model_validate({"filter": None}).filter is None
    with pytest.raises(ValidationError, match="must be a string"):
        Body.model_validate({"filter": leaf(value="\ud800")})


@pytest.mark.parametrize(
    ("condition", "place", "text"),
    [
        (leaf(column="colour"), "filter.column", "no such column 'colour'; there are *, ^t.*$, and, tags"),
        ({"and": [leaf(), leaf(op="has")]}, "filter.and.1.op",
         "column '^t.*$' is a string and takes eq, in, not_in, lt, lte, gt, gte; got has"),
        ({"not": leaf(column=TAGS)}, "filter.not.op", "column 'tags' is a list and takes has; got eq"),
        ({"or": [leaf(op="in")]}, "filter.or.0.value", "must be a list of values for in, got the string 'a'"),
        (leaf(value=["a"]), "filter.value", "must be one value for eq, got a list"),
        (leaf(value=1), "filter.value", "must be a string for column '^t.*$', got the number 1"),
        (leaf(op="in", value=["a", 1]), "filter.value", "must be a string for column '^t.*$', got the number 1"),
        (leaf(column=NUMBER), "filter.value", "must be a number for column '*', got the string 'a'"),
        (leaf(column=TAGS, op="has", value=2.5), "filter.value",
         "must be a string for column 'tags', got the number 2.5"),
    ],
)  # fmt: skip
def test_what_does_not_fit_the_columns_is_told_with_its_place(condition: Any, place: str, text: str) -> None:
    with pytest.raises(RequestError) as raised:
        check(CONDITIONS.validate_python(condition), COLUMNS)
    assert (raised.value.field, raised.value.message) == (place, f"{place}: {text}")


def test_conditions_that_mean_the_same_have_one_canonical_text() -> None:
    def text(condition: Any) -> str:
        return canonical(CONDITIONS.validate_python(condition))

    one, two = leaf(op="in", value=["b", "a", "a"]), leaf(column=NUMBER, value=1)
    assert text({"and": [one, two]}) == text(
        {"and": [leaf(column=NUMBER, value=1.0), leaf(op="in", value=["a", "b"]), two]}
    )
    different = [one, two, {"and": [one, two]}, {"or": [one, two]}, {"not": one}, leaf(op="not_in", value=["a", "b"])]
    different += [leaf(value="1"), leaf(column=NUMBER, value=1, op="lt"), leaf(value='"]')]
    assert len({text(each) for each in different}) == len(different)


def test_masks_are_made_once_kept_within_their_bytes_and_read_only(monkeypatch: pytest.MonkeyPatch) -> None:
    frame = pl.DataFrame({"n": np.arange(1_000.0)})
    made: list[float] = []
    monkeypatch.setattr(
        "serving.search.filter_masks.mask",
        lambda condition, attributes: made.append(condition.value) or mask(condition, attributes),
    )
    below = {n: CONDITIONS.validate_python({"column": "n", "op": "lt", "value": float(n)}) for n in range(1, 9)}
    masks = Masks(frame, most_bytes=3_500)  # three masks of 1,000 bytes with their keys
    for n in (1, 2, 3, 1, 4, 1, 3, 2):
        assert masks.of(below[n]).tolist() == [True] * n + [False] * (1_000 - n)
    assert made == [1, 2, 3, 4, 2]
    with pytest.raises(ValueError, match="read-only"):
        masks.of(below[1])[0] = False
    Masks(frame, most_bytes=10).of(below[5])
    threads = [Thread(target=lambda n=n: [masks.of(below[n]).sum() for _ in range(50)]) for n in below]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert 2_000 < masks._bytes <= 3_500
    assert [int(masks.of(each).sum()) for each in below.values()] == list(below)


@pytest.mark.parametrize("dtype", [pl.Float32, pl.Float64])
@pytest.mark.parametrize(
    ("op", "value", "passing"),
    [
        ("eq", 49.95, [0]), ("in", [0.1, 7], [1]), ("not_in", [49.95, 0.1], [2, 3]), ("lte", 49.95, [0, 1, 2]),
        ("lt", 49.95, [1, 2]), ("gte", 19.99, [0, 2]), ("gt", 19.99, [0]), ("lt", 1e300, [0, 1, 2]),
    ],
)  # fmt: skip
def test_a_float32_column_holds_the_numbers_that_callers_write(
    dtype: type[pl.DataType], op: str, value: Any, passing: list[int]
) -> None:
    """pandas and Spark write prices as float32, of which 49.95 is another number than the 49.95 of JSON."""
    attributes = pl.DataFrame({"price": pl.Series([49.95, 0.1, 19.99, None], dtype=dtype)})
    condition = CONDITIONS.validate_python({"column": "price", "op": op, "value": value})
    assert np.flatnonzero(mask(condition, attributes)).tolist() == passing
    assert values_at(attributes, "price", np.array([2, 0, 3])) == [19.99, 49.95, None]


@pytest.mark.parametrize("name", ["^p.*$", "*"])
def test_diversity_and_answers_take_no_name_for_a_pattern(name: str) -> None:
    frame = pl.DataFrame({name: ["a", "b", None], "price": [1, 2, 3]})
    assert values_at(frame, name, np.array([1, 2])) == ["b", None]
    assert holding(frame[name], ["b"]).tolist() == [False, True, False]
    lists = pl.DataFrame({name: [["a"], ["b", "c"], None]})
    assert holding(lists[name], ["c"]).tolist() == [False, True, False]
