"""Item columns that come along with the items of an answer, of the bundle's items and of live ones."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from fastapi.testclient import TestClient

from serving.http import routes
from serving.http.app import create_app
from serving.settings import Settings
from tests.support.worlds.serving import ITEMS, save_towers, write_world


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("columns")
    attributes = pl.DataFrame(
        {
            "title": [f"Title {row}" for row in range(ITEMS)],
            "year": [None if row % 3 == 0 else 2000 + row for row in range(ITEMS)],
            "price": [row / 4 for row in range(ITEMS)],
            "tags": [["odd"] if row % 2 else ["even", "all"] for row in range(ITEMS)],
        }
    )
    write_world(directory / "bundle", item_attributes=attributes, write_towers=save_towers)
    return directory / "bundle"


@pytest.fixture(scope="module")
def client(bundle: Path) -> Iterator[TestClient]:
    """For questions alone: a change to its items would reach the tests after it."""
    app = create_app(Settings(bundle=bundle, max_batch=3, max_list=5))
    with TestClient(app, raise_server_exceptions=False) as client:
        yield client


def of(item_id: str) -> dict[str, Any]:
    """The columns of an item of the bundle, by the formula that wrote them."""
    row = int(item_id[1:])
    year = None if row % 3 == 0 else 2000 + row
    tags = ["odd"] if row % 2 else ["even", "all"]
    return {"title": f"Title {row}", "year": year, "price": row / 4, "tags": tags}


QUERIES: dict[str, dict[str, Any]] = {
    "user": {"user_id": "u5"},
    "features": {"features": {"country": "g2"}},
    "history": {"history": ["i3"]},
    "popular": {},
    "filtered": {"filter": {"column": "year", "op": "gte", "value": 2040}},
    "diverse": {"user_id": "u5", "diversity": {"column": "tags", "most": 5}},
    "none": {"allow": []},
}


def test_the_columns_that_are_asked_for_come_along(client: TestClient) -> None:
    for kind, query in QUERIES.items():
        plain = client.post("/recall", json={**query, "k": 7}).json()
        for columns in (["title"], ["tags", "year"], ["price", "title", "price"]):
            full = client.post("/recall", json={**query, "k": 7, "attributes": columns}).json()
            wanted = [
                {**each, "attributes": {name: of(each["id"])[name] for name in columns}} for each in plain["items"]
            ]
            assert full == {**plain, "items": wanted}, (kind, columns)
        assert len(plain["items"]) == (0 if kind == "none" else 7), kind


def test_no_columns_are_the_plain_answer(client: TestClient) -> None:
    body = {"user_id": "u5", "k": 3}
    assert client.post("/recall", json={**body, "attributes": []}).content == client.post("/recall", json=body).content


def test_similar_items_come_with_their_columns(client: TestClient) -> None:
    body = {"items": ["i1"], "k": 3, "attributes": ["title"]}
    items = client.post("/similar", json=body).json()["items"]
    assert [item["attributes"] for item in items] == [{"title": of(item["id"])["title"]} for item in items]
    assert len(items) == 3


@pytest.mark.parametrize("scans", [True, False])
def test_each_query_of_a_batch_gets_its_own_columns(
    client: TestClient, monkeypatch: pytest.MonkeyPatch, scans: bool
) -> None:
    if not scans:  # As with an index: the event loop itself answers small plain batches.
        monkeypatch.setattr(routes, "ExactIndex", type("AnotherIndex", (), {}))
    bodies = [{"user_id": "u5", "k": 3, "attributes": ["year"]}, {"k": 2}, {"k": 2, "attributes": ["title", "tags"]}]
    answers = client.post("/recall/batch", json={"queries": bodies}).json()["answers"]
    assert answers == [client.post("/recall", json=body).json() for body in bodies]
    assert [[sorted(item.get("attributes", ())) for item in answer["items"]] for answer in answers] == [
        [["year"]] * 3, [[]] * 2, [["tags", "title"]] * 2,
    ]  # fmt: skip


def test_a_live_item_comes_with_what_was_put(bundle: Path, tmp_path: Path) -> None:
    attributes = {"title": 'A "new" one\n', "tags": ["odd"]}
    with TestClient(create_app(Settings(bundle=bundle, state=tmp_path / "state"))) as client:
        for item_id in ("i9", "fresh"):  # one that changes, one that comes
            body = {"features": {"group": "g1", "place": 9}, "attributes": attributes}
            assert client.put(f"/items/{item_id}", json=body).status_code == 200
        body = {"user_id": "u5", "k": 4, "attributes": ["title", "year", "tags"]}
        found = {item["id"]: item["attributes"] for item in client.post("/recall", json=body).json()["items"]}
    assert found == {
        "i9": {**attributes, "year": None},
        "fresh": {**attributes, "year": None},
        **{item_id: {name: of(item_id)[name] for name in ("title", "year", "tags")} for item_id in ("i13", "i17")},
    }


@pytest.mark.parametrize(
    ("path", "body", "field", "message"),
    [
        ("/recall", {"attributes": ["titel"]}, "attributes", "attributes: no such column 'titel'; there are "),
        ("/recall", {"attributes": ["title", ""]}, "attributes", "attributes: no such column ''; there are "),
        ("/similar", {"items": ["i1"], "attributes": ["x"]}, "attributes", "attributes: no such column 'x'"),
        ("/recall/batch", {"queries": [{}, {"attributes": ["x"]}]}, "queries.1.attributes", "queries.1.attributes: no"),
        ("/recall", {"attributes": ["title"] * 6}, "attributes", "attributes: must hold at most 5, got 6"),
        ("/recall", {"attributes": "title"}, "attributes", "attributes: must be a list of strings, got a string"),
        ("/recall", {"attributes": None}, "attributes", "attributes: must be a list of strings, got null"),
        ("/recall", {"attributes": [3]}, "attributes.0", "attributes.0: must be a string, got 3"),
    ],
)
def test_a_wrong_column_is_named_with_those_that_there_are(
    client: TestClient, path: str, body: dict[str, Any], field: str, message: str
) -> None:
    answer = client.post(path, json=body)
    error = answer.json()["error"]
    assert (answer.status_code, error["field"]) == (422, field)
    assert error["message"].startswith(message)
    if "no such column" in message:
        assert error["message"].endswith("; there are price, tags, title, year")


def test_the_document_names_the_columns(client: TestClient) -> None:
    schemas = client.get("/openapi.json").json()["components"]["schemas"]
    for name in ("RecallRequest", "SimilarRequest"):
        columns = schemas[name]["properties"]["attributes"]
        assert columns["items"]["enum"] == ["price", "tags", "title", "year"]
        assert (columns["maxItems"], columns["default"]) == (5, [])
    assert "attributes" not in schemas["RecallItem"]["required"]
