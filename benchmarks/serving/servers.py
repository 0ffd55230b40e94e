"""Servers of a benchmark: started on one core, waited for, watched for memory, stopped with all their processes.

In: a command or a bundle, a port, a core, environment variables. Out: a running `Server` with its URL.
"""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from benchmarks.harness.machine import ROOT

READY_S = 180.0
STOP_S = 30.0


@dataclass(frozen=True)
class Memory:
    """Memory in MiB.

    Attributes:
        rss: resident.
        pss: of that its share: what several processes map counts for each in part.
        anonymous: what it has allocated itself, without files.
    """

    rss: float
    pss: float
    anonymous: float


class Server:
    """A server process in a group of its own.

    Args:
        command: starts it; must listen on `port`.
        port: of 127.0.0.1, see `free_port`.
        core: the core it stays on with all its children; None: any.
        environment: variables besides those of this process.
        ready: path that answers 200, or 404 where it is not the server's, as soon as it serves.
        log: where its standard error goes; None: nowhere.
    """

    def __init__(
        self,
        command: Sequence[str],
        port: int,
        *,
        core: int | None = 0,
        environment: Mapping[str, str] | None = None,
        ready: str = "/readyz",
        log: Path | None = None,
    ) -> None:
        # Named in any case: a child stays where its parent does, and that is the load generator's core.
        last = (os.cpu_count() or 1) - 1
        pinned = ["taskset", "-c", f"0-{last}" if core is None else str(min(core, last))]
        self.url = f"http://127.0.0.1:{port}"
        self._log: IO[bytes] | None = None if log is None else log.open("wb")
        self.process = subprocess.Popen(
            [*pinned, *command],
            cwd=ROOT,
            env=dict(os.environ) | dict(environment or {}),
            stdout=subprocess.DEVNULL,
            stderr=self._log or subprocess.DEVNULL,
            start_new_session=True,  # a signal to the group reaches the workers, too
        )
        try:
            self._wait(ready)
        except BaseException:
            self.stop()
            raise

    def __enter__(self) -> "Server":
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """SIGTERM, and SIGKILL to the whole group where that takes too long."""
        if self.process.poll() is None:
            self.process.terminate()
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(STOP_S)
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        if self._log is not None:
            self._log.close()

    def processes(self) -> list[int]:
        """The process and all that descend from it."""
        return [self.process.pid, *_descendants(self.process.pid)]

    def workers(self) -> list[int]:
        """The processes that answer: the children where there are workers, otherwise the process itself."""
        return workers_of(self.process.pid) or [self.process.pid]

    def memory(self) -> Memory:
        """Memory of all its processes together, now."""
        each = [memory_of(pid) for pid in self.processes()]
        return Memory(*(sum(getattr(one, name) for one in each) for name in ("rss", "pss", "anonymous")))

    def _wait(self, path: str) -> None:
        deadline = time.monotonic() + READY_S
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                raise RuntimeError(f"the server ended with {self.process.returncode}: {self.process.args!r}")
            try:
                with urllib.request.urlopen(self.url + path, timeout=10) as answer:
                    if answer.status == 200:
                        return
            except urllib.error.HTTPError as error:
                if error.code == 404:
                    return
            except OSError:
                pass
            time.sleep(0.1)
        raise RuntimeError(f"the server was not ready after {READY_S:g} s: {self.process.args!r}")


class MemoryWatch:
    """Notes the memory of a server's processes at equal times, in a thread of its own.

    Args:
        server: whose.
        every_s: seconds between two looks.
    """

    def __init__(self, server: Server, every_s: float = 1.0) -> None:
        self.server, self.every_s = server, every_s
        self.seconds: list[float] = []
        self.found: list[Memory] = []
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> "MemoryWatch":
        self._start = time.monotonic()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._stopped.is_set():
            self.seconds.append(time.monotonic() - self._start)
            self.found.append(self.server.memory())
            self._stopped.wait(self.every_s)


def service(
    bundle: Path,
    *,
    core: int | None = 0,
    workers: int = 1,
    state: Path | None = None,
    environment: Mapping[str, str] | None = None,
    log: Path | None = None,
    module: str = "pipelines",
) -> Server:
    """`towers serve` over a bundle or a root of bundles, ready to answer; `module` is the program that serves."""
    port = free_port()
    words = ["serve", "--bundle", str(bundle), "--port", str(port), "--workers", str(workers)]
    words += [] if state is None else ["--state", str(state)]
    command = [sys.executable, "-m", module, *words]
    return Server(command, port, core=core, environment=environment, log=log)


def application(name: str, *, core: int | None = 0, environment: Mapping[str, str] | None = None) -> Server:
    """A peer: an ASGI application `module:name` under uvicorn with uvloop and httptools, one worker, no access log."""
    port = free_port()
    words = [name, "--port", str(port), "--loop", "uvloop", "--http", "httptools", "--no-access-log"]
    command = [sys.executable, "-m", "uvicorn", *words, "--log-level", "warning"]
    return Server(command, port, core=core, environment=environment, ready="/")


def free_port() -> int:
    """A free port of 127.0.0.1."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def workers_of(pid: int) -> list[int]:
    """The workers of a `towers serve --workers N`: its children, without multiprocessing's own helper and the dead."""
    return [child for child in _descendants(pid) if _is_worker(child)]


def memory_of(pid: int) -> Memory:
    """Memory of a process; zero where it is no more."""
    found = {"Rss": 0, "Pss": 0, "Anonymous": 0}
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").splitlines():
            name, _, rest = line.partition(":")
            if name in found:
                found[name] = int(rest.split()[0])
    return Memory(*(size / 1024 for size in found.values()))


def processor_s(pid: int) -> float:
    """Seconds of CPU time of a process so far; zero where it is no more."""
    with suppress(OSError):
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return 0.0


def _descendants(pid: int) -> list[int]:
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()
    except OSError:
        return []
    return [found for child in children for found in (int(child), *_descendants(int(child)))]


def _is_worker(pid: int) -> bool:
    with suppress(OSError):
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
        return bool(command) and b"resource_tracker" not in command
    return False
