"""Bodies that no client would send: refused with a status below 500. `test_end_to_end.py` sends one of 100 MB."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from serving.errors import RequestError
from serving.http import request_errors
from serving.http.app import create_app
from serving.http.change_requests import EventsRequest, ImpressionsRequest, ItemsRequest
from serving.http.openapi import BODIES
from serving.http.requests import EmbedRequest, RecallBatchRequest, RecallRequest, SimilarRequest, parse
from serving.settings import Settings
from tests.support.worlds.serving import write_whole_world

PATHS = [(path.replace("{item_id}", "x"), method) for path, method in BODIES]
DEEP = 100_000


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_whole_world(tmp_path_factory.mktemp("hostile"))


@pytest.fixture(scope="module")
def client(bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    # A defect raises here instead of becoming a 500.
    with TestClient(create_app(Settings(bundle=bundle, state=tmp_path_factory.mktemp("state")))) as client:
        yield client


BODIES_SENT = {
    "deep lists": b"[" * DEEP,
    "deep objects": b'{"features":' * DEEP,
    "deep feature": b'{"features":{"age":' + b"[" * 5_000 + b"]" * 5_000 + b"}}",
    "deep filter": b'{"filter":' + b'{"not":' * 1_000 + b'{"column":"title","op":"eq","value":"x"}' + b"}" * 1_001,
    "deep items": b'{"items":[{"id":"x","features":' + b'{"a":' * 5_000 + b"1" + b"}" * 5_003,
    "infinite k": b'{"k":1e400}',
    "long k": b'{"k":' + b"9" * 5_000 + b"}",
    "NaN": b'{"k":NaN,"vector":[NaN,1,1,1,1,1,1,1],"features":{"age":NaN}}',
    "infinite feature": b'{"features":{"age":1e999,"place":-1e999}}',
    "infinite time": b'{"events":[{"id":"e","user_id":"u","item_id":"i","time":1e999}]}',
    "wrong UTF-8": b'{"user_id":"\xff\xfe"}',
    "lone surrogate": b'{"user_id":"\\ud800","items":["\\ud800"]}',
    "byte order mark": b'\xef\xbb\xbf{"k":1}',
    "nothing": b"",
    "null": b"null",
    "zero bytes": b"\0" * 1_000,
    "many exclusions": b'{"exclude":[' + b'"i1",' * 150_000 + b'"i2"]}',
    "many queries": b'{"queries":[' + b"{}," * 300_000 + b"{}]}",
}


@pytest.mark.parametrize(("path", "field"), [("/recall/batch", "queries"), ("/embed", "queries"), ("/items", "items")])
def test_too_many_entries_are_refused_before_each_becomes_an_object(
    client: TestClient, monkeypatch: pytest.MonkeyPatch, path: str, field: str
) -> None:
    """A megabyte of them would hold the event loop for seconds."""
    parsed = list[bytes]()
    monkeypatch.setattr("serving.http.routes.parse", lambda _, body: parsed.append(body))
    body = {field: [{}] * 6_000}
    answer = client.request("PUT" if path == "/items" else "POST", path, json=body)
    most = 5_000 if path == "/items" else 256
    assert (answer.status_code, answer.json()["error"]["message"]) == (
        422,
        f"{field}: must hold at most {most}, got 6000",
    )
    assert parsed == []


@pytest.mark.parametrize("model", [RecallRequest, SimilarRequest, RecallBatchRequest, EmbedRequest, ItemsRequest])
def test_of_many_unknown_keys_no_list_of_errors_is_made(
    model: type[BaseModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    def listed(*_: object, **__: object) -> list[object]:
        raise AssertionError("half a second in the event loop for a megabyte of keys")

    body = dict.fromkeys((f"a{number}" for number in range(200)), 1)
    count = 200 + sum(each.is_required() for each in model.model_fields.values())
    with monkeypatch.context() as patch:
        patch.setattr(request_errors, "explained", listed)
        with pytest.raises(RequestError) as found:
            parse(model, json.dumps(body).encode())
    assert str(found.value) == f"the body has {count} faults, most of them keys that do not exist"
    with pytest.raises(RequestError, match=r"a0: no such key|is missing"):
        parse(model, json.dumps(dict(list(body.items())[:90])).encode())


@pytest.mark.parametrize(
    ("model", "body"),
    [
        (RecallRequest, {"exclude": [1, 2, 3]}),
        (RecallRequest, {"history": [1, 2, 3], "allow": None}),
        (RecallRequest, {"vector": ["a", "b"]}),
        (SimilarRequest, {"items": [1, 2]}),
        (RecallBatchRequest, {"queries": [1, 2, 3]}),
        (EmbedRequest, {"queries": [1, 2, 3]}),
        (ItemsRequest, {"items": [{}, {}]}),
        (EventsRequest, {"events": [1, 2]}),
        (ImpressionsRequest, {"impressions": [{}, {}]}),
    ],
)
def test_of_a_list_of_wrong_values_the_first_is_looked_at(model: type[BaseModel], body: dict[str, Any]) -> None:
    """Each of half a million would become an error of its own."""
    with pytest.raises(ValidationError) as found:
        model.model_validate_json(json.dumps(body))
    assert {error["loc"][:2] for error in found.value.errors()} == {(next(iter(body)), 0)}


@pytest.mark.parametrize("name", BODIES_SENT)
@pytest.mark.parametrize(("path", "method"), PATHS)
def test_a_hostile_body_is_refused_or_answered(client: TestClient, path: str, method: str, name: str) -> None:
    response = client.request(method, path, content=BODIES_SENT[name], headers={"content-type": "application/json"})
    assert response.status_code < 500
    if response.status_code != 200:
        assert response.json()["error"].keys() == {"code", "message", "field"}
        assert len(response.content) < 2_000


@given(body=st.binary(max_size=200), place=st.sampled_from(PATHS))
@settings(max_examples=200)
def test_random_bytes_are_refused(client: TestClient, body: bytes, place: tuple[str, str]) -> None:
    path, method = place
    response = client.request(method, path, content=body, headers={"content-type": "application/json"})
    assert response.status_code in (200, 400, 422)
