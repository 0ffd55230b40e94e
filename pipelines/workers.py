"""The processes of `towers serve --workers N`: started, watched, started again when one dies, stopped together.

The parent may die, too, without a word to them: they notice, and stop as after SIGTERM. A worker whose event loop has
stood still is killed: it holds connections that nobody answers.

In: uvicorn's configuration and the socket they share. Out: they run until a stop; `DataError` where none can start.
"""

import logging
import os
import shutil
import signal
import socket
import tempfile
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing import get_context, parent_process
from pathlib import Path
from typing import Any

import uvicorn
from prometheus_client.multiprocess import mark_process_dead

from pipelines.errors import DataError

log = logging.getLogger("uvicorn.error.serving")

METRICS = "PROMETHEUS_MULTIPROC_DIR"
LOOK_S = 0.2
HUNG_S = 30.0  # a swap of bundles holds a loop up for well below a second
# Between two starts of a worker that never began to answer: what keeps it from that may need a person.
FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 30.0
SPAWN = get_context("spawn")


class Worker:
    """One place among the workers, and the process that fills it.

    Attributes:
        process: the one that runs, or ran last.
        answers: whether its event loop has turned since it began to answer.
        start_at: when the next one is to be started; None while one runs.

    Args:
        config: of its server.
        sockets: what it listens on.
    """

    def __init__(self, config: uvicorn.Config, sockets: Sequence[socket.socket]) -> None:
        self._config, self._sockets = config, sockets
        self._pause_s = FIRST_PAUSE_S
        # Looks of the parent without a turn, not seconds: it may have stood still itself, with all of them.
        self._most_still = (HUNG_S + (config.timeout_graceful_shutdown or 0)) / LOOK_S
        self.start()

    def start(self) -> None:
        """Fills the place."""
        self.start_at: float | None = None
        self._turns: Any = SPAWN.RawValue("Q", 0)
        self._seen = self._still = 0
        self.process = SPAWN.Process(target=_serve, args=(self._config, self._sockets, self._turns))
        self.process.start()

    @property
    def answers(self) -> bool:
        """Whether it has begun to."""
        return bool(self._turns.value)

    def send(self, number: int) -> None:
        """Sends a signal, if it runs."""
        if self.process.pid is not None and self.process.is_alive():
            os.kill(self.process.pid, number)

    def look(self, metrics: Path) -> None:
        """Starts, buries or kills what is due."""
        if self.start_at is not None:
            if time.monotonic() >= self.start_at:
                self.start()
        elif not self.process.is_alive():
            self._bury(metrics)
        else:
            self._still = self._still + 1 if self.answers and self._seen == self._turns.value else 0
            self._seen = self._turns.value
            if self._still > self._most_still:
                log.error("worker %s: its event loop has stood still for %g s", self.process.pid, HUNG_S)
                self._still = 0
                self.send(signal.SIGKILL)

    def _bury(self, metrics: Path) -> None:
        mark_process_dead(self.process.pid, str(metrics))  # type: ignore[no-untyped-call]
        pause_s = 0.0
        if self.answers:
            self._pause_s = FIRST_PAUSE_S
        else:
            pause_s, self._pause_s = self._pause_s, min(LONGEST_PAUSE_S, 2 * self._pause_s)
        log.error(
            "worker %s ended with %s; another one starts in %g s", self.process.pid, self.process.exitcode, pause_s
        )
        self.start_at = time.monotonic() + pause_s


class Workers:
    """The supervisor. SIGHUP makes each worker look for another bundle; SIGTTIN and SIGTTOU add and take away one.

    Args:
        config: of the servers.
        sockets: what they listen on.
        metrics: the directory in which they share their metrics.
    """

    def __init__(self, config: uvicorn.Config, sockets: list[socket.socket], metrics: Path) -> None:
        self._config, self._sockets, self._metrics = config, sockets, metrics
        self._signals: deque[int] = deque()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGTTIN, signal.SIGTTOU):
            signal.signal(number, lambda number, _: self._signals.append(number))
        self._workers: list[Worker] = []

    def run(self) -> None:
        """Runs until a stop.

        Raises:
            DataError: no worker could start.
        """
        self._workers = [Worker(self._config, self._sockets) for _ in range(self._config.workers)]
        stopping = any_answered = failed = False
        while not (stopping or failed):
            time.sleep(LOOK_S)
            while self._signals and not stopping:
                stopping = self._handle(self._signals.popleft())
            if not stopping:
                any_answered = any_answered or any(worker.answers for worker in self._workers)
                for worker in self._workers:
                    worker.look(self._metrics)
                failed = not any_answered and all(worker.start_at is not None for worker in self._workers)
        for worker in self._workers:
            worker.send(signal.SIGTERM)
        # Each worker closes its own when its linger is over. With one held here the system would go on to take
        # connections, for which nobody is there any more.
        for each in self._sockets:
            each.close()
        for worker in self._workers:
            worker.process.join()
        if failed:
            raise DataError("no worker could start; the log above says why")

    def _handle(self, number: int) -> bool:
        """Does what a signal asks for; whether that is a stop."""
        if number == signal.SIGHUP:
            for worker in self._workers:
                if worker.answers:  # One that starts has no handler yet, and finds the bundle by itself.
                    worker.send(number)
        elif number == signal.SIGTTIN:
            self._workers.append(Worker(self._config, self._sockets))
        elif number == signal.SIGTTOU and len(self._workers) > 1:
            worker = self._workers.pop()
            worker.send(signal.SIGTERM)
            worker.process.join()
        return number in (signal.SIGINT, signal.SIGTERM)


class _Server(uvicorn.Server):
    """Counts the turns of its event loop where the parent sees them."""

    def __init__(self, config: uvicorn.Config, turns: Any) -> None:
        super().__init__(config)
        self.turns = turns

    async def on_tick(self, counter: int) -> bool:
        self.turns.value += 1
        return await super().on_tick(counter)


def _serve(config: uvicorn.Config, sockets: list[socket.socket], turns: Any) -> None:
    """Serves, in the worker's own process, which stops when its parent is gone: it would hold the port."""
    config.configure_logging()
    threading.Thread(target=_stop_without_parent, name="parent", daemon=True).start()
    with suppress(KeyboardInterrupt):
        _Server(config, turns).run(sockets)


def _stop_without_parent() -> None:
    parent = parent_process()
    assert parent is not None
    parent.join()  # on a pipe of which the parent alone holds the other end
    log.error("the parent process is gone; its workers stop")
    os.kill(os.getpid(), signal.SIGTERM)


@contextmanager
def shared_metrics() -> Iterator[Path]:
    """The directory of the workers' metrics, which they find by its variable; removed at the end.

    What an operator's own PROMETHEUS_MULTIPROC_DIR names is used instead; it is emptied first.
    """
    own = os.environ.get(METRICS) or None
    directory = Path(own or tempfile.mkdtemp(prefix="towers-metrics-"))
    directory.mkdir(parents=True, exist_ok=True)
    for old in directory.glob("*.db"):
        old.unlink()
    os.environ[METRICS] = str(directory)
    try:
        yield directory
    finally:
        if own is None:
            del os.environ[METRICS]
            shutil.rmtree(directory, ignore_errors=True)
