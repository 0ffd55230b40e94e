"""A filter in words, with the times of its columns."""

from typing import Any

import pytest
from pydantic import TypeAdapter

from serving.catalogue.catalogue import Wanted
from serving.catalogue.times import TimeColumn
from serving.recall.query import RecallQuery
from serving.search.conditions import Condition
from serving.window.place import KeptOut
from serving.window.trace import Step
from serving.window.wording import Wording

WAR = {"column": "kind", "op": "eq", "value": "war"}
NEW = {"column": "created", "op": "gte", "value": 1_645_253_504}
TAGGED = {"column": "tags", "op": "has", "value": 'a "b"'}


def words(condition: Any) -> str:
    parsed = TypeAdapter[Condition](Condition).validate_python(condition)
    return Wording(RecallQuery(), {"created": TimeColumn()}).condition(parsed)


@pytest.mark.parametrize(
    ("condition", "text"),
    [
        (WAR, 'kind = "war"'),
        (NEW, "created ≥ 2022-02-19T06:51:44Z"),
        ({"column": "year", "op": "lt", "value": 1994.5}, "year < 1994.5"),
        ({"column": "created", "op": "in", "value": [0, 86_399]}, "created is one of 1970-01-01, 1970-01-01T23:59:59Z"),
        ({"column": "created", "op": "lte", "value": 1e300}, "created ≤ 1e+300"),
        ({"column": "kind", "op": "not_in", "value": ["a", "b"]}, 'kind is none of "a", "b"'),
        ({"column": "year", "op": "in", "value": [*range(14)]}, "year is one of 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 4 more"),
        (TAGGED, 'tags has "a \\"b\\""'),
        ({"not": WAR}, 'not (kind = "war")'),
        ({"and": [WAR, {"or": [NEW, WAR]}]}, 'kind = "war" and (created ≥ 2022-02-19T06:51:44Z or kind = "war")'),
    ],
)  # fmt: skip
def test_a_condition_is_read_aloud(condition: Any, text: str) -> None:
    assert words(condition) == text


def test_a_step_and_an_obstacle_name_their_own_condition() -> None:
    condition = TypeAdapter[Condition](Condition).validate_python({"and": [WAR, {"not": NEW}]})
    wording = Wording(RecallQuery(wanted=Wanted(filter=condition)), {"created": TimeColumn()})
    for each, text in zip(condition.conditions, ('kind = "war"', "not (created ≥ 2022-02-19T06:51:44Z)"), strict=True):
        assert wording.step(Step("filter", 2, 1, [], [], each)) == f"filter: {text}"
        assert wording.obstacle(KeptOut("filter", each)) == f"it fails the filter: {text}"


def test_the_items_of_a_request_for_similar_ones_are_not_called_seen() -> None:
    asked, other = (Wording(RecallQuery(similar_to=items), {}) for items in (["i1"], None))
    step, kept = Step("seen", 3, 2, [], [], None), KeptOut("seen", None)
    assert (asked.step(step), asked.obstacle(kept)) == (
        "the items asked about are left out",
        "the request asks for items like it",
    )
    assert (other.step(step), other.obstacle(kept)) == (
        "seen items, and those of the history, are left out",
        "the user has seen it, or it is in the history",
    )
