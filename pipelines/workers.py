"""The processes of `towers serve --workers N`: started, watched, started again when one dies, stopped together.

The parent may die, too, without a word to them: they notice, and stop as after SIGTERM.

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
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import parent_process
from pathlib import Path

from prometheus_client.multiprocess import mark_process_dead
from uvicorn import Config
from uvicorn.supervisors import Multiprocess
from uvicorn.supervisors.multiprocess import Process

from pipelines.errors import DataError

log = logging.getLogger("uvicorn.error.serving")

METRICS = "PROMETHEUS_MULTIPROC_DIR"
LOOK_S = 0.2
# Between two starts of a worker that never began to answer: what keeps it from that may need a person.
FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 30.0


@dataclass
class _Place:
    """What is known of the worker in one place.

    Attributes:
        answers: whether it has begun to.
        asked: whether a question of that is on its way.
        pause_s: before the next start, if it never answers.
        start_at: when the next one is to be started; None while one runs.
    """

    answers: bool = False
    asked: bool = False
    pause_s: float = FIRST_PAUSE_S
    start_at: float | None = None


class Worker(Process):
    """uvicorn's, which stops when its parent is gone: nobody else would stop it, and it would hold the port."""

    def target(self, sockets: list[socket.socket] | None = None) -> None:
        """Serves, in the worker's own process."""
        threading.Thread(target=_stop_without_parent, name="parent", daemon=True).start()
        super().target(sockets)


def _stop_without_parent() -> None:
    parent = parent_process()
    assert parent is not None
    parent.join()  # on a pipe of which the parent alone holds the other end
    log.error("the parent process is gone; its workers stop")
    os.kill(os.getpid(), signal.SIGTERM)


class Workers(Multiprocess):
    """uvicorn's supervisor, with its own way to watch: a death is noticed at once, and harms no other worker.

    uvicorn asks one worker after the other and waits seconds for an answer, and where one cannot start it stops all.
    SIGHUP makes each worker look for another bundle, where uvicorn would end and start them all.

    Args:
        config: of the servers.
        sockets: what they listen on.
        metrics: the directory in which they share their metrics.
    """

    def __init__(self, config: Config, sockets: list[socket.socket], metrics: Path) -> None:
        super().__init__(config, sockets)
        self._metrics = metrics
        self._places: list[_Place] = []
        self._never_answered = True

    def run(self) -> None:
        """Runs until a stop.

        Raises:
            DataError: no worker could start.
        """
        self.init_processes()
        self._places = [_Place() for _ in self.processes]
        failed = False
        while not (failed or self.should_exit.wait(LOOK_S)):
            self.handle_signals()
            if not self.should_exit.is_set():
                failed = not self._look()
        self.terminate_all()
        # Each worker closes its own when its linger is over. With one held here the system would go on to take
        # connections, for which nobody is there any more.
        for each in self.sockets:
            each.close()
        self.join_all()
        if failed:
            raise DataError("no worker could start; the log above says why")

    def init_processes(self) -> None:
        """Starts the first ones."""
        for _ in range(self.processes_num):
            self.processes.append(self._started())

    def handle_hup(self) -> None:
        """Passes the signal on."""
        for process in self.processes:
            if process.pid is not None and process.process.is_alive():
                os.kill(process.pid, signal.SIGHUP)

    def handle_ttin(self) -> None:
        """One worker more."""
        self.processes_num += 1
        self.processes.append(self._started())
        self._places.append(_Place())

    def handle_ttou(self) -> None:
        """One worker less, but for the last."""
        super().handle_ttou()
        del self._places[len(self.processes) :]

    def _look(self) -> bool:
        """Buries and starts workers; False where none ever answered and none is left that may."""
        for number, place in enumerate(self._places):
            process = self.processes[number]
            if place.start_at is not None:
                if time.monotonic() >= place.start_at:
                    place.start_at = None
                    self.processes[number] = self._started()
            elif not process.process.is_alive():
                self._bury(process, place)
            elif not place.answers:
                self._ask(process, place)
        return not self._never_answered or any(place.start_at is None for place in self._places)

    def _started(self) -> Process:
        worker = Worker(self.config, self.sockets)
        worker.start()
        return worker

    def _ask(self, process: Process, place: _Place) -> None:
        # Without waiting: a worker that loads its modules does not answer yet.
        with suppress(OSError, EOFError):
            if not place.asked:
                process.parent_conn.send(b"ping")
                place.asked = True
            if process.parent_conn.poll(0):
                place.asked = False
                if process.parent_conn.recv():
                    place.answers, place.pause_s, self._never_answered = True, FIRST_PAUSE_S, False

    def _bury(self, process: Process, place: _Place) -> None:
        process.join()
        if process.pid is not None:
            mark_process_dead(process.pid, str(self._metrics))  # type: ignore[no-untyped-call]
        pause_s = 0.0
        if not place.answers:
            pause_s, place.pause_s = place.pause_s, min(LONGEST_PAUSE_S, 2 * place.pause_s)
        log.error("worker %s ended with %s; another one starts in %g s", process.pid, process.exitcode, pause_s)
        place.start_at = time.monotonic() + pause_s
        place.answers = place.asked = False
        process.kill()  # closes its pipe


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
