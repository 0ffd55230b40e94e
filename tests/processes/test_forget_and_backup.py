"""An operator backs up the state of a running service and removes a user from it: real processes, real requests."""

import threading
from pathlib import Path

import httpx
import pytest

from pipelines.forget import forget
from pipelines.service import state as state_directory
from serving.bundle.versions import Versions
from serving.catalogue.sqlite_journal import SqliteJournal
from tests.support.processes.running_service import RunningService, eventually
from tests.support.worlds.serving import save_towers, write_world

pytestmark = pytest.mark.long


def test_backup_and_forget_beside_a_service_that_answers_and_writes(tmp_path: Path) -> None:
    root, state = tmp_path / "bundles", tmp_path / "state"
    for name in ("one", "two"):
        write_world(root / name, write_towers=save_towers)
    for name in ("one", "two"):
        Versions(root).activate(name)
    stop = threading.Event()
    acknowledged = [0]
    statuses: set[int] = set()

    def write(url: str) -> None:
        with httpx.Client(base_url=url, timeout=60) as client:
            while not stop.is_set():
                number = acknowledged[0] + 1
                user = ("new", "other", "u5")[number % 3]
                event = {"id": f"e{number}", "user_id": user, "item_id": "i9", "time": number}
                shown = {"id": f"s{number}", "request_id": "r", "user_id": user, "item_ids": ["i9"], "time": number}
                answers = [
                    client.post("/events", json={"events": [event]}),
                    client.post("/impressions", json={"impressions": [shown]}),
                    client.post("/recall", json={"user_id": "u6", "k": 3}),
                ]
                statuses.update(answer.status_code for answer in answers)
                acknowledged[0] = number

    with RunningService(root, state, workers=2) as service:

        def source(user: str) -> str:
            return str(httpx.post(f"{service.url}/recall", json={"user_id": user}, timeout=60).json()["source"])

        writer = threading.Thread(target=write, args=(service.url,))
        writer.start()
        eventually(lambda: acknowledged[0] > 20, "events are written", within_s=60)
        before = acknowledged[0]
        state_directory.backup(state, tmp_path / "backup")
        state_directory.restore(tmp_path / "backup", tmp_path / "restored")
        restored = SqliteJournal.open(tmp_path / "restored")
        for kept in (
            [each.event_id for _, each in restored.events_since(0)],
            [f"e{each.impression_id[1:]}" for _, each in restored.impressions_since(0)],
        ):
            assert kept == [f"e{number}" for number in range(1, len(kept) + 1)] and len(kept) >= before
        restored.close()
        # Requests and a rewrite of both bundles, but no new events of the users who go.
        eventually(lambda: source("new") == source("u5") == "history", "both users have events")
        stop.set()
        writer.join()
        stop.clear()
        asking = threading.Thread(target=lambda: [statuses.add(ask(service.url)) for _ in iter(stop.is_set, True)])
        asking.start()
        for user in ("new", "u5"):
            found = forget.run(user, state=state, bundles=[root])
            assert state in found and found[state]["events"] == found[state]["impressions"]
            assert (root / "one" in found) == (user == "u5")
        eventually(lambda: source("new") == source("u5") == "popular", "both users are unknown", within_s=30)
        assert source("u6") == "user" and source("other") == "history"
        Versions(root).rollback()
        eventually(lambda: source("u5") == "popular", "the earlier bundle has no such user either", within_s=30)
        stop.set()
        asking.join()
        assert service.process.poll() is None
    assert statuses == {200}


def ask(url: str) -> int:
    return httpx.post(f"{url}/recall", json={"user_id": "u6", "k": 3}, timeout=60).status_code
