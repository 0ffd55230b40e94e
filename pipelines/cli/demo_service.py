"""The demo's service: `towers serve` as a separate process, and real HTTP requests to it.

Neither the machine's settings of a service (`TOWERS_…`) nor its proxy are meant for this one.
"""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from pipelines.errors import DataError
from pipelines.service.sigterm import end_with_parent

START_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 15.0


@dataclass(frozen=True)
class DemoAnswer:
    """A request and its answer.

    Attributes:
        who: a description of who asks.
        body: the request.
        answer: the parsed answer.
        milliseconds: from request to answer.
    """

    who: str
    body: dict[str, Any]
    answer: dict[str, Any]
    milliseconds: float


@contextmanager
def running(bundle: Path, log: Path) -> Iterator[str]:
    """Runs the service on a free port, its output in `log`; stops it at the end.

    Yields:
        The service's URL, once it is ready.

    Raises:
        DataError: it does not start; the message holds the last line of its log.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    # -P: nothing of the current directory is imported.
    words = [sys.executable, "-P", "-m", "pipelines", "serve", "--bundle", str(bundle), "--host", "127.0.0.1"]
    words += ["--port", str(port)]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TOWERS_")}
    with log.open("wb") as output:
        service = subprocess.Popen(
            words,
            stdout=output,
            stderr=output,
            stdin=subprocess.DEVNULL,
            env=environment,
            preexec_fn=end_with_parent,
        )
    try:
        _wait_until_ready(service, url, log)
        yield url
    finally:
        service.terminate()
        try:
            service.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            service.kill()
            service.wait()


def ask(url: str, questions: Iterable[tuple[str, dict[str, Any]]]) -> list[DemoAnswer]:
    """Sends each body to ``POST /recall``.

    Raises:
        DataError: a status is not 200; the message holds the request and the answer.
    """
    asked = []
    with httpx.Client(base_url=url, timeout=30, trust_env=False) as client:
        for who, body in questions:
            started = time.perf_counter()
            response = client.post("/recall", json=body)
            milliseconds = (time.perf_counter() - started) * 1000
            if response.status_code != 200:
                raise DataError(f"POST /recall {body}: status {response.status_code}: {response.text}")
            asked.append(DemoAnswer(who, body, response.json(), milliseconds))
    return asked


def _wait_until_ready(service: "subprocess.Popen[bytes]", url: str, log: Path) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while service.poll() is None and time.monotonic() < deadline:
        try:
            if httpx.get(f"{url}/readyz", timeout=2, trust_env=False).status_code == 200:
                return
        except httpx.TransportError:
            pass  # it does not listen yet
        time.sleep(0.1)
    state = "is not ready in time" if service.poll() is None else f"ended with {service.returncode}"
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    raise DataError(f"the service {state}, see {log}: {lines[-1] if lines else 'it wrote nothing'}")
