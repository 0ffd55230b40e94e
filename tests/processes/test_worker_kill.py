"""`towers serve --workers 2`: a killed worker is replaced while the other answers; those of a killed parent stop."""

import os
import signal
import socket
import time
from contextlib import suppress
from pathlib import Path

import httpx
import pytest

from benchmarks.serving.servers import workers_of
from tests.support.processes.held_request import PATIENT, HeldRequest, until_refused
from tests.support.processes.running_service import START_S, RunningService, runs
from tests.support.worlds.serving import write_whole_world

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


@pytest.mark.long
def test_while_no_worker_is_left_callers_are_refused_and_do_not_wait(tmp_path: Path) -> None:
    with RunningService(write_whole_world(tmp_path), workers=2, log=tmp_path / "log") as service:
        for worker in _two_workers(service):
            os.kill(worker, signal.SIGKILL)
        until_refused(int(service.url.rpartition(":")[2]), within_s=START_S)
        deadline, told = time.monotonic() + START_S, []
        while 200 not in told:
            assert time.monotonic() < deadline
            with suppress(httpx.ConnectError):
                told.append(httpx.get(f"{service.url}/readyz", timeout=START_S).status_code)
            time.sleep(0.05)
        _answers(service)


@pytest.mark.long
def test_the_workers_of_a_killed_parent_stop_and_leave_the_port(tmp_path: Path) -> None:
    with RunningService(write_whole_world(tmp_path), workers=2, log=tmp_path / "log", **PATIENT) as service:
        workers = _two_workers(service)
        port = int(service.url.rpartition(":")[2])
        held = HeldRequest(port, user_id="u5", k=3)
        service.process.kill()
        service.process.wait()
        until_refused(port, within_s=START_S)
        status, answer = held.answer()
        assert (status, [item["id"] for item in answer["items"]]) == (200, ITEMS_OF_U5)
        deadline = time.monotonic() + START_S
        while any(map(runs, workers)):
            assert time.monotonic() < deadline, "a worker lives on"
            time.sleep(0.05)
        with socket.socket() as another:
            another.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            another.bind(("127.0.0.1", port))
            another.listen()
        assert (tmp_path / "log").read_text().count("the parent process is gone") == 2


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
