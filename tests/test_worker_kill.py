"""`towers serve --workers 2`: one worker killed: the other answers, another takes its place, and answers."""

import os
import signal
import time
from pathlib import Path

import httpx
import pytest
from running_service import START_S, RunningService
from serving_world import write_whole_world

from benchmarks.servers import workers_of

ITEMS_OF_U5 = ["i9", "i13", "i17"]  # of group 1, without i1 and i5, which u5 has seen


@pytest.mark.long
def test_a_killed_worker_is_replaced_and_nobody_waits_for_it(tmp_path: Path) -> None:
    bundle = write_whole_world(tmp_path)
    with RunningService(bundle, workers=2, log=tmp_path / "log") as service:
        first = _two_workers(service)
        _answers(service)
        os.kill(min(first), signal.SIGKILL)
        for _ in range(50):
            _answers(service)
        second = _two_workers(service)
        assert len(second - first) == 1 and max(first) in second
        # Now only the new one is left: it is what answers.
        os.kill(max(first), signal.SIGKILL)
        _answers(service)
        third = _two_workers(service)
        assert (second - first) < third and not first & third
        assert service.process.poll() is None


def _answers(service: RunningService) -> None:
    """Asks once, on a connection of its own: one that a worker took goes down with it."""
    answer = httpx.post(f"{service.url}/recall", json={"user_id": "u5", "k": 3}, timeout=START_S)
    assert answer.status_code == 200, answer.text
    assert [item["id"] for item in answer.json()["items"]] == ITEMS_OF_U5


def _two_workers(service: RunningService) -> set[int]:
    deadline = time.monotonic() + START_S
    while len(found := set(workers_of(service.process.pid))) != 2:
        assert time.monotonic() < deadline, f"workers: {found}"
        time.sleep(0.05)
    return found
