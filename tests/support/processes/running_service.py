"""A `towers serve` of its own for a test: started, waited for, signalled, killed with all its workers."""

import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import cache
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import httpx
import pytest

START_S = 90
VISIBLE_S = 10  # far more than the second that is promised: a test must not fail for a busy machine
FIRST_PORT, TRIES = 20_000, 1_000  # ports below are those of well-known programs


def free_port() -> int:
    """A port on which nothing listens, and which nobody else is likely to take before the caller does."""
    for port in islice(own_ports(), TRIES):
        with socket.socket() as listener, suppress(OSError):
            listener.bind(("127.0.0.1", port))
            return port
    raise AssertionError(f"none of {TRIES} ports is free")


@cache
def own_ports() -> Iterator[int]:
    """The ports of this process, one after another.

    The system gives none of them to an outgoing connection, as it does with those that it chooses itself. Each test
    process of one run has its own, and begins anywhere among them: another run has the same.
    """
    first_of_system = "32768"  # of Linux; some sandboxes do not show it
    with suppress(OSError):
        first_of_system = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0]
    end = max(int(first_of_system), FIRST_PORT + 1_000)  # some systems leave none of these to others
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    own = range(FIRST_PORT + worker, end, int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")))
    start = random.SystemRandom().randrange(len(own))
    return cycle([*own[start:], *own[:start]])


class RunningService:
    """One service process group.

    Args:
        bundle: what `--bundle` names.
        state: what `--state` names.
        workers: processes.
        port: to listen on; None takes a free one.
        log: where its stderr goes; None keeps it in a pipe that is read at the end.
        options: further words of the command line.
        **settings: further settings, as variables.
    """

    def __init__(
        self,
        bundle: Path | str,
        state: Path | str | None = None,
        workers: int = 1,
        log: Path | None = None,
        port: int | None = None,
        options: Sequence[str] = (),
        **settings: object,
    ) -> None:
        self.port = port = port or free_port()
        words = ["serve", "--bundle", str(bundle), "--port", str(port), "--workers", str(workers)]
        words += [*options] if state is None else ["--state", str(state), *options]
        self.url = f"http://127.0.0.1:{port}"
        # A group of its own: a kill reaches the workers, too.
        variables = {f"TOWERS_{name.upper()}": str(value) for name, value in settings.items()}
        self._closed, stderr = False, subprocess.PIPE if log is None else log.open("wb")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "pipelines", *words],
            stderr=stderr,
            start_new_session=True,
            env={**os.environ, **variables},
        )
        if not isinstance(stderr, int):
            stderr.close()
        self.client = httpx.Client(base_url=self.url, timeout=30)
        try:
            self._wait()
        except BaseException:
            self.kill()
            raise

    def __enter__(self) -> "RunningService":
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def kill(self) -> None:
        """`kill -9` of all its processes; a second time does nothing."""
        if self._closed:
            return
        self._closed = True
        self.client.close()
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.communicate()

    def ids(self, **body: Any) -> list[str]:
        """The items of an answer of `POST /recall`; a new connection, so that any worker may answer."""
        # Unless told not to verify, httpx reads all certificates of the machine for each connection.
        answer = httpx.post(f"{self.url}/recall", json=body, timeout=30, verify=False)
        assert answer.status_code == 200, answer.text
        return [item["id"] for item in answer.json()["items"]]

    def _wait(self) -> None:
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                said = self.process.stderr.read() if self.process.stderr else b""
                pytest.fail(f"the service ended with {self.process.returncode}: {said!r}")
            try:
                if self.client.get("/readyz").status_code == 200:
                    return
            except httpx.TransportError:
                time.sleep(0.1)
        pytest.fail(f"the service was not ready after {START_S} s")


def runs(process: int) -> bool:
    """Whether a process does; one that has ended may wait for ever for somebody to ask how."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def eventually(condition: Callable[[], bool], what: str, within_s: float = VISIBLE_S) -> None:
    """Waits until a condition holds twenty times in a row: any of the workers may have been asked."""
    deadline = time.monotonic() + within_s
    held = 0
    while held < 20:
        held = held + 1 if condition() else 0
        if held == 0:
            if time.monotonic() > deadline:
                pytest.fail(f"not so after {within_s} s: {what}")
            time.sleep(0.05)
