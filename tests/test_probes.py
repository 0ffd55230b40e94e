"""`/healthz` and `/readyz`: alive, and able to answer; ready means that a search made now finds something."""

import logging
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from fastapi.testclient import TestClient
from serving_world import ArithmeticEncoder, write_world

from serving.app import create_app
from serving.bundle import Bundle
from serving.index import ExactIndex, Floats, Rows
from serving.recall import Recaller
from serving.settings import Settings
from serving.versions import Versions

READY = {"status": "ready"}


def recaller(path: Path, **_: object) -> Recaller:
    bundle = Bundle.open(path, verify=False)
    return Recaller(bundle, ExactIndex(bundle.item_vectors), ArithmeticEncoder())


@pytest.fixture
def client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TestClient]:
    for name in ("one", "two"):
        write_world(tmp_path / name, model_version=name)
    Versions(tmp_path).activate("one")
    Versions(tmp_path).set_canary("two", 0.5)
    monkeypatch.setattr("serving.service.open_recaller", recaller)
    with TestClient(create_app(Settings(bundle=tmp_path))) as client:
        yield client


class Broken:
    """An index that raises, or finds nothing."""

    def __init__(self, *, raises: bool) -> None:
        self.raises, self.asked = raises, 0

    def search(self, queries: Floats, k: int) -> tuple[Rows, Floats]:
        self.asked += 1
        if self.raises:
            raise RuntimeError("the file went away")
        return np.full((len(queries), k), -1), np.full((len(queries), k), -np.inf, np.float32)


def ready(client: TestClient) -> tuple[int, str | None]:
    answer = client.get("/readyz")
    if answer.status_code == 200:
        assert answer.json() == READY
        return 200, None
    error = answer.json()["error"]
    assert error.keys() == {"code", "message", "field"} and error["field"] is None
    return answer.status_code, error["code"]


def test_alive_and_ready(client: TestClient) -> None:
    assert client.get("/healthz").json() == {"status": "ok"}
    assert ready(client) == (200, None)


def test_not_ready_before_the_bundle_is_loaded(tmp_path: Path) -> None:
    client = TestClient(create_app(Settings(bundle=tmp_path)))  # Without its lifespan: it has not started.
    assert client.get("/healthz").status_code == 200
    assert ready(client) == (503, "not_ready")
    assert client.get("/metrics").status_code == 200


def test_not_ready_from_the_moment_a_stop_is_asked_for(client: TestClient) -> None:
    client.app.state.service.drain()
    assert ready(client) == (503, "stopping")
    # What still comes is answered: whoever sends has not seen it yet.
    assert client.post("/recall", json={"user_id": "u1"}).status_code == 200
    assert client.get("/healthz").status_code == 200


@pytest.mark.parametrize("role", ["active", "canary"])
@pytest.mark.parametrize("raises", [True, False])
def test_not_ready_where_a_search_fails(
    client: TestClient, role: str, raises: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR)
    generation = getattr(client.app.state.service.generations, role)
    whole = generation.opened.catalogue.index
    generation.opened.catalogue.index = broken = Broken(raises=raises)
    assert ready(client) == (503, "not_ready")
    assert broken.asked == 1 and ("the file went away" in caplog.text) is raises
    assert client.get("/healthz").status_code == 200
    generation.opened.catalogue.index = whole
    assert ready(client) == (200, None)
