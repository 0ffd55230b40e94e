"""The routes beside `POST /recall`, and what its other fields do: known answers, errors that name their field."""

import re
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import Any
from unittest.mock import Mock

import numpy as np
import polars as pl
import pytest
from fastapi.testclient import TestClient

from serving.bundle.reader import Bundle
from serving.catalogue.journal import Impression
from serving.catalogue.overlay import Change
from serving.http import routes
from serving.http.app import create_app
from serving.recall.query import RecallQuery
from serving.recall.recaller import Recaller
from serving.search.exact import ExactIndex
from serving.service.service import WRITERS
from serving.settings import Settings
from serving.telemetry import metrics
from tests.support.paths import ROOT
from tests.support.worlds.serving import ITEMS, item_vectors, query_vector, save_towers, write_world


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    directory = tmp_path_factory.mktemp("routes")
    attributes = pl.DataFrame(
        {
            "title": [f"Title {row}" for row in range(ITEMS)],
            "year": [None if row % 3 == 0 else 2000 + row for row in range(ITEMS)],
            "tags": [["odd"] if row % 2 else ["even", "all"] for row in range(ITEMS)],
        }
    )
    write_world(directory / "bundle", item_attributes=attributes, write_towers=save_towers)
    settings = Settings(
        bundle=directory / "bundle", state=directory / "state", max_k=50, max_batch=3, max_items=2,
        max_events=2, max_list=20,
        max_body_bytes=5_000, max_answer_values=150, max_conditions=6,
    )  # fmt: skip
    with TestClient(create_app(settings), raise_server_exceptions=False) as client:
        yield client


WAIT_S = 60.0
GROUP_1 = [0.0, 1, 0, 0, 0, 0, 0, 1]
SHOWN = {"id": "s", "request_id": "r-1", "user_id": "u", "item_ids": ["i2", "i1"], "time": 1}
YEAR = {"column": "year", "op": "gte", "value": 2020}
ANSWERS: dict[str, tuple[dict[str, Any], str, list[str]]] = {
    "vector": ({"vector": GROUP_1, "k": 2}, "vector", ["i1", "i5"]),
    "vector and features": ({"vector": GROUP_1, "features": {"country": "g2"}, "k": 1}, "vector", ["i1"]),
    "vector of a user": ({"vector": GROUP_1, "user_id": "u5", "k": 1}, "vector", ["i9"]),
    "zero vector": ({"vector": [0] * 8, "k": 1}, "popular", ["i0"]),
    "allow": ({"user_id": "u5", "allow": ["i2", "i13", "i33", "x"], "k": 9}, "user", ["i13", "i33", "i2"]),
    "filter": ({"user_id": "u5", "filter": YEAR, "k": 2}, "user", ["i25", "i29"]),
    "filter of a list": (
        {"vector": GROUP_1, "filter": {"column": "tags", "op": "has", "value": "even"}, "k": 2},
        "vector",
        ["i0", "i2"],
    ),
    "filter and diversity": (
        {"vector": GROUP_1, "filter": YEAR, "diversity": {"column": "tags", "most": 1}, "k": 9},
        "vector",
        ["i25", "i20"],
    ),
    "nothing allowed": ({"allow": [], "k": 3}, "popular", []),
    "popular and filtered": ({"filter": {"not": YEAR}, "exclude": ["i0"], "k": 2}, "popular", ["i1", "i2"]),
    "id and fresh history": ({"user_id": "u5", "history": ["i2"], "k": 1}, "history", ["i6"]),
}


@pytest.mark.parametrize("name", ANSWERS)
def test_recall_gives_the_known_answer(client: TestClient, name: str) -> None:
    body, source, ids = ANSWERS[name]
    response = client.post("/recall", json=body)
    assert response.status_code == 200, response.text
    assert (response.json()["source"], [item["id"] for item in response.json()["items"]]) == (source, ids)


def test_a_batch_gives_the_answers_of_its_queries(client: TestClient) -> None:
    bodies = [{"user_id": "u5", "k": 3}, {"features": {"country": "g2"}, "k": 2}, {"k": 1, "filter": YEAR}]
    answers = client.post("/recall/batch", json={"queries": bodies}).json()["answers"]
    assert answers == [client.post("/recall", json=body).json() for body in bodies]


def test_a_long_batch_gives_its_answers_in_order(client: TestClient) -> None:
    bundle = client.app.state.settings.bundle  # type: ignore[attr-defined]
    bodies = [{"user_id": f"u{number % 15}", "k": 1 + number % 3} for number in range(150)]
    with TestClient(create_app(Settings(bundle=bundle, max_batch=len(bodies)))) as long:
        answers = long.post("/recall/batch", json={"queries": bodies}).json()["answers"]
        assert answers == [long.post("/recall", json=body).json() for body in bodies]


def test_the_different_filters_of_a_batch_share_one_limit(client: TestClient) -> None:
    def asked(*filters: dict[str, Any] | None) -> tuple[int, Any]:
        response = client.post("/recall/batch", json={"queries": [{"k": 1, "filter": each} for each in filters]})
        return response.status_code, response.json().get("error")

    four = {"and": [YEAR, {"not": {"column": "tags", "op": "has", "value": "even"}}]}  # with the `and` and the `not`
    assert asked(four, {"and": four["and"][::-1]}, four)[0] == 200, "equal but for their order"
    assert asked(four, YEAR, None)[0] == 200
    status, error = asked(four, {"not": YEAR}, {"column": "year", "op": "lt", "value": 2030})
    assert (status, error["field"]) == (422, "queries")
    assert error["message"] == "queries: its different filters must hold at most 6 conditions together, got 7"


def test_similar_items_are_nearest_to_the_mean_of_the_given(client: TestClient) -> None:
    answer = client.post("/similar", json={"items": ["i1", "i5"], "k": 2}).json()
    unit = [vector / np.linalg.norm(vector) for vector in item_vectors()[[1, 5]]]
    scores = item_vectors() @ np.mean(unit, axis=0)
    best = [row for row in np.argsort(-scores).tolist() if row not in (1, 5)][:2]
    assert (answer["source"], [item["id"] for item in answer["items"]]) == ("similar", [f"i{row}" for row in best])
    filtered = client.post("/similar", json={"items": ["i1"], "k": 1, "filter": YEAR}).json()
    assert filtered["items"][0]["id"] == "i25"
    assert client.post("/similar", json={"items": ["nothing"], "k": 1}).json()["source"] == "popular"


@pytest.mark.parametrize(
    ("wanted", "ids"),
    [
        # i1 is the given one; then come the items of its group, by row, then all others, by row.
        ({"exclude": ["i5"], "k": 2}, ["i9", "i13"]),
        ({"allow": ["i1", "i2", "i13"], "k": 9}, ["i13", "i2"]),
        ({"diversity": {"column": "tags", "most": 1}, "k": 9}, ["i5", "i0"]),
    ],
)
def test_similar_items_are_those_that_are_wanted(client: TestClient, wanted: dict[str, Any], ids: list[str]) -> None:
    answer = client.post("/similar", json={"items": ["i1"], **wanted}).json()
    assert (answer["source"], [item["id"] for item in answer["items"]]) == ("similar", ids)


def test_a_stranger_gets_what_is_popular_in_the_segment(tmp_path: Path) -> None:
    frame = pl.DataFrame({"segment": ["no"], "rows": [[40, 3]], "counts": [[9, 5]]})
    write_world(tmp_path / "bundle", segmented_by="country", popular_segments=frame, write_towers=save_towers)
    with TestClient(create_app(Settings(bundle=tmp_path / "bundle"))) as client:
        answer = client.post("/recall", json={"segment": "no", "k": 3}).json()
    assert answer["source"] == "popular"
    assert [(item["id"], item["score"]) for item in answer["items"]] == [("i40", 9), ("i3", 5), ("i0", 0)]


def test_embed_gives_the_vectors_that_recall_searches_with(client: TestClient) -> None:
    queries = [{"user_id": "u5"}, {"features": {"country": "g2", "age": 3}}, {}]
    answer = client.post("/embed", json={"queries": queries}).json()
    expected = [query_vector({"user": "u5"}), query_vector({"country": "g2", "age": 3}), np.zeros(8)]
    np.testing.assert_allclose(answer["vectors"], expected, rtol=1e-6)
    assert (answer["sources"], answer["model_version"]) == (["user", "features", "popular"], "world-1")


def test_live_items_come_and_go(client: TestClient) -> None:
    put = client.put("/items/a%2Fb c", json={"features": {"group": "g3", "place": 9}, "attributes": {"year": 2500}})
    assert put.status_code == 200, put.text
    body = {"vector": [0, 0, 0, 1, 0, 0, 0, 1], "k": 1, "filter": {"column": "year", "op": "eq", "value": 2500}}
    assert client.post("/recall", json=body).json()["items"][0]["id"] == "a/b c"
    assert client.delete("/items/a%2Fb c").json()["seq"] > put.json()["seq"]
    assert client.post("/recall", json=body).json()["items"] == []


@pytest.mark.parametrize("path", ["größe", "gr%C3%B6%C3%9Fe%EF%BF%BD", "%F0%9F%8E%81", "a%0Db", "%20", "..%2F%2e"])
def test_an_id_in_a_path_may_be_any_line_of_text(client: TestClient, path: str) -> None:
    """The sign for what is not UTF-8 is a letter like others where the caller has sent it."""
    assert client.delete(f"/items/{path}").status_code == 200


ERRORS: dict[str, tuple[str, str, Any, int, str | None, str]] = {
    "short vector": ("POST", "/recall", {"vector": [1]}, 422, "vector", "must hold 8 numbers, got 1"),
    "huge vector": ("POST", "/recall", {"vector": [1e30] * 8}, 422, "vector", "must lie within"),
    "word in vector": ("POST", "/recall", {"vector": ["a"]}, 422, "vector.0", "must be a number, got a string"),
    "unknown column": (
        "POST", "/recall", {"filter": YEAR | {"column": "yeer"}}, 422, "filter.column",
        "no such column 'yeer'; there are tags, title, year",
    ),
    "wrong operator": ("POST", "/recall", {"filter": {"and": [YEAR | {"op": "has"}]}}, 422, "filter.and.0.op", "is a"),
    "no condition": ("POST", "/recall", {"filter": {}}, 422, "filter", "must be"),
    "diverse by nothing": (
        "POST", "/recall", {"diversity": {"column": "hue", "most": 1}}, 422, "diversity.column",
        "there are tags",
    ),
    "diverse by none": (
        "POST", "/recall", {"diversity": {"column": "tags", "most": 0}}, 422, "diversity.most", "at least 1, got 0",
    ),
    "empty batch": ("POST", "/recall/batch", {"queries": []}, 422, "queries", "must hold at least 1, got a list of 0"),
    "long batch": ("POST", "/recall/batch", {"queries": [{}] * 4}, 422, "queries", "must hold at most 3, got 4"),
    "k in a batch": ("POST", "/recall/batch", {"queries": [{}, {"k": 51}]}, 422, "queries.1.k", "at most 50, got 51"),
    "large answer of a batch": (
        "POST", "/recall/batch", {"queries": [{}, {"k": 50}, {"attributes": ["year"], "k": 26}]}, 422, "queries",
        "the sum over all queries of k x (1 + attributes) must be at most 150, got 152",
    ),
    "large answer": (
        "POST", "/recall", {"k": 50, "attributes": ["year", "title", "tags"]}, 422, "k",
        "k x (1 + attributes) must be at most 150, got 200",
    ),
    "large answer of one of a batch": (
        "POST", "/recall/batch", {"queries": [{}, {"k": 38, "attributes": ["year"] * 3}]}, 422, "queries.1.k",
        "must be at most 150, got 152",
    ),
    "large answer of the similar": (
        "POST", "/similar", {"items": ["i1"], "k": 50, "attributes": ["year"] * 3}, 422, "k",
        "must be at most 150, got 200",
    ),
    "feature in a batch": (
        "POST", "/recall/batch", {"queries": [{}, {"features": {"age": "x"}}]}, 422, "queries.1.features.age", "number",
    ),
    "filter in a batch": (
        "POST", "/recall/batch", {"queries": [{}, {"filter": YEAR | {"column": "x"}}]}, 422, "queries.1.filter.column",
        "no such column 'x'",
    ),
    "long history among features": (
        "POST", "/recall", {"features": {"history": ["i1"] * 21}}, 422, "features.history",
        "must hold at most 20, got 21",
    ),
    "long list among features of a batch": (
        "POST", "/recall/batch", {"queries": [{}, {"features": {"tags": ["a"] * 21}}]}, 422, "queries.1.features.tags",
        "must hold at most 20, got 21",
    ),
    "long history to embed": (
        "POST", "/embed", {"queries": [{"features": {"history": ["i1"] * 21}}]}, 422, "queries.0.features.history",
        "must hold at most 20, got 21",
    ),
    "feature to embed": (
        "POST", "/embed", {"queries": [{}, {"features": {"agee": 1}}]}, 422, "queries.1.features.agee",
        "no such feature",
    ),
    "similar to nothing": ("POST", "/similar", {}, 422, "items", "is missing"),
    "similar for a user": ("POST", "/similar", {"items": ["i1"], "user_id": "u"}, 422, "user_id", "allowed are k, ex"),
    "many items": ("PUT", "/items", {"items": [{"id": "a"}] * 3}, 422, "items", "must hold at most 2, got 3"),
    "item without id": ("PUT", "/items", {"items": [{"features": {}}]}, 422, "items.0.id", "is missing"),
    "line break in an id": (
        "PUT", "/items", {"items": [{"id": "a\nb"}]}, 422, "items.0.id",
        "must hold more than blanks, and no line break",
    ),
    "return in an id": (
        "PUT", "/items", {"items": [{"id": "a\rb"}]}, 422, "items.0.id",
        "must hold more than blanks, and no line break",
    ),
    "blank id": ("PUT", "/items", {"items": [{"id": " \u2003"}]}, 422, "items.0.id", "must hold more than blanks"),
    "line break in a path": (
        "PUT", "/items/x%0Ay", {"features": {"group": "g1"}}, 422, "item_id",
        "item_id: must hold more than blanks, and no line break",
    ),
    "line break at the end of a path": (
        "DELETE", "/items/x%0A", None, 422, "item_id", "item_id: must hold no line feed, got a string",
    ),
    "return at the end of a path": ("PUT", "/items/x%0D", {}, 422, "item_id", "and no line break"),
    "blank in a path": ("PUT", "/items/%20", {}, 422, "item_id", "item_id: must hold more than blanks"),
    "no text in a path": (
        "PUT", "/items/x%FFy", {"features": {"group": "g1"}}, 422, "item_id", "item_id: must be URL-encoded UTF-8",
    ),
    "half a letter in a path": ("DELETE", "/items/%C3", None, 422, "item_id", "must be URL-encoded UTF-8"),
    "unknown values": ("PUT", "/items/x", {"features": {"group": "g9"}}, 409, "features", "training learnt nothing"),
    "long id": ("DELETE", f"/items/{'x' * 1001}", None, 422, "item_id", "must have at most 1000 characters, got 1001"),
    "wrong attribute": (
        "PUT", "/items/x", {"features": {"group": "g1"}, "attributes": {"year": "x"}}, 422, "attributes.year",
        "must be a whole number",
    ),
    "attribute in a list": (
        "PUT", "/items/x", {"features": {"group": "g1"}, "attributes": {"tags": ["a", 1]}}, 422, "attributes.tags.1",
        "must be a string, got 1",
    ),
    "features of another item": (
        "PUT", "/items/i8", {"features": {"item": "i1"}}, 422, "features.item",
        "must be the item's own id, which is added; leave it out",
    ),
    "unknown key of an event": (
        "POST", "/events", {"events": [{"id": "e", "user_id": "u", "item_id": "i", "time": 1, "x": 1}]}, 422,
        "events.0.x", "no such key; allowed are id, user_id, item_id, time, type",
    ),
    "unknown key of a limit": (
        "POST", "/recall", {"diversity": {"column": "tags", "most": 1, "x": 1}}, 422, "diversity.x",
        "no such key; allowed are column, most",
    ),
    "event without id": (
        "POST", "/events", {"events": [{"user_id": "u", "item_id": "i", "time": 1}]}, 422, "events.0.id", "is missing",
    ),
    "event of a date": (
        "POST", "/events", {"events": [{"id": "e", "user_id": "u", "item_id": "i", "time": 20261201}]}, 422,
        "events.0.time", "must be in seconds since 1970, not a date of 8 digits, got 20261201",
    ),
    "event of a day that there is not": (
        "POST", "/events", {"events": [{"id": "e", "user_id": "u", "item_id": "i", "time": 20260230}]}, 422,
        "events.0.time", "must be in seconds since 1970, not a date of 8 digits, got 20260230",
    ),
    "event of an empty type": (
        "POST", "/events", {"events": [{"id": "e", "user_id": "u", "item_id": "i", "time": 1, "type": ""}]}, 422,
        "events.0.type", "must not be empty",
    ),
    "event of a wrong type": (
        "POST", "/events", {"events": [{"id": "e", "user_id": "u", "item_id": "i", "time": 1, "type": 3}]}, 422,
        "events.0.type", "must be a string",
    ),
    "milliseconds": (
        "POST", "/events", {"events": [{"id": "e", "user_id": "u", "item_id": "i", "time": 1e11}]}, 422,
        "events.0.time", "must be at most",
    ),
    "impression of nothing": (
        "POST", "/impressions", {"impressions": [SHOWN | {"item_ids": []}]}, 422, "impressions.0.item_ids",
        "must hold at least 1",
    ),
    "impression without its request": (
        "POST", "/impressions", {"impressions": [{k: SHOWN[k] for k in SHOWN if k != "request_id"}]}, 422,
        "impressions.0.request_id", "is missing",
    ),
    "many impressions": ("POST", "/impressions", {"impressions": [SHOWN] * 3}, 422, "impressions", "at most 2, got 3"),
    "many items shown": (
        "POST", "/impressions", {"impressions": [SHOWN, SHOWN | {"item_ids": ["i"] * 21}]}, 422,
        "impressions.1.item_ids", "must hold at most 20, got 21",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ERRORS)
def test_a_wrong_request_names_its_field(client: TestClient, name: str) -> None:
    method, path, body, status, field, said = ERRORS[name]
    response = client.request(method, path, json=body)
    error = response.json()["error"]
    assert (response.status_code, error["field"]) == (status, field), error
    assert said in error["message"] and error["message"].startswith(field or "")


def test_an_empty_id_is_told_as_such(client: TestClient) -> None:
    assert client.delete("/items/").json()["error"]["message"] == "item_id: must not be empty"


def test_impressions_are_kept_once_and_change_no_answer(client: TestClient) -> None:
    service = client.app.state.service  # type: ignore[attr-defined]
    before = client.post("/recall", json={"user_id": "u5"}).json()
    impressions = [SHOWN | {"user_id": "u5", "item_ids": [each["id"] for each in before["items"][:3]]}]
    assert [client.post("/impressions", json={"impressions": impressions * 2}).json() for _ in range(2)] == [
        {"added": 1}, {"added": 0},
    ]  # fmt: skip
    assert client.post("/recall", json={"user_id": "u5"}).json() == before
    ((_, kept),) = service.journal.impressions_since(0)
    assert kept == Impression("s", "r-1", "u5", tuple(impressions[0]["item_ids"]), 1)


@pytest.mark.parametrize("features", [{"item": None}, {"item": "i8"}, {}])
def test_the_features_of_an_item_get_its_id(tmp_path: Path, features: dict[str, Any]) -> None:
    write_world(tmp_path / "bundle", write_towers=save_towers)
    with TestClient(create_app(Settings(bundle=tmp_path / "bundle", state=tmp_path / "state"))) as client:
        assert client.put("/items/i8", json={"features": features}).status_code == 200
        assert client.post("/similar", json={"items": ["i8"], "k": 1}).json()["items"][0]["id"] == "i0", "its group"


def test_of_a_user_the_newest_events_are_held_as_many_as_the_setting_says(tmp_path: Path) -> None:
    write_world(tmp_path / "bundle", write_towers=save_towers)
    settings = Settings(bundle=tmp_path / "bundle", state=tmp_path / "state", max_user_events=2)
    events = [{"id": f"e{time}", "user_id": "u5", "item_id": f"i{time}", "time": time} for time in (2, 3, 1)]
    app = create_app(settings)
    with TestClient(app) as client:
        assert client.post("/events", json={"events": events}).json() == {"added": 3}
        assert [each.item_id for each in app.state.service.live.users.taken("u5")] == ["i2", "i3"]
    restarted = create_app(settings)
    with TestClient(restarted) as client:
        assert client.get("/readyz").status_code == 200
        assert [each.item_id for each in restarted.state.service.live.users.taken("u5")] == ["i2", "i3"]


def test_every_metric_of_the_alerts_is_in_a_scrape(client: TestClient) -> None:
    rules = (ROOT / "deploy" / "prometheus" / "alerts.yml").read_text(encoding="utf-8")
    named = set(re.findall(r"\btowers_\w+", rules))
    types = dict(re.findall(r"^# TYPE (\w+) (\w+)$", client.get("/metrics").text, re.MULTILINE))
    scraped = {name if kind != "histogram" else f"{name}_bucket" for name, kind in types.items()}
    assert len(named) > 8 and named <= scraped


def test_an_answer_as_large_as_allowed_is_given(client: TestClient) -> None:
    queries = [{}, {"k": 50}, {"attributes": ["year"], "k": 25}]
    answers = client.post("/recall/batch", json={"queries": queries}).json()["answers"]
    assert [len(answer["items"]) for answer in answers] == [50, 50, 25]


def test_without_state_nothing_can_be_changed(tmp_path: Path) -> None:
    write_world(tmp_path / "bundle", write_towers=save_towers)
    with TestClient(create_app(Settings(bundle=tmp_path / "bundle"))) as client:
        for method, path, body in (
            ("PUT", "/items/x", {"features": {"group": "g1"}}),
            ("DELETE", "/items/x", None),
            ("POST", "/events", {"events": [{"id": "e", "user_id": "u", "item_id": "i", "time": 1}]}),
            ("POST", "/impressions", {"impressions": [SHOWN]}),
        ):
            response = client.request(method, path, json=body)
            assert (response.status_code, response.json()["error"]["code"]) == (409, "no_state")


def test_what_cannot_be_written_is_not_acknowledged(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = client.app.state.service.journal  # type: ignore[attr-defined]
    from serving.catalogue.journal import JournalError

    def fails(*_: object) -> int:
        raise JournalError("/secret/path: disk full")

    monkeypatch.setattr(journal, "put_items", fails)
    response = client.put("/items/x", json={"features": {"group": "g1"}})
    assert (response.status_code, response.json()["error"]["code"]) == (503, "not_written")
    assert "secret" not in response.text


def test_a_write_whose_caller_was_told_that_it_is_late_never_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The caller has sent it again, and perhaps a later one: it must not undo these."""
    write_world(tmp_path / "bundle", write_towers=save_towers)
    settings = Settings(bundle=tmp_path / "bundle", state=tmp_path / "state", request_timeout_s=0.3)
    refused: list[str] = []
    monkeypatch.setattr(metrics, "refused", refused.append)
    with TestClient(create_app(settings)) as client, ThreadPoolExecutor(WRITERS + 1) as callers:
        service = client.app.state.service  # type: ignore[attr-defined]
        delete, begun, ended, gate = service.live.delete, list[str](), list[str](), Event()

        def held(items: list[str]) -> int:
            begun.extend(items)
            gate.wait(WAIT_S)
            done = delete(items)
            ended.extend(items)
            return int(done)

        def until(met: list[str], count: int) -> None:
            deadline = time.monotonic() + WAIT_S
            while len(met) < count:
                assert time.monotonic() < deadline, (met, count)
                time.sleep(0.01)

        monkeypatch.setattr(service.live, "delete", held)
        try:
            first = [callers.submit(client.delete, f"/items/held{number}") for number in range(WRITERS)]
            until(begun, WRITERS)
            late = callers.submit(client.delete, "/items/late")
            until(refused, WRITERS + 1)
        finally:
            gate.set()
        until(ended, WRITERS)
        # The next one may take as long as its flush does: on a busy disk more than the others were given.
        monkeypatch.setitem(vars(settings), "request_timeout_s", WAIT_S)
        assert client.delete("/items/next").status_code == 200
        told = [(each.result().status_code, each.result().json()["error"]["code"]) for each in (*first, late)]
        assert told == [(503, "timeout")] * (WRITERS + 1)
        assert sorted(begun) == [*(f"held{number}" for number in range(WRITERS)), "next"]


def test_long_lists_are_not_looked_up_on_the_event_loop(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """However small the catalogue is: a micro-batch of such queries would stop all other requests for a second."""
    batcher, inline = client.app.state.service.batcher, list[RecallQuery]()  # type: ignore[attr-defined]
    answer = batcher.answer

    async def noted(recaller: Recaller, query: RecallQuery) -> Any:
        inline.append(query)
        return await answer(recaller, query)

    monkeypatch.setattr(batcher, "answer", noted)
    for most, here in ((4, 1), (3, 0)):
        monkeypatch.setattr(routes, "INLINE_IDS", most)
        for body in (
            {"exclude": ["i1"] * 4},
            {"history": ["i1", "i2"], "exclude": ["i3", "i4"], "user_id": "u5"},
            {"features": {"history": ["i1", "i2"], "tags": ["a"], "age": 3}, "history": ["i3"]},
        ):
            assert client.post("/recall", json=body).status_code == 200
            assert len(inline) == here, body
            inline.clear()


def test_what_live_items_or_segments_make_slow_is_not_answered_on_the_event_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_world(tmp_path / "bundle")
    bundle = Bundle.open(tmp_path / "bundle")
    recaller = Recaller(bundle, ExactIndex(bundle.item_vectors))
    live, vector = recaller.catalogue.live, np.ones(8, np.float32)
    monkeypatch.setattr(routes, "INLINE_NUMBERS", ITEMS * 8)
    user = RecallQuery(user_id="u5")
    assert routes._is_fast(recaller, user)
    assert not routes._is_fast(recaller, RecallQuery(segment="young"))
    live.apply([Change(f"new{number}", vector) for number in range(ITEMS)])
    assert routes._is_fast(recaller, user)
    live.apply([Change("one more", vector)])
    assert not routes._is_fast(recaller, user)
    live.apply([Change("one more", None)])
    assert routes._is_fast(recaller, user)
    monkeypatch.setattr(routes, "SMALLEST_K", 2)
    live.apply([Change("i1", None), Change("i2", None)])
    assert routes._is_fast(recaller, user)
    live.apply([Change("i3", None)])
    assert not routes._is_fast(recaller, user)


def test_a_deleted_item_turns_no_search_on_the_event_loop_into_a_scan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_world(tmp_path / "bundle")
    bundle = Bundle.open(tmp_path / "bundle")
    recaller = Recaller(bundle, Mock())
    monkeypatch.setattr(routes, "INLINE_NUMBERS", 0)
    user = RecallQuery(user_id="u5")
    assert routes._is_fast(recaller, user)
    recaller.catalogue.live.apply([Change("i1", None)])
    assert not routes._is_fast(recaller, user)  # so few items are scanned
    asked = list[tuple[int, int, int, int]]()
    monkeypatch.setattr(routes, "to_fetch", lambda *words: asked.append(words) or 200)
    assert routes._is_fast(recaller, user)
    seen = len(bundle.seen(bundle.query_rows["u5"]))
    assert asked == [(ITEMS, ITEMS - 1, user.k, seen)]
