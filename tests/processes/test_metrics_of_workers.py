"""A real `towers serve --workers 2`: its metrics are right whichever worker is asked, and its log holds no secret."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from serving.bundle.versions import Versions
from tests.support.exposition import Exposed
from tests.support.paths import ROOT
from tests.support.processes.running_service import START_S, RunningService, eventually
from tests.support.worlds.serving import save_towers, write_world

pytestmark = pytest.mark.long

SECRETS = ("secret-user", "secret-key", "secret-query", "secret-path", "secret-item")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("observed")
    for name in ("one", "two"):
        write_world(directory / "bundles" / name, model_version=name, write_towers=save_towers)
    Versions(directory / "bundles").activate("one")
    return directory / "bundles"


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("log") / "stderr"


@pytest.fixture(scope="module")
def service(root: Path, log: Path) -> Iterator[RunningService]:
    with RunningService(root, workers=2, log=log, access_log="all") as service:
        eventually(lambda: exposed(service).of("towers_workers") == [2], "both workers answer", START_S)
        yield service


def exposed(service: RunningService) -> Exposed:
    """Over a new connection: any worker may answer."""
    return Exposed(httpx.get(f"{service.url}/metrics", timeout=30).text)


def recalls(answer: Exposed) -> float:
    return answer.sum("towers_requests_total", route="/recall", method="POST", status="200")


def ask(service: RunningService, times: int, connections: int) -> None:
    clients = [httpx.Client(base_url=service.url, timeout=30) for _ in range(connections)]
    for n in range(times):
        assert clients[n % connections].post("/recall", json={"user_id": f"u{n}", "k": 2}).status_code == 200
    for client in clients:
        client.close()


def workers(log: Path) -> list[int]:
    """The processes that told that they started, oldest first."""
    return [int(found) for found in re.findall(r"Started server process \[(\d+)\]", log.read_text())]


def answering(log: Path) -> list[str]:
    """Of each answer of `/recall` in the log, which worker gave it: its ids of requests begin alike."""
    told = [json.loads(line) for line in log.read_text().splitlines()]
    return [each["request_id"].partition("-")[0] for each in told if each.get("route") == "/recall"]


def test_every_worker_tells_of_all(service: RunningService, log: Path) -> None:
    before, asked = exposed(service), 0
    while len(set(answering(log))) < 2:
        assert asked < 2_000, "one worker answers everything"
        ask(service, 60, connections=12)
        asked += 60
        # At once, ten times, over ten connections: every worker knows of every request, none is late.
        assert {recalls(exposed(service)) for _ in range(10)} == {recalls(before) + asked}
    assert len(answering(log)) == asked
    eventually(
        lambda: exposed(service).sum("towers_request_seconds_count", route="/recall") == asked,
        "the timings follow within a second",
    )


def test_a_killed_worker_takes_no_count_with_it(service: RunningService, log: Path) -> None:
    ask(service, 40, connections=8)
    before, started = exposed(service), workers(log)
    assert len(started) == 2
    os.kill(started[0], signal.SIGKILL)
    eventually(lambda: len(workers(log)) == 3, "a third one was started", START_S)
    eventually(lambda: exposed(service).of("towers_workers") == [2], "two workers answer again", START_S)
    after = exposed(service)
    assert recalls(after) == recalls(before)
    assert after.sum("towers_worker_starts_total") == 3
    values = dict(after.counters())
    assert all(values[key] >= value for key, value in before.counters())
    ask(service, 40, connections=8)
    assert {recalls(exposed(service)) for _ in range(10)} == {recalls(before) + 40}


def test_how_many_workers_there_should_be_follows_the_signals(service: RunningService, log: Path) -> None:
    assert exposed(service).of("towers_workers_wanted") == [2]
    for number, wanted in ((signal.SIGTTIN, 3), (signal.SIGTTOU, 2)):
        service.process.send_signal(number)
        for name in ("towers_workers_wanted", "towers_workers"):
            told = f"{name} is {wanted}"
            eventually(lambda name=name, wanted=wanted: exposed(service).of(name) == [wanted], told, START_S)


def test_after_a_swap_the_old_version_reads_0(service: RunningService, root: Path) -> None:
    def answering(name: str) -> float:
        return exposed(service).sum("towers_bundle_answers", role="active", bundle=name, version=name)

    assert answering("one") == 1
    Versions(root).activate("two")
    eventually(lambda: (answering("one"), answering("two")) == (0, 1), "every worker has the new bundle", START_S)


def test_one_worker_in_a_directory_of_its_own_tells_of_no_process_before_it(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(tmp_path))
    answering = "m.answering([m.Answering('active', 'old', 'old')])"
    code = f"from serving.telemetry import metrics as m; m.started(); {answering}; m.flush()"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)
    assert list(tmp_path.glob("*.db"))
    with RunningService(root, workers=1) as service:
        told = exposed(service)
        assert told.of("towers_workers") == [1]
        assert told.of("towers_worker_starts_total") == [1]
        assert told.of("towers_bundle_answers", bundle="old") == []


def test_a_variable_that_is_there_but_empty_names_no_directory(tmp_path: Path) -> None:
    """As a deployment passes an unset one on: its files would be in the working directory."""
    words = [sys.executable, "-m", "pipelines", "serve", "--bundle", "no such bundle", "--port", "0"]
    environment = {**os.environ, "PROMETHEUS_MULTIPROC_DIR": "", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(words, capture_output=True, text=True, check=False, cwd=tmp_path, env=environment)
    assert done.returncode == 2 and "no such bundle: " in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_the_log_is_json_and_holds_no_secret(service: RunningService, log: Path) -> None:
    headers = {"Authorization": "Bearer secret-key", "X-Request-Id": "mine-1"}
    body = {"user_id": "secret-user", "exclude": ["secret-item"], "k": 2}
    assert service.client.post("/recall?token=secret-query", json=body, headers=headers).status_code == 200
    assert service.client.post("/recall", json={"secret-item": 1}, headers=headers).status_code == 422
    assert service.client.get("/secret-path/secret-item", headers=headers).status_code == 404
    assert service.client.put("/items/secret-item", json={"features": {}}, headers=headers).status_code == 409
    lines = log.read_text().splitlines()
    told = [json.loads(line) for line in lines]
    assert all({"time", "level", "logger", "message"} <= each.keys() for each in told)
    mine = [each for each in told if each.get("request_id") == "mine-1"]
    assert [(each["route"], each["status"]) for each in mine] == [
        ("/recall", 200),
        ("/recall", 422),
        ("unknown", 404),
        ("/items/{item_id}", 409),
    ]
    assert not [secret for secret in SECRETS if secret in log.read_text()]
