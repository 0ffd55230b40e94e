"""The processes of `towers serve --workers N`: starts, watches, restarts and stops them together.

If the parent is killed, the workers notice and stop as after SIGTERM. A worker whose event loop hangs is killed,
because it holds connections that get no answer, and hears no signal to stop.
"""

import logging
import os
import signal
import socket
import threading
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing import get_context, parent_process
from multiprocessing.resource_tracker import ensure_running
from pathlib import Path
from typing import Any

import uvicorn

from pipelines.errors import DataError
from pipelines.service.server import Server, close_ports
from serving.telemetry.logs import SERVICE
from serving.telemetry.metric_files import release

log = logging.getLogger(SERVICE)

LOOK_S = 0.2
HUNG_S = 30.0  # swapping bundles blocks an event loop for well below a second
# Between two starts of a worker that never began to answer: the cause may need a person.
FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 30.0
OF_TERMINAL = {signal.SIGHUP, signal.SIGINT}  # sent to all processes of the group
SPAWN = get_context("spawn")


class Worker:
    """A slot among the workers, and the process that fills it.

    Attributes:
        process: the current or last process.
        answers: whether its event loop has run since it began to answer.
        start_at: when to start the next process; None while one runs.
        closing: in memory shared with the process; whether the workers that it shares the sockets with stop, too.

    Args:
        config: of its server.
        sockets: the sockets to listen on.
        wanted: in memory shared with all processes; how many there should be.
    """

    def __init__(self, config: uvicorn.Config, sockets: Sequence[socket.socket], wanted: Any) -> None:
        self._config, self._sockets, self._wanted = config, sockets, wanted
        self.closing: Any = SPAWN.RawValue("b", 0)
        self._pause_s = FIRST_PAUSE_S
        # Counts checks without progress, not seconds: the parent itself may have been suspended, with all workers.
        self._most_still = (HUNG_S + (config.timeout_graceful_shutdown or 0)) / LOOK_S
        self.start()

    def start(self) -> None:
        """Starts a process in the slot; an OSError, if the system has no room for one, leaves the slot as it was."""
        turns: Any = SPAWN.RawValue("Q", 0)
        process = SPAWN.Process(target=_serve, args=(self._config, self._sockets, turns, self.closing, self._wanted))
        ensure_running()  # not with the first process: it ends by unblocking SIGINT
        # A parent's handler is not inherited, a blocked signal is: either would end the process while it starts.
        signal.pthread_sigmask(signal.SIG_BLOCK, OF_TERMINAL)
        try:
            process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, OF_TERMINAL)
        self.process, self._turns, self._seen, self._still = process, turns, 0, 0
        self.start_at: float | None = None

    @property
    def answers(self) -> bool:
        """Whether the process has begun to answer."""
        return bool(self._turns.value)

    def send(self, number: int) -> None:
        """Sends a signal if the process runs."""
        if self.process.pid is not None and self.process.is_alive():
            os.kill(self.process.pid, number)

    def look(self, metrics: Path) -> None:
        """Starts the next process, cleans up after a dead one, or kills a hung one."""
        if self.start_at is not None:
            if time.monotonic() >= self.start_at:
                try:
                    metrics.mkdir(parents=True, exist_ok=True)  # what cleans up temporary files may have removed it
                    self.start()
                except OSError as error:
                    log.error("no worker could be started: %s; the next attempt is in %g s", error, LONGEST_PAUSE_S)
                    self.start_at = time.monotonic() + LONGEST_PAUSE_S
        elif not self.process.is_alive():
            self._retire(metrics)
        elif self.answers and self._stands_still():
            blocked_s = self._most_still * LOOK_S
            log.error("worker %s: its event loop has been blocked for %g s", self.process.pid, blocked_s)
            self.send(signal.SIGKILL)

    def has_left(self, metrics: Path) -> bool:
        """Whether the process that was told to stop is gone; cleans up after it, or kills one that does not stop."""
        if self.process.is_alive():
            if self._stands_still():
                log.error("worker %s does not stop; it is killed", self.process.pid)
                self.send(signal.SIGKILL)
            return False
        self._bury(metrics)
        return True

    def _stands_still(self) -> bool:
        """Looks at the event loop; whether it has not run for so long that it never will."""
        self._still = self._still + 1 if self._seen == self._turns.value else 0
        self._seen = self._turns.value
        if self._still <= self._most_still:
            return False
        self._still = 0
        return True

    def _bury(self, metrics: Path) -> None:
        assert self.process.pid is not None
        try:
            release(metrics, self.process.pid)
        except OSError as error:  # the others go on
            log.error("the metrics of worker %s stay as they are: %s", self.process.pid, error)

    def _retire(self, metrics: Path) -> None:
        self._bury(metrics)
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
    """The supervisor. SIGHUP makes each worker check for another bundle; SIGTTIN adds a worker, SIGTTOU removes one.

    Args:
        config: of the servers.
        sockets: the sockets to listen on.
        metrics: the directory of their shared metrics.
    """

    def __init__(self, config: uvicorn.Config, sockets: list[socket.socket], metrics: Path) -> None:
        self._config, self._sockets, self._metrics = config, sockets, metrics
        self._signals: deque[int] = deque()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGTTIN, signal.SIGTTOU):
            signal.signal(number, lambda number, _: self._signals.append(number))
        self._wanted: Any = SPAWN.RawValue("i", 0)
        self._workers: list[Worker] = []
        self._leaving: list[Worker] = []  # told to stop

    def run(self) -> None:
        """Runs until stopped.

        Raises:
            DataError: no worker could start.
        """
        try:
            self._supervise()
        except BaseException:  # this process waits for its workers before it ends, and nobody would stop them
            for worker in (*self._workers, *self._leaving):
                worker.closing.value = 1
                worker.send(signal.SIGTERM)
            raise

    def _supervise(self) -> None:
        for _ in range(self._config.workers):
            self._workers.append(self._worker())
        stopping = any_answered = failed = False
        while not (stopping or failed):
            time.sleep(LOOK_S)
            while self._signals and not stopping:
                stopping = self._handle(self._signals.popleft())
            self._wanted.value = len(self._workers)
            if not stopping:
                any_answered = any_answered or any(worker.answers for worker in self._workers)
                for worker in self._workers:
                    worker.look(self._metrics)
                self._see_off()
                alive = any(worker.process.is_alive() for worker in (*self._workers, *self._leaving))
                if not alive and self._config.port:  # one that the system chose would be another one afterwards
                    close_ports(self._sockets)
                failed = not any_answered and all(worker.start_at is not None for worker in self._workers)
        # Not one that SIGTTOU told to stop: while the others linger, they accept new callers.
        for worker in self._workers:
            worker.closing.value = 1
        while self._workers:
            self._remove()
        for each in self._sockets:
            each.close()  # as each worker does when its linger is over: held open, callers would wait
        while self._leaving:
            self._leaving[0].process.join(LOOK_S)
            self._see_off()
        if failed:
            raise DataError("no worker could start; the log above says why")

    def _worker(self) -> Worker:
        return Worker(self._config, self._sockets, self._wanted)

    def _handle(self, number: int) -> bool:
        """Handles a signal; returns whether it means stop."""
        if number == signal.SIGHUP:
            for worker in self._workers:
                if worker.answers:  # A starting worker has no handler yet, and finds the bundle by itself.
                    worker.send(number)
        elif number == signal.SIGTTIN:
            try:
                self._workers.append(self._worker())
            except OSError as error:
                log.error("no worker could be added: %s", error)
        elif number == signal.SIGTTOU and len(self._workers) > 1:
            self._remove()
        return number in (signal.SIGINT, signal.SIGTERM)

    def _remove(self) -> None:
        """Tells the last worker to stop, and does not wait for it: a hung one would not hear it."""
        self._leaving.append(self._workers.pop())
        self._leaving[-1].send(signal.SIGTERM)

    def _see_off(self) -> None:
        self._leaving = [worker for worker in self._leaving if not worker.has_left(self._metrics)]


def _serve(config: uvicorn.Config, sockets: list[socket.socket], turns: Any, closing: Any, wanted: Any) -> None:
    """Serves in the worker's process, which stops when its parent is gone: it would hold the port."""
    for number in OF_TERMINAL:
        signal.signal(number, signal.SIG_IGN)  # until there is a handler: it finds the bundle, and is stopped, anyway
    signal.pthread_sigmask(signal.SIG_UNBLOCK, OF_TERMINAL)
    config.configure_logging()
    threading.Thread(target=_stop_without_parent, args=(closing,), name="parent", daemon=True).start()
    with suppress(KeyboardInterrupt):
        Server(config, turns, closing, wanted).run(sockets)


def _stop_without_parent(closing: Any) -> None:
    parent = parent_process()
    assert parent is not None
    parent.join()  # waits on a pipe whose other end only the parent holds
    log.error("the parent process is gone; its workers stop")
    closing.value = 1
    os.kill(os.getpid(), signal.SIGTERM)
