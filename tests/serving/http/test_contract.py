"""The service keeps its own OpenAPI document: requests made from the document, answers checked against it."""

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings

from serving.http.app import create_app
from serving.search.condition_limits import GREATEST_NODES
from serving.settings import Settings
from tests.support.worlds.serving import write_whole_world

if TYPE_CHECKING:  # No other test needs it, and its import takes a second of each process of tests.
    from schemathesis import Case
    from schemathesis.schemas import BaseSchema

ROUTES = {
    ("/recall", "POST"), ("/recall/batch", "POST"), ("/similar", "POST"), ("/embed", "POST"), ("/events", "POST"),
    ("/impressions", "POST"),
    ("/items", "PUT"), ("/items/{item_id}", "PUT"), ("/items/{item_id}", "DELETE"), ("/admin/reload", "POST"),
    ("/healthz", "GET"), ("/readyz", "GET"), ("/metrics", "GET"),
}  # fmt: skip
# Requests to each route with a body in the default run; the long run makes 2,000 cases of all routes together.
CASES, ALL_CASES = 4, 2_000


@pytest.fixture(scope="module")
def contract(tmp_path_factory: pytest.TempPathFactory) -> Iterator["BaseSchema"]:
    import schemathesis
    from schemathesis.python import asgi

    directory = tmp_path_factory.mktemp("contract")
    # Small limits: one more than 5,000 items takes a generator minutes.
    limits = {"max_batch": 4, "max_items": 4, "max_events": 4, "max_list": 8}
    settings = Settings(bundle=write_whole_world(directory), state=directory / "state", **limits)
    # Schemathesis starts the app itself, and its document then names the features of this bundle.
    yield schemathesis.openapi.from_asgi("/openapi.json", create_app(settings))
    asgi.shutdown_lifespans()


def ask(contract: "BaseSchema", cases: int) -> Counter[tuple[str, str, int]]:
    """Sends `cases` generated requests to each route with a body, half of them made to be wrong; counts the answers."""
    from schemathesis import GenerationMode

    operations = [result.ok() for result in contract.get_all_operations()]
    assert {(each.path, each.method.upper()) for each in operations} == ROUTES
    seen: Counter[tuple[str, str, int]] = Counter()

    def answered_as_documented(case: "Case") -> None:
        response = case.call()
        assert response.status_code < 500
        # JSON Schema cannot limit the number of conditions in a tree.
        if f"must hold at most {GREATEST_NODES} conditions" not in response.text:
            case.validate_response(response)
        seen[case.operation.path, case.operation.method.upper(), response.status_code] += 1

    for operation in operations:
        # One kind after the other: of a few requests drawn from both, all may be of one.
        for mode in GenerationMode if operation.body else [GenerationMode.POSITIVE]:
            examples = -(-cases // 2) if operation.body else 3
            chosen = settings(max_examples=examples, suppress_health_check=list(HealthCheck))
            chosen(given(case=operation.as_strategy(mode))(answered_as_documented))()
    return seen


def test_every_generated_request_is_answered_as_documented(contract: "BaseSchema") -> None:
    assert {(path, method) for path, method, _ in ask(contract, CASES)} == ROUTES


@pytest.mark.slow
@pytest.mark.long
def test_two_thousand_requests_are_answered_as_documented(contract: "BaseSchema") -> None:
    seen = ask(contract, ALL_CASES // 7)
    assert seen.total() >= ALL_CASES
    for path, method in ROUTES:
        # Of a generated item's features training learnt nothing.
        understood = seen[path, method, 200] or (method == "PUT" and seen[path, method, 409])
        assert understood, f"{method} {path} never succeeded"
    assert seen["/recall", "POST", 422]
