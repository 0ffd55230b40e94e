"""The HTTP service in this process: answers, every error in the one shape, probes, its own document."""

import asyncio
import json
import logging
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import polars as pl
import pytest
from fastapi.testclient import TestClient

from serving.bundle.reader import Bundle
from serving.bundle.versions import Versions
from serving.errors import BundleError
from serving.http.app import create_app
from serving.recall.recaller import Recaller
from serving.search.condition_limits import GREATEST_NODES
from serving.service import service as service_module
from serving.service.service import Service
from serving.settings import Settings
from tests.support.worlds.serving import ITEMS, save_towers, write_whole_world, write_world


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_whole_world(tmp_path_factory.mktemp("app"))


@pytest.fixture(scope="module")
def client(bundle: Path) -> Iterator[TestClient]:
    app = create_app(Settings(bundle=bundle, max_k=50, max_body_bytes=5_000))
    with TestClient(app, raise_server_exceptions=False) as client:
        yield client


ANSWERS: dict[str, tuple[dict[str, Any], str, list[str]]] = {
    "known user": ({"user_id": "u5", "k": 3}, "user", ["i9", "i13", "i17"]),
    "seen allowed": ({"user_id": "u5", "k": 3, "exclude_seen": False}, "user", ["i1", "i5", "i9"]),
    "excluded": ({"user_id": "u5", "k": 2, "exclude": ["i9", "no such item"]}, "user", ["i13", "i17"]),
    "features": ({"features": {"country": "g2", "age": 1, "tags": ["a"]}, "k": 2}, "features", ["i2", "i6"]),
    "user and features": ({"user_id": "u2", "features": {"country": "g2"}, "k": 1}, "features", ["i10"]),
    "history": ({"history": ["i3", "i7"], "k": 2}, "history", ["i11", "i15"]),
    "unknown user": ({"user_id": "nobody", "k": 2}, "popular", ["i0", "i1"]),
    "no features": ({"features": {}, "k": 1}, "popular", ["i0"]),
    "k of 2.0, hour of 3.0": ({"k": 2.0, "features": {"country": "g1", "hour": 3.0}}, "features", ["i1", "i5"]),
    "nothing": ({"k": 2}, "popular", ["i0", "i1"]),
    "unknown history": ({"history": ["zzz"], "k": 1}, "popular", ["i0"]),
    "nulls": ({"user_id": None, "features": None, "history": None, "k": 1}, "popular", ["i0"]),
}


@pytest.mark.parametrize(("limits", "k"), [({}, 100), ({"max_k": 8}, 8), ({"max_answer_values": 7}, 7)])
def test_a_request_that_names_no_k_fits_the_limits(bundle: Path, limits: dict[str, int], k: int) -> None:
    with TestClient(create_app(Settings(bundle=bundle, **limits))) as client:  # type: ignore[arg-type]
        for path, body, name in (
            ("/recall", {}, "RecallRequest"),
            ("/similar", {"items": ["i1"]}, "SimilarRequest"),
        ):
            told = client.get("/openapi.json").json()["components"]["schemas"][name]["properties"]["k"]["default"]
            answer = client.post(path, json=body)
            assert (answer.status_code, told) == (200, k)
            assert len(answer.json()["items"]) == min(k, ITEMS - (path == "/similar"))
            assert client.post(path, json=body | {"attributes": ["title"]}).status_code == 200


@pytest.mark.parametrize("name", ANSWERS)
def test_recall_gives_the_known_answer(client: TestClient, name: str) -> None:
    body, source, ids = ANSWERS[name]
    response = client.post("/recall", json=body)
    assert response.status_code == 200
    assert response.headers["content-type"] == "application/json"
    answer = response.json()
    assert answer.keys() == {"items", "model_version", "source"}
    assert (answer["source"], answer["model_version"]) == (source, "world-1")
    assert [item["id"] for item in answer["items"]] == ids
    assert all(item.keys() == {"id", "score"} for item in answer["items"])


def test_scores_are_the_dot_products(client: TestClient) -> None:
    items = client.post("/recall", json={"user_id": "u5", "k": 2}).json()["items"]
    exact = np.float32([2 - 9 / ITEMS, 2 - 13 / ITEMS])
    assert [np.float32(item["score"]) for item in items] == exact.tolist()


def test_k_defaults_to_100(tmp_path: Path) -> None:
    write_world(tmp_path / "bundle", items=120, write_towers=save_towers)
    with TestClient(create_app(Settings(bundle=tmp_path / "bundle"))) as client:
        assert len(client.post("/recall", json={"features": {}}).json()["items"]) == 100
        assert client.post("/recall", json={"k": 1000}).status_code == 200
        assert client.post("/recall", json={"k": 1001}).status_code == 422


ERRORS: dict[str, tuple[bytes, int, str, str | None, str]] = {
    "integer id": (b'{"user_id": 7}', 422, "invalid_request", "user_id", "must be a string, got 7; ids are strings"),
    "integer in history": (b'{"history": ["i1", 2]}', 422, "invalid_request", "history.1", "must be a string, got 2"),
    "integer in exclude": (b'{"exclude": [3]}', 422, "invalid_request", "exclude.0", "must be a string, got 3"),
    "unknown key": (b'{"userid": "u1"}', 422, "invalid_request", "userid", "no such key; allowed are user_id, fe"),
    "unknown feature": (b'{"features": {"agee": 1}}', 422, "invalid_request", "features.agee", "no such feature"),
    "wrong feature": (b'{"features": {"age": "x"}}', 422, "invalid_request", "features.age", "must be a finite number"),
    "NaN feature": (b'{"features": {"age": NaN}}', 422, "invalid_request", "features.age", "must be a finite number"),
    "k of zero": (b'{"k": 0}', 422, "invalid_request", "k", "k: must be at least 1, got 0"),
    "k too large": (b'{"k": 51}', 422, "invalid_request", "k", "k: must be at most 50, got 51"),
    "k of a half": (b'{"k": 1.5}', 422, "invalid_request", "k", "k: must be a whole number, got 1.5"),
    "k as string": (b'{"k": "5"}', 422, "invalid_request", "k", "k: must be a whole number, got a string"),
    "k null": (b'{"k": null}', 422, "invalid_request", "k", "k: must be a whole number, got null"),
    "history string": (b'{"history": "i1"}', 422, "invalid_request", "history", "must be a list of strings, got a str"),
    "flag as string": (b'{"exclude_seen": "no"}', 422, "invalid_request", "exclude_seen", "must be true or false"),
    "features list": (b'{"features": []}', 422, "invalid_request", "features", "must be an object, got a list"),
    "a list": (b"[]", 422, "invalid_request", None, "the body: must be an object"),
    "half JSON": (b'{"user_id": ', 400, "invalid_json", None, "the body is not valid JSON"),
    "no body": (b"", 400, "invalid_json", None, "the body is not valid JSON"),
    "not UTF-8": (b'{"user_id": "\xff"}', 400, "invalid_json", None, "the body is not valid JSON"),
    "lone surrogate": (rb'{"user_id": "\ud800"}', 400, "invalid_json", None, "the body is not valid JSON"),
    "deep nesting": (b'{"features":' + b"[" * 2_000, 400, "invalid_json", None, "the body is not valid JSON"),
    "too large": (b'{"user_id": "' + b"x" * 5_000 + b'"}', 413, "too_large", None, "larger than 5000 bytes, got 5015"),
}  # fmt: skip


@pytest.mark.parametrize("name", ERRORS)
def test_every_wrong_body_gets_the_one_error_shape(client: TestClient, name: str) -> None:
    body, status, code, field, message = ERRORS[name]
    response = client.post("/recall", content=body, headers={"content-type": "application/json"})
    assert response.status_code == status
    error = response.json()
    assert error.keys() == {"error"}
    assert error["error"].keys() == {"code", "message", "field"}
    assert (error["error"]["code"], error["error"]["field"]) == (code, field)
    assert message in error["error"]["message"]


@pytest.mark.parametrize(("path", "place"), [("/recall", ""), ("/recall/batch", "queries.0.")])
def test_a_vector_that_is_no_list_is_told_what_it_holds(client: TestClient, path: str, place: str) -> None:
    query = {"vector": {"a": 1}}
    response = client.post(path, json={"queries": [query]} if place else query)
    assert response.json()["error"]["message"] == f"{place}vector: must be a list of numbers, got an object"


@pytest.mark.parametrize(
    ("method", "path", "headers", "status", "code"),
    [
        ("GET", "/nowhere", {}, 404, "not_found"),
        ("POST", "/recall/", {}, 404, "not_found"),
        ("GET", "/recall", {}, 405, "method_not_allowed"),
        ("DELETE", "/healthz", {}, 405, "method_not_allowed"),
        ("POST", "/recall", {"content-type": "text/plain"}, 415, "unsupported_media_type"),
        ("POST", "/recall", {"content-type": ""}, 415, "unsupported_media_type"),
        ("PATCH", "/items/a", {}, 405, "method_not_allowed"),
        ("GET", "/items", {}, 405, "method_not_allowed"),
    ],
)
def test_the_frameworks_errors_have_the_same_shape(
    client: TestClient, method: str, path: str, headers: dict[str, str], status: int, code: str
) -> None:
    response = client.request(method, path, headers=headers, content=b"{}")
    assert response.status_code == status
    assert response.json()["error"]["code"] == code
    assert response.json()["error"].keys() == {"code", "message", "field"}
    if status == 405:
        allowed = {"/recall": "POST", "/healthz": "GET, HEAD", "/items/a": "DELETE, PUT", "/items": "PUT"}
        assert response.headers["allow"] == allowed[path]


@pytest.mark.parametrize(
    ("headers", "said"),
    [
        ({"content-type": "application/json; charset=latin-1"}, "send the body in UTF-8, got 'latin-1'"),
        ({"content-type": 'application/json; x=1; Charset="UTF-16"'}, "send the body in UTF-8, got 'utf-16'"),
        ({"content-type": "text/plain; x=1"}, "send Content-Type: application/json, got 'text/plain; x=1'"),
        ({"content-type": ""}, "send Content-Type: application/json, got none"),
        ({"content-type": "x" * 101}, f"send Content-Type: application/json, got '{'x' * 100}'"),
        ({"content-encoding": "gzip"}, "send the body without Content-Encoding, got 'gzip'"),
        ({"content-encoding": "identity"}, ""),
        ({"content-type": 'application/json;charset="UTF-8"'}, ""),
        ({"content-type": "Application/JSON ; charset=us-ascii"}, ""),
    ],
)
@pytest.mark.parametrize("path", ["/recall", "/similar"])
def test_a_body_in_another_coding_is_refused_as_such(
    client: TestClient, path: str, headers: dict[str, str], said: str
) -> None:
    body = b'{"items": ["\xe9"]}' if said else b'{"items": ["i1"]}' if path == "/similar" else b"{}"
    response = client.post(path, content=body, headers={"content-type": "application/json"} | headers)
    if said:
        assert (response.status_code, response.json()["error"]["code"]) == (415, "unsupported_media_type")
        assert response.json()["error"]["message"] == said
    else:
        assert response.status_code == 200


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/metrics"])
def test_a_probe_may_ask_for_the_head_only(client: TestClient, path: str) -> None:
    head, whole = client.head(path), client.get(path)
    assert (head.status_code, head.headers["content-type"]) == (200, whole.headers["content-type"])


def test_a_huge_wrong_key_is_not_sent_back(client: TestClient) -> None:
    response = client.post("/recall", json={"x" * 4_000: 1})
    assert response.status_code == 422
    assert len(response.content) < 1_500


@pytest.mark.parametrize("body", [{"user_id": "u1"}, {"history": ["i1"]}])
def test_the_text_of_an_exception_goes_to_the_log_and_never_to_the_caller(
    client: TestClient, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, body: dict[str, Any]
) -> None:
    def fails(*_: object) -> None:
        raise ValueError("secret /srv/path")

    monkeypatch.setattr(Recaller, "begin", fails)
    with caplog.at_level(logging.ERROR, logger="uvicorn.error.serving"):
        response = client.post("/recall", json=body)
    assert response.status_code == 500
    assert response.json() == {"error": {"code": "internal", "message": "internal error; see the log", "field": None}}
    assert "secret /srv/path" in caplog.text


def test_before_the_bundle_is_loaded_it_lives_but_is_not_ready(bundle: Path) -> None:
    client = TestClient(create_app(Settings(bundle=bundle)))  # without `with`, nothing is started
    assert client.get("/healthz").status_code == client.get("/metrics").status_code == 200
    for response in (client.get("/readyz"), client.post("/recall", json={})):
        assert response.status_code == 503
        assert response.json()["error"]["code"] == "not_ready"
    assert "features" in client.get("/openapi.json").json()["components"]["schemas"]["RecallRequest"]["properties"]


def test_a_spoilt_bundle_stops_the_start(tmp_path: Path) -> None:
    write_world(tmp_path / "bundle")
    (tmp_path / "bundle" / "popularity.npy").unlink()
    with (
        pytest.raises(BundleError, match=r"popularity\.npy: missing"),
        TestClient(create_app(Settings(bundle=tmp_path / "bundle"))),
    ):
        pass


def test_the_document_names_the_bundles_features_and_has_examples(client: TestClient) -> None:
    document = client.get("/openapi.json").json()
    request = document["components"]["schemas"]["RecallRequest"]
    features = request["properties"]["features"]["anyOf"][0]
    assert features["properties"].keys() == {"user", "country", "age", "hour", "tags", "history"}
    assert features["additionalProperties"] is False
    assert features["properties"]["hour"]["anyOf"][0]["maximum"] == 23
    assert features["properties"]["tags"]["anyOf"][0]["maxItems"] == 3
    assert features["properties"]["history"]["anyOf"][0]["maxItems"] == 10_000
    assert request["properties"]["k"]["maximum"] == 50
    for methods in document["paths"].values():
        for operation in methods.values():
            for response in operation["responses"].values():
                assert all("example" in content for content in response["content"].values())
    new = document["components"]["schemas"]["NamedItem"]["properties"]["features"]
    assert new["properties"].keys() == {"group", "place"} and new["additionalProperties"] is False
    examples = document["paths"]["/recall"]["post"]["requestBody"]["content"]["application/json"]["examples"]
    assert examples.keys() == {"popular", "history", "user"}
    assert f"at most {GREATEST_NODES} conditions" in request["properties"]["filter"]["description"]
    users = Bundle.open(client.app.state.settings.bundle).query_names  # type: ignore[attr-defined]
    assert not set(users) & set(re.findall(r'"([^"]*)"', json.dumps(examples)))
    for name, example in examples.items():
        assert client.post("/recall", json=example["value"]).json()["source"] == {"user": "popular"}.get(name, name)


@pytest.fixture
def versions(tmp_path: Path) -> Versions:
    """A root: `one` is active, `two` has a column more, the candidate tower of `broken` is none."""

    def broken(directory: Path) -> None:
        save_towers(directory)
        (directory / "candidate_tower" / "saved_model.pb").write_bytes(b"not a model")

    root = tmp_path / "root"
    write_world(root / "one", model_version="one", write_towers=save_towers)
    attributes = pl.DataFrame({"year": list(range(ITEMS))})
    write_world(root / "two", model_version="two", write_towers=save_towers, item_attributes=attributes)
    write_world(root / "broken", model_version="broken", write_towers=broken)
    versions = Versions(root)
    versions.activate("one")
    return versions


def test_after_a_swap_the_document_is_the_new_bundles(versions: Versions) -> None:
    with TestClient(create_app(Settings(bundle=versions.root))) as client:

        def columns() -> list[str]:
            schemas = client.get("/openapi.json").json()["components"]["schemas"]
            return list(schemas["DiversityRequest"]["properties"]["column"]["enum"])

        assert columns() == ["title"]
        versions.activate("two")
        assert client.post("/admin/reload").json() == {"active": "two", "canary": None, "refused": {}}
        assert columns() == ["year"]
        versions.set_canary("one", 0.5)
        assert client.post("/admin/reload").json() == {"active": "two", "canary": "one", "refused": {}}


def test_a_reload_to_int8_answers_from_the_same_bundle_in_a_quarter_of_the_numbers(versions: Versions) -> None:
    write_world(versions.root / "int8", model_version="int8", write_towers=save_towers, vectors="int8")
    with TestClient(create_app(Settings(bundle=versions.root, state=versions.root.parent / "state"))) as client:
        asked = {"user_id": "u5", "k": 9}
        before = client.post("/recall", json=asked).json()
        versions.activate("int8")
        assert client.post("/admin/reload").json()["active"] == "int8"
        after = client.post("/recall", json=asked).json()
        assert after["model_version"] == "int8"
        # Its own items, by falling score; a vector's greatest number, 1, makes a code worth a 127th, so half of that.
        assert [item["id"] for item in after["items"]] == [item["id"] for item in before["items"]]
        for one, other in zip(before["items"], after["items"], strict=True):
            assert 0 < abs(one["score"] - other["score"]) < 2 * 0.51 / 127
        put = client.put("/items/i9", json={"features": {"item": "i9", "place": 1 - 9 / ITEMS}})
        assert put.status_code == 200
        assert client.post("/recall", json=asked).json()["items"] == after["items"]


def test_a_callers_vector_is_searched_where_embed_made_it(versions: Versions) -> None:
    versions.set_canary("two", 1.0)
    with TestClient(create_app(Settings(bundle=versions.root))) as client:
        embedded = client.post("/embed", json={"queries": [{"user_id": "u5"}]}).json()
        own = {"user_id": "u5", "vector": embedded["vectors"][0]}
        answers = client.post("/recall/batch", json={"queries": [{"user_id": "u5"}, own]}).json()["answers"]
        assert [answer["model_version"] for answer in answers] == ["two", embedded["model_version"]]
        assert client.post("/recall", json=own).json()["model_version"] == embedded["model_version"] == "one"


def test_a_broken_candidate_tower_is_refused_where_items_may_come(versions: Versions, tmp_path: Path) -> None:
    with TestClient(create_app(Settings(bundle=versions.root, state=tmp_path / "state"))) as client:
        versions.activate("broken")
        answer = client.post("/admin/reload")
        assert answer.status_code == 409 and answer.json()["active"] == "one"
        assert answer.json()["refused"]["broken"].startswith("broken/candidate_tower: TensorFlow cannot load it")
        assert str(tmp_path) not in answer.text
        assert client.put("/items/x", json={"features": {"group": "g1"}}).status_code == 200
    with TestClient(create_app(Settings(bundle=versions.root))) as client:
        assert client.post("/recall", json={}).json()["model_version"] == "broken", "nothing needs that tower"


def test_a_reload_tells_an_unforeseen_exception_only_to_the_log(
    versions: Versions, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(*_: object) -> None:
        raise ValueError("secret")

    with TestClient(create_app(Settings(bundle=versions.root))) as client:
        monkeypatch.setattr(service_module, "probe", fails)
        versions.activate("two")
        with caplog.at_level(logging.INFO, logger="uvicorn.error.serving"):
            answer = client.post("/admin/reload")
        assert answer.json()["refused"] == {"two": "two: cannot be opened: ValueError"}
        assert f"{versions.root / 'two'}: cannot be opened: ValueError: secret" in caplog.text


def test_a_reload_that_fails_or_lasts_holds_up_no_other_look(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = Service(Settings(bundle=bundle, state=tmp_path / "state"))
    opening, refreshed, opened = threading.Event(), threading.Event(), threading.Event()
    checks: list[bool] = []

    def check(again: bool) -> None:
        if not checks:
            checks.append(False)
            raise BundleError("b: bad")
        opening.set()
        checks.append(refreshed.wait(10))
        opened.set()

    monkeypatch.setattr(service.active_bundles, "check", check)
    monkeypatch.setattr(service.live, "refresh", lambda: refreshed.set() if opening.is_set() else None)

    async def watch() -> bool:
        watching = asyncio.create_task(service.watch())
        await asyncio.to_thread(refreshed.wait, 20)
        alive = not watching.done()
        watching.cancel()
        with pytest.raises(asyncio.CancelledError):
            await watching
        return alive

    assert asyncio.run(watch())
    service.stop()
    # `stop` does not wait for a bundle that opens.
    assert opened.wait(10)
    assert checks[:2] == [False, True]


def test_writes_and_reloads_use_up_no_threads_of_others(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def ask() -> list[int]:
        app = create_app(Settings(bundle=bundle, state=tmp_path / "state", max_heavy=101))
        transport = httpx.ASGITransport(app)
        async with app.router.lifespan_context(app), httpx.AsyncClient(transport=transport, base_url="http://x") as web:
            service, free = app.state.service, threading.Event()
            monkeypatch.setattr(service.live, "delete", lambda _: int(free.wait(30)))
            monkeypatch.setattr(service.active_bundles, "check", lambda **_: free.wait(30) and None)
            waiting = [asyncio.create_task(web.delete("/items/i1")) for _ in range(50)]
            waiting += [asyncio.create_task(web.post("/admin/reload")) for _ in range(50)]
            await asyncio.sleep(0.1)
            try:
                async with asyncio.timeout(20):
                    answer = await web.post("/similar", json={"items": ["i1"]})
                    await asyncio.to_thread(int)
            finally:
                free.set()
            return [answer.status_code, *[(await each).status_code for each in waiting]]

    assert set(asyncio.run(ask())) == {200}
