"""The form: what an address asks, as the request of `POST /recall` that it stands for, and what is wrong with it."""

from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.bundle.manifest import FeatureSpec
from serving.catalogue.times import TimeColumn
from serving.errors import RequestError
from serving.search.conditions import Kind
from serving.window.form import Form
from tests.support.worlds.serving import FEATURES

COLUMNS: dict[str, Kind] = {"title": "string", "year": "number", "tags": "list", "created": "number", "seen": "number"}
TIMES = {"created": TimeColumn(), "seen": TimeColumn(1_000)}
VECTOR = FeatureSpec(name="taste", kind="vector", dtype="float32", length=2)


def request(errors: dict[str, str] | None = None, **fields: str) -> dict[str, Any]:
    form = Form(fields)
    content = form.request((*FEATURES, VECTOR), COLUMNS, TIMES)
    assert form.errors == (errors or {})
    return content


@pytest.mark.parametrize(
    ("fields", "content"),
    [
        ({"user": "u1"}, {"user_id": "u1"}),
        ({"user": " u 1,2 ", "k": " 7 "}, {"user_id": " u 1,2 ", "k": 7}),
        ({"history": "i1\r\ni 2\n\ni3"}, {"history": ["i1", "i 2", "i3"]}),
        ({"user": "u1", "seen": "keep"}, {"user_id": "u1", "exclude_seen": False}),
        ({"exclude": "i1\ni2"}, {"exclude": ["i1", "i2"]}),
        ({"column": "title", "value": "a"}, {"filter": {"column": "title", "op": "eq", "value": "a"}}),
        (
            {"column": "title", "op": "in", "value": "a, b"},
            {"filter": {"column": "title", "op": "in", "value": ["a", "b"]}},
        ),
        ({"column": "year", "op": "gte", "value": "1990"}, {"filter": {"column": "year", "op": "gte", "value": 1990}}),
        ({"column": "tags", "op": "has", "value": "a"}, {"filter": {"column": "tags", "op": "has", "value": "a"}}),
        (
            {"column": "tags", "op": "has", "value": "a",
             "filter": '{"not": {"column": "year", "op": "lt", "value": 2.5}}'},
            {"filter": {"and": [{"column": "tags", "op": "has", "value": "a"},
                                {"not": {"column": "year", "op": "lt", "value": 2.5}}]}},
        ),
        ({"diversity": "title"}, {"diversity": {"column": "title", "most": 1}}),
        ({"diversity": "title", "most": "3"}, {"diversity": {"column": "title", "most": 3}}),
        (
            {"feature.country": "g1", "feature.age": "2.5", "feature.hour": "7", "feature.tags": "x\ny",
             "feature.taste": "0.5\n-1"},
            {"features": {"country": "g1", "age": 2.5, "hour": 7, "tags": ["x", "y"], "taste": [0.5, -1.0]}},
        ),
        ({"feature.hour": "2026-01-31T18:30:00Z"}, {"features": {"hour": "2026-01-31T18:30:00Z"}}),
        ({"feature.hour": "1769884200"}, {"features": {"hour": "2026-01-31T18:30:00Z"}}),
        (
            {"column": "created", "op": "gte", "value": "2026-01-31T19:30+01:00"},
            {"filter": {"column": "created", "op": "gte", "value": 1_769_884_200}},
        ),
        (
            {"column": "created", "op": "gte", "value": "1769884200"},
            {"filter": {"column": "created", "op": "gte", "value": 1_769_884_200}},
        ),
        (
            {"column": "seen", "op": "in", "value": "2026-01-31, 1769884200000"},
            {"filter": {"column": "seen", "op": "in", "value": [1_769_817_600_000, 1_769_884_200_000]}},
        ),
        ({"feature.country": ""}, {}),
        ({"user": "u1", "stored": "leave", "feature.age": "2"}, {"features": {"age": 2}}),
        ({"user": "u1", "stored": "leave", "history": "i1"}, {"user_id": "u1", "history": ["i1"]}),
    ],
)  # fmt: skip
def test_a_form_stands_for_a_request(fields: dict[str, str], content: dict[str, Any]) -> None:
    assert request(**fields) == {"k": 20, "exclude_seen": True} | content


def test_a_form_with_an_item_asks_for_similar_ones() -> None:
    assert request(similar="i1", user="u1", history="i2", exclude="i3") == {"k": 20, "items": ["i1"], "exclude": ["i3"]}


@pytest.mark.parametrize(
    ("fields", "field", "message"),
    [
        ({"k": "0"}, "k", "must be a whole number from 1 to 100, got '0'"),
        ({"k": "101"}, "k", "must be a whole number from 1 to 100, got '101'"),
        ({"k": "²"}, "k", "must be a whole number from 1 to 100, got '²'"),
        ({"k": "9" * 50}, "k", f"must be a whole number from 1 to 100, got '{'9' * 40}…'"),
        ({"diversity": "title", "most": "none"}, "most", "must be a whole number of at least 1, got 'none'"),
        ({"column": "year", "value": "new"}, "value", "must be a number, got 'new'"),
        ({"value": "war"}, "column", "choose a column for 'war'"),
        ({"most": "2", "column": "title", "value": "a"}, "diversity", "choose a column for '2'"),
        ({"column": "year", "value": "2026-01-31"}, "value", "must be a number, got '2026-01-31'"),
        (
            {"column": "created", "value": "May"},
            "value",
            "must be a time such as 2026-01-31T18:30:00Z, or seconds since 1970, got 'May'",
        ),
        (
            {"column": "seen", "value": "2026-02-30"},
            "value",
            "must be a time such as 2026-01-31T18:30:00Z, or milliseconds since 1970, got '2026-02-30'",
        ),
        ({"feature.age": "nan"}, "feature.age", "must be a number, got 'nan'"),
        ({"feature.taste": "1\ninf"}, "feature.taste", "must be a number, got 'inf'"),
        ({"feature.age": "1" * 310}, "feature.age", f"must be a number, got '{'1' * 40}…'"),
        ({"column": "year", "value": "1" * 4_000}, "value", f"must be a number, got '{'1' * 40}…'"),
        ({"feature.planet": "x"}, "", "planet: this bundle's form has no such feature"),
        ({"filter": "{"}, "filter", "not valid JSON: "),
        ({"filter": "[" * 2_000}, "filter", "not valid JSON: "),
        ({"filter": '{"column": "year", "op": "eq", "value": NaN}'}, "filter", "not valid JSON: "),
    ],
)
def test_what_cannot_be_read_is_told_beside_its_field(fields: dict[str, str], field: str, message: str) -> None:
    form = Form(fields)
    form.request((*FEATURES, VECTOR), COLUMNS, TIMES)
    assert form.errors.keys() == {field}
    assert form.errors[field].startswith(message)


@pytest.mark.parametrize(
    ("fields", "field", "beside"),
    [
        ({"user": "u"}, "user_id", "user"),
        ({"history": "i"}, "history", "history"),
        ({"similar": "i"}, "items", "similar"),
        ({"diversity": "x"}, "diversity.column", "diversity"),
        ({"column": "x"}, "filter.column", "column"),
        ({"column": "x", "op": "lt"}, "filter.op", "op"),
        ({"column": "x", "value": "1"}, "filter.value", "value"),
        ({"column": "x", "filter": "{}"}, "filter.and.1", "filter"),
        ({"column": "x", "filter": "{}"}, "filter.and.1.op", "filter"),
        ({"column": "x", "filter": "{}"}, "filter.and.0", "column"),
        ({"column": "x", "filter": "{}"}, "filter.and.0.op", "op"),
        ({"column": "x", "filter": "{}"}, "filter.and.0.value.2", "value"),
        ({"column": "x", "filter": " "}, "filter.op", "op"),
        ({"filter": "{}"}, "filter.and.0.op", "filter"),
        ({"feature.a": "1", "feature.a.b": "2"}, "features.a.b.0", "feature.a.b"),
        ({"feature.a": "1", "feature.a.b": "2"}, "features.a", "feature.a"),
        ({"user": "u"}, None, ""),
    ],
)
def test_what_the_request_forbids_is_told_beside_its_field(
    fields: dict[str, str], field: str | None, beside: str
) -> None:
    form = Form(fields)
    form.refuse(RequestError("the reason", field=field))
    assert form.errors == {beside: "the reason"}


@given(
    st.dictionaries(st.sampled_from(["user", "history", "feature.a&b", "k"]), st.text(max_size=9)), st.text(max_size=9)
)
def test_an_address_holds_the_form_and_its_changes(fields: dict[str, str], changed: str) -> None:
    address = urlsplit(Form(fields).address(user=changed))
    assert (address.path, address.fragment) == ("window", "answer")
    held = {name: text for name, text in (fields | {"user": changed}).items() if text}
    assert dict(parse_qsl(address.query, keep_blank_values=True)) == held
