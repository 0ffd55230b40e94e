"""`/healthz` and `/readyz`: alive, and able to answer; ready means that a search made now finds something."""

import asyncio
import logging
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from fastapi.testclient import TestClient

from serving.bundle.reader import Bundle
from serving.bundle.versions import Versions
from serving.http import health
from serving.http.app import create_app
from serving.recall.recaller import Recaller
from serving.search.exact import ExactIndex
from serving.search.index import Floats, Rows
from serving.service.recall_monitor import SampledIndex
from serving.settings import Settings
from tests.support.worlds.serving import ArithmeticEncoder, write_world

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
    monkeypatch.setattr("serving.service.service.open_recaller", recaller)
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


def test_not_ready_from_the_moment_a_stop_is_asked_for(client: TestClient) -> None:
    client.app.state.drain.begun = True
    assert ready(client) == (503, "stopping")
    # Late requests are answered: their callers do not know yet.
    assert client.post("/recall", json={"user_id": "u1"}).status_code == 200
    assert client.get("/healthz").status_code == 200


@pytest.mark.parametrize("role", ["active", "canary"])
@pytest.mark.parametrize("raises", [True, False])
def test_not_ready_where_a_search_fails(
    client: TestClient, role: str, raises: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR)
    active = getattr(client.app.state.service.active_bundles, role)
    whole = active.opened.catalogue.index
    active.opened.catalogue.index = broken = Broken(raises=raises)
    assert ready(client) == (503, "not_ready")
    assert broken.asked == 1 and ("the file went away" in caplog.text) is raises
    # The only line: a probe's 503 has none of its own.
    name = active.opened.bundle.path
    told = f"{name}: a search failed" if raises else f"{name}: a search finds nothing"
    assert [each.message for each in caplog.records if each.name.startswith("uvicorn.error")] == [told]
    assert client.get("/healthz").status_code == 200
    active.opened.catalogue.index = whole
    assert ready(client) == (200, None)


def test_a_start_with_a_refused_bundle_falls_back_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("one", "two"):
        write_world(tmp_path / name, model_version=name)
        Versions(tmp_path).activate(name)
    (tmp_path / "two" / "popularity.npy").write_bytes(b"")
    monkeypatch.setattr("serving.service.service.open_recaller", recaller)
    with TestClient(create_app(Settings(bundle=tmp_path))) as client:
        assert client.post("/recall", json={"user_id": "u1"}).json()["model_version"] == "one"
        answer = client.get("/readyz")
        assert (answer.status_code, answer.json()) == (200, READY | {"active": "one", "refused": ["two"]})
        assert "\ntowers_bundles_refused 1.0\n" in client.get("/metrics").text
        assert [
            each
            for each in caplog.messages
            if each.endswith("popularity.npy: truncated: 0 bytes, the manifest says 608; one answers")
            and each.startswith("refused: ")
        ]


class Counting:
    """An exact index that counts its searches, and waits in each until it may end."""

    def __init__(self, item_vectors: Floats, *, open_at_once: bool = True) -> None:
        self.exact, self.asked, self.may_end = ExactIndex(item_vectors), 0, threading.Event()
        if open_at_once:
            self.may_end.set()

    def search(self, queries: Floats, k: int) -> tuple[Rows, Floats]:
        self.asked += 1
        assert self.may_end.wait(30)
        return self.exact.search(queries, k)


@pytest.mark.parametrize(("held_s", "searches"), [(1e6, 1), (0.0, 5)])
def test_one_search_answers_all_probes_of_a_moment(
    client: TestClient, monkeypatch: pytest.MonkeyPatch, held_s: float, searches: int
) -> None:
    monkeypatch.setattr(health, "HELD_S", held_s)
    active_bundles = client.app.state.service.active_bundles
    indexes = []
    for active in (active_bundles.active, active_bundles.canary):
        opened = active.opened
        opened.catalogue.index = index = Counting(opened.bundle.item_vectors)
        indexes.append(index)
    assert {ready(client) for _ in range(5)} == {(200, None)}
    assert [index.asked for index in indexes] == [searches, searches]
    # What is held says nothing of an index that takes the place of this one, or of a stop.
    active_bundles.canary.opened.catalogue.index = Broken(raises=False)
    assert ready(client) == (503, "not_ready")
    client.app.state.drain.begun = True
    assert ready(client) == (503, "stopping")


def test_what_a_probe_found_is_held_for_half_a_second(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = client.app.state.service.active_bundles.active.opened
    opened.catalogue.index = index = Counting(opened.bundle.item_vectors)
    clock, asked = SimpleNamespace(now=0.0), []
    monkeypatch.setattr(health, "time", SimpleNamespace(monotonic=lambda: clock.now))
    for clock.now in (1000.0, 1000.4, 1000.6, 1001.0, 1001.2):
        assert ready(client) == (200, None)
        asked.append(index.asked)
    assert asked == [1, 1, 2, 2, 3]


def test_probes_at_one_time_share_a_search(client: TestClient) -> None:
    opened = client.app.state.service.active_bundles.active.opened
    opened.catalogue.index = index = Counting(opened.bundle.item_vectors, open_at_once=False)
    active_bundles = SimpleNamespace(answering={"active": SimpleNamespace(opened=opened)})
    service = SimpleNamespace(active_bundles=active_bundles, refused={})
    state = SimpleNamespace(service=service, drain=SimpleNamespace(begun=False))
    request: Any = SimpleNamespace(app=SimpleNamespace(state=state))

    async def main() -> None:
        probing = [asyncio.create_task(health.readyz(request)) for _ in range(20)]
        while not index.asked:
            await asyncio.sleep(0.001)
        probing[0].cancel()  # The caller that began it disconnects.
        late = asyncio.create_task(health.readyz(request))
        await asyncio.sleep(0)
        index.may_end.set()
        answers = await asyncio.gather(*probing[1:], late)
        assert {answer.body for answer in answers} == {b'{"status":"ready"}'}

    asyncio.run(main())
    assert index.asked == 1


def test_a_probe_is_no_query_of_which_the_recall_is_told(client: TestClient) -> None:
    opened = client.app.state.service.active_bundles.active.opened
    opened.catalogue.index = watched = SampledIndex(ExactIndex(opened.bundle.item_vectors))
    query = opened.bundle.item_vectors[3:4]
    watched.search(query, 2)
    assert ready(client) == (200, None)
    sample = watched.take()
    assert sample is not None and sample.query.tolist() == query.tolist() and len(sample.scores) == 2
    assert ready(client) == (200, None)
    assert watched.take() is None


def test_scrapes_share_work_that_begins_after_they_came() -> None:
    begun, may_end = 0, threading.Event()

    def work() -> int:
        nonlocal begun
        begun += 1
        mine = begun
        assert may_end.wait(30)
        return mine

    async def main() -> None:
        shared: health.Shared[int] = health.Shared()
        first = asyncio.create_task(shared.result(work))
        while not begun:
            await asyncio.sleep(0.001)
        # What these ask for may have come after the first piece of work looked: they wait for the next one, together.
        later = [asyncio.create_task(shared.result(work)) for _ in range(10)]
        await asyncio.sleep(0.01)
        later.pop(0).cancel()
        later.append(asyncio.create_task(shared.result(work)))
        await asyncio.sleep(0.01)
        assert begun == 1
        may_end.set()
        assert await first == 1
        assert await asyncio.gather(*later) == [2] * 10
        assert await shared.result(work) == 3

    asyncio.run(main())
    assert begun == 3
