"""`towers serve` and `towers query` as a person runs them: a real process, a real socket, a table."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from pipelines.errors import DataError
from pipelines.service import query as query_command
from tests.support.processes.running_service import RunningService
from tests.support.worlds.serving import ITEMS, USERS, write_whole_world


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_whole_world(tmp_path_factory.mktemp("process"))


# One worker answers and stops in test_end_to_end.py.
@pytest.mark.long
def test_two_workers_answer_and_stop_on_sigterm(bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with RunningService(bundle, workers=2, max_k=9) as service:
        client, url = service.client, service.url
        answer = client.post("/recall", json={"user_id": "u5", "k": 3}).json()
        assert [item["id"] for item in answer["items"]] == ["i9", "i13", "i17"]
        answer = client.post("/recall", json={"features": {"country": "g2"}, "k": 1}).json()
        assert (answer["items"][0]["id"], answer["source"]) == ("i2", "features")
        assert client.post("/recall", json={"k": 10}).status_code == 422
        query_command.run("u5", url=url, k=2)
        shown = capsys.readouterr().out
        assert "i13" in shown and "Title 13" in shown
        with pytest.raises(DataError, match="--k must be at most 9, got 10: "):
            query_command.run("u5", url=url, k=10)
        service.process.send_signal(signal.SIGTERM)
        assert service.process.wait(timeout=30) in (0, -signal.SIGTERM)
    with pytest.raises(httpx.TransportError):
        httpx.get(f"{url}/healthz", timeout=5)


def test_the_service_keeps_to_one_blas_thread() -> None:
    code = """
import os, sys
import pipelines.cli.app
assert "numpy" not in sys.modules
import pipelines.service.serve
print(os.environ["OPENBLAS_NUM_THREADS"], "numpy" in sys.modules, "tensorflow" in sys.modules)
"""
    environment = {name: value for name, value in os.environ.items() if name != "OPENBLAS_NUM_THREADS"}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, env=environment, check=True
    )
    assert done.stdout.split() == ["1", "True", "False"]


def test_query_prints_titles_and_scores(bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    query_command.run("u5", bundle=bundle, k=2)
    shown = capsys.readouterr()
    for text in ("i9", "Title 9", f"{2 - 9 / ITEMS:.4f}", "i13", "Title 13", "source: user"):
        assert text in shown.out
    scan = f"{bundle} has no index: every query scans all {ITEMS} items exactly"
    assert shown.err == f"warning: {scan}; `towers index --bundle {bundle}` builds one\n"


def test_query_says_that_a_user_is_unknown(bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    query_command.run("[bold]x", bundle=bundle, k=1)
    shown = capsys.readouterr()
    assert "no vector of user '[bold]x'" in shown.err
    assert "i0" in shown.out and "600.0000" in shown.out and "[bold]x" in shown.out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"url": "http://127.0.0.1:9"}, r"http://127\.0\.0\.1:9/recall: nothing answers there"),
        ({"url": "nonsense"}, r"nonsense/recall: not the address of a service"),
        ({}, "give --bundle"),
        ({"url": "http://x", "k": 0}, "--k must be at least 1, got 0"),
    ],
)
def test_query_mistakes_are_one_clear_line(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        query_command.run(f"u{USERS}", **arguments)
