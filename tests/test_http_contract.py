"""The service keeps its own OpenAPI document: requests made from the document, answers checked against it."""

from collections import Counter

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode
from schemathesis.schemas import BaseSchema
from serving_world import write_whole_world

from serving.app import create_app
from serving.settings import Settings

ROUTES = {("/recall", "POST"), ("/healthz", "GET"), ("/readyz", "GET")}


@pytest.fixture(scope="module")
def contract(tmp_path_factory: pytest.TempPathFactory) -> BaseSchema:
    bundle = write_whole_world(tmp_path_factory.mktemp("contract"))
    # Schemathesis starts the app itself, and its document then names the features of this bundle.
    return schemathesis.openapi.from_asgi("/openapi.json", create_app(Settings(bundle=bundle)))


def test_every_generated_request_is_answered_as_documented(contract: BaseSchema) -> None:
    operations = [result.ok() for result in contract.get_all_operations()]
    assert {(each.path, each.method.upper()) for each in operations} == ROUTES
    seen: Counter[tuple[str, int]] = Counter()
    for operation in operations:
        modes = [mode for mode in GenerationMode if operation.body or mode is GenerationMode.POSITIVE]

        @given(case=st.one_of(*(operation.as_strategy(mode) for mode in modes)))
        @settings(max_examples=100 if operation.body else 3, deadline=None, suppress_health_check=list(HealthCheck))
        def answered_as_documented(case: schemathesis.Case) -> None:
            response = case.call_and_validate()
            seen[case.operation.path, response.status_code] += 1

        answered_as_documented()
    assert seen["/recall", 200] > 20 and seen["/recall", 422] > 20
    assert seen["/healthz", 200] and seen["/readyz", 200]
