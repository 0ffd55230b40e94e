"""What a report warns of when a service differs from the bundle; the counts come from `pipelines.rankers.service`."""

from typing import Any

import pytest

from pipelines.evaluation.report_table import service_warnings

SAME = {
    "model_version": "a",
    "model_versions": {"a": 1_000},
    "sources": {"user": 1_000},
    "other_source": 0,
    "failed": {},
    "unknown_items": {"items": 0, "places": 0},
}
NOTHING = {"value": 0.0, "low": -0.001, "high": 0.001}


@pytest.mark.parametrize(
    ("changes", "lost", "said"),
    [
        ({}, NOTHING, []),
        (
            {"model_versions": {"a": 600, "b": 1_400}},
            NOTHING,
            ["another model than this bundle's, b, answered 1,400 users"],
        ),
        (
            {"failed": {"deadline": 256}},
            NOTHING,
            ["the service failed 256 users (deadline); each of their targets is a miss"],
        ),
        (
            {},
            {"value": 0.02, "low": 0.01, "high": 0.03},
            ["the service loses 0.0200 (0.0100 to 0.0300) of recall@20, which the index finds"],
        ),
    ],
)
def test_each_difference_is_one_line(changes: dict[str, Any], lost: dict[str, float], said: list[str]) -> None:
    content = {"service": SAME | changes, "recall_lost": {"index_to_service": {"recall@20": lost}}}
    assert service_warnings(content) == said


def test_without_a_service_there_is_nothing_to_say() -> None:
    assert service_warnings({"recall_lost": {}}) == []
