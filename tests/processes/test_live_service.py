"""A running service whose catalogue, users and bundles change: real processes, real sockets, real kills."""

import os
import signal
import threading
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import polars as pl
import pytest

from serving.bundle.versions import Versions
from tests.support.processes.running_service import RunningService, eventually
from tests.support.worlds.serving import save_towers, write_world

pytestmark = pytest.mark.long


def write_root(root: Path) -> Versions:
    """Three bundles that tell themselves apart by their version; the first is active, the last one is damaged."""
    for name in ("one", "two", "bad"):
        write_world(root / name, model_version=name, write_towers=save_towers)
    np.save(root / "bad" / "item_vectors.npy", np.zeros((60, 8), np.float32))
    versions = Versions(root)
    versions.activate("one")
    return versions


def best(group: int) -> dict[str, Any]:
    return {"features": {"country": f"g{group}"}, "k": 1}


def test_changes_are_seen_by_every_worker_and_outlive_a_kill(tmp_path: Path) -> None:
    write_world(tmp_path / "bundle", write_towers=save_towers)
    with RunningService(tmp_path / "bundle", tmp_path / "state", workers=2) as service:
        put = service.client.put("/items/new", json={"features": {"group": "g2", "place": 1.5}})
        assert put.status_code == 200 and put.json()["seq"] == 1
        eventually(lambda: service.ids(**best(2)) == ["new"], "the new item is the best of its group")
        items = [{"id": f"more{n}", "features": {"group": "g1", "place": 1.1 + n / 10}} for n in range(3)]
        assert service.client.put("/items", json={"items": items}).status_code == 200
        assert service.client.delete("/items/i3").status_code == 200
        event = {"id": "e1", "user_id": "u1", "item_id": "more2", "time": 1_700_000_000}
        assert [service.client.post("/events", json={"events": [event]}).json()["added"] for _ in range(2)] == [1, 0]
        service.kill()
    with RunningService(tmp_path / "bundle", tmp_path / "state") as service:
        assert service.ids(**best(2)) == ["new"] and service.ids(**best(3)) == ["i7"]
        assert service.ids(**best(1)) == ["more2"] and service.ids(user_id="u1", k=1) == ["more1"]
        assert service.ids(features={"user": "u1"}, user_id="u1", exclude_seen=False, k=1) == ["more2"]


@pytest.mark.parametrize("round_number", range(10))
def test_every_acknowledged_change_is_there_after_a_kill_at_any_moment(tmp_path: Path, round_number: int) -> None:
    write_world(tmp_path / "bundle", write_towers=save_towers)
    acknowledged, events = ["first"], 0
    with RunningService(tmp_path / "bundle", tmp_path / "state") as service:
        # The first item loads the candidate tower, before the moments that are tried begin.
        service.client.put("/items/first", json={"features": {"group": "g0", "place": 5}}).raise_for_status()
        timer = threading.Timer(0.05 + 0.27 * round_number, lambda: os.killpg(service.process.pid, signal.SIGKILL))
        timer.start()
        try:
            for number in range(100_000):
                names = [f"n{number}-{part}" for part in range(1 + number % 5)]
                items = [{"id": name, "features": {"group": "g0", "place": 5}} for name in names]
                service.client.put("/items", json={"items": items}).raise_for_status()
                acknowledged += names
                event = {"id": f"e{number}", "user_id": "u0", "item_id": names[0], "time": number}
                service.client.post("/events", json={"events": [event]}).raise_for_status()
                events += 1
        except httpx.TransportError:
            timer.join()
    with RunningService(tmp_path / "bundle", tmp_path / "state") as service:
        last = acknowledged[-400:]  # what a kill would lose
        found = service.ids(allow=last, k=1000, exclude_seen=False, vector=[1, 0, 0, 0, 0, 0, 0, 0])
        assert set(last) <= set(found)
        assert events > 0 or round_number < 5, "nothing was acknowledged in more than a second"
        seen = {f"n{number}-0" for number in range(events)}
        kept = service.ids(user_id="u0", allow=[f"n{number}-0" for number in range(events)][-400:], k=1000)
        assert not set(kept) & seen


def test_a_swap_under_load_fails_no_request(tmp_path: Path) -> None:
    root = tmp_path / "bundles"
    versions = write_root(root)
    statuses: list[int] = []
    stop = threading.Event()

    def load(url: str) -> None:
        with httpx.Client(base_url=url, timeout=60) as client:
            while not stop.is_set():
                statuses.append(client.post("/recall", json={"user_id": "u5", "k": 5}).status_code)

    with RunningService(root, workers=2) as service:

        def version() -> str:
            answer = httpx.post(f"{service.url}/recall", json={"user_id": "u5"}, timeout=30)
            return str(answer.json()["model_version"])

        threads = [threading.Thread(target=load, args=(service.url,)) for _ in range(2)]
        for thread in threads:
            thread.start()
        for name in ("two", "one", "two"):
            versions.activate(name)
            eventually(lambda name=name: version() == name, f"every worker answers from {name}")
        versions.activate("bad")
        refused = service.client.post("/admin/reload")
        assert refused.status_code == 409
        assert refused.json()["active"] == "two" and "item_vectors.npy: " in refused.json()["refused"]["bad"]
        assert version() == "two"
        assert versions.rollback() == "two"
        os.kill(service.process.pid, signal.SIGHUP)
        versions.set_canary("one", 1.0)
        eventually(lambda: version() == "one", "the canary answers every user")
        assert service.client.post("/recall", json={}).json()["model_version"] == "two", "nobody is no user"
        assert service.process.poll() is None
        stop.set()
        for thread in threads:
            thread.join()
    assert len(statuses) > 50 and set(statuses) == {200}


def test_the_same_users_get_the_canary_in_every_worker(tmp_path: Path) -> None:
    root = tmp_path / "bundles"
    write_root(root).set_canary("two", 0.5)
    with RunningService(root, workers=2) as service:

        def versions_of(user: str) -> set[str]:
            answers = [httpx.post(f"{service.url}/recall", json={"user_id": user}) for _ in range(6)]
            return {answer.json()["model_version"] for answer in answers}

        given = [versions_of(f"user {n}") for n in range(24)]
        assert all(len(versions) == 1 for versions in given)
        assert {version for versions in given for version in versions} == {"one", "two"}


def test_swaps_give_their_memory_back(tmp_path: Path) -> None:
    items = 100_000
    for name in ("one", "two"):
        vectors = np.random.default_rng(len(name)).normal(size=(items, 8)).astype(np.float32)
        attributes = pl.DataFrame({"title": ["x"] * items})
        write_world(
            tmp_path / "root" / name, items=items, item_vectors=vectors, model_version=name, item_attributes=attributes,
            write_towers=save_towers,
        )  # fmt: skip
    versions = Versions(tmp_path / "root")
    versions.activate("one")
    with RunningService(tmp_path / "root") as service:
        levels = []
        for number in range(10):
            name = "two" if number % 2 == 0 else "one"
            versions.activate(name)
            assert service.client.post("/admin/reload").json()["active"] == name
            service.ids(user_id="u5", k=100)
            service.ids(features={"country": "g1"}, k=100)
            # What answered before is given back by the look after the one that retired it.
            service.client.post("/admin/reload")
            levels.append(_anonymous_kb(service.process.pid))
    assert np.median(levels[-3:]) < 1.05 * np.median(levels[2:5])


def _anonymous_kb(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("RssAnon")).split()[1])
