"""The supervisor of `--workers N`: a dead worker comes back, one that cannot start is tried seldom, others go on."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest.mock import Mock

import httpx
import pytest
import uvicorn

from pipelines.service import workers
from pipelines.service.server import close_ports
from pipelines.service.workers import Worker
from serving.telemetry.metric_files import METRICS, shared_metrics
from tests.support.paths import ROOT

WAIT_S = 60  # far more than is promised: a test must not fail for a busy machine
CODE = """
import sys
from functools import partial
from pathlib import Path
import uvicorn
from tests.support.processes import supervised_app
from pipelines.service import workers
from pipelines.service.workers import Workers
from serving.telemetry.metric_files import shared_metrics
workers.HUNG_S = 3
if __name__ == "__main__":
    directory = Path({directory!r})
    config = uvicorn.Config(partial(supervised_app.make, directory), factory=True, port=0, workers=2)
    with shared_metrics() as metrics:
        socket = config.bind_socket()
        (directory / "port").write_text(str(socket.getsockname()[1]))
        (directory / "metrics").write_text(str(metrics))
        Workers(config, [socket], metrics).run()
"""


def until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, f"not so after {WAIT_S} s: {what}"
        time.sleep(0.05)


class Supervised:
    def __init__(self, directory: Path) -> None:
        self.directory = directory
        script = directory / "main.py"
        script.write_text(CODE.format(directory=str(directory)), encoding="utf-8")
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        environment.pop(METRICS, None)
        self.process = subprocess.Popen(
            [sys.executable, str(script)], stderr=subprocess.PIPE, start_new_session=True, env=environment
        )

    def starts(self) -> list[float]:
        file = self.directory / "starts"
        return [float(line) for line in file.read_text().split()] if file.exists() else []

    def pids(self) -> set[int]:
        """Who answers, in thirty tries."""
        url = f"http://127.0.0.1:{(self.directory / 'port').read_text()}/"
        found = set()
        for _ in range(30):
            try:
                found.add(int(httpx.get(url, timeout=5).text))
            except httpx.TransportError:
                time.sleep(0.01)
        return found

    def answering(self, count: int) -> set[int]:
        """Waits until so many are seen to answer, and returns who: one of several may answer all the tries."""
        seen: list[set[int]] = []

        def enough() -> bool:
            seen.append(self.pids())
            return len(seen[-1]) == count

        until(enough, f"{count} answer")
        return seen[-1]

    def stop(self) -> str:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        _, said = self.process.communicate(timeout=WAIT_S)
        return said.decode()


@pytest.fixture
def supervised(tmp_path: Path) -> Iterator[Callable[[], Supervised]]:
    made = []

    def make() -> Supervised:
        made.append(Supervised(tmp_path))
        return made[-1]

    yield make
    for each in made:
        if each.process.poll() is None:
            os.killpg(each.process.pid, signal.SIGKILL)
            each.process.communicate()


@pytest.fixture
def service(supervised: Callable[[], Supervised], tmp_path: Path) -> Supervised:
    """One with two workers, both of which answer."""
    (tmp_path / "good").touch()
    started = supervised()
    until(lambda: len(started.starts()) == 2 and len(started.pids()) == 2, "two workers answer")
    return started


@pytest.mark.long
def test_a_killed_worker_comes_back_and_one_that_cannot_start_is_tried_seldom_beside_the_other(
    service: Supervised, tmp_path: Path
) -> None:
    first, second = sorted(service.answering(2))
    metrics = Path((tmp_path / "metrics").read_text())
    (metrics / f"gauge_livesum_{first}.db").touch()
    (metrics / f"counter_{first}.db").write_bytes(bytes(100_000))
    os.kill(first, signal.SIGKILL)
    found = set[int]()

    def replaced() -> bool:
        """One worker may answer all the tries, so those of several rounds count."""
        found.update(service.pids())
        return len(found - {first}) == 2

    until(replaced, "the killed one is replaced")
    assert second in found and first not in service.pids()
    assert not (metrics / f"gauge_livesum_{first}.db").exists()
    assert (metrics / f"counter_{first}.db").stat().st_size < 4096, "what it did not use is given back"

    (tmp_path / "good").unlink()
    (killed,) = found - {first, second}
    before = len(service.starts())
    shutil.rmtree(metrics)  # as what cleans up temporary files may
    os.kill(killed, signal.SIGKILL)
    until(lambda: len(service.starts()) >= before + 3, "it is tried again")
    pauses = [later - earlier for earlier, later in zip(service.starts()[before:], service.starts()[before + 1 :])]  # noqa: B905
    # After the first failure a second passes, after the next one two: at least.
    assert pauses[0] > 1 and pauses[1] > 2
    assert service.pids() == {second}
    (tmp_path / "good").touch()
    until(lambda: len(service.pids()) == 2, "it starts again once it can")
    assert metrics.is_dir()
    service.stop()
    assert service.process.returncode == 0
    assert not metrics.exists()


@pytest.mark.long
def test_a_worker_whose_event_loop_stands_still_is_replaced(service: Supervised, tmp_path: Path) -> None:
    before = service.answering(2)
    with pytest.raises(httpx.TransportError):
        httpx.get(f"http://127.0.0.1:{(tmp_path / 'port').read_text()}/hang", timeout=1)
    until(lambda: len(service.starts()) == 3, "the one that stands still is replaced")
    assert len(service.answering(2) & before) == 1
    assert "its event loop has been blocked for 3 s" in service.stop()


def lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.long
def test_one_that_hears_no_signal_leaves_nobody_unwatched_and_holds_up_no_stop(service: Supervised) -> None:
    first, last = sorted(service.answering(2))
    os.kill(last, signal.SIGSTOP)
    service.process.send_signal(signal.SIGTTOU)
    os.kill(first, signal.SIGKILL)
    until(lambda: len(service.starts()) == 3 and len(service.pids()) == 1, "the killed one is replaced")
    until(lambda: not lives(last), "the one taken away is gone")
    (replaced,) = service.pids()
    os.kill(replaced, signal.SIGSTOP)
    assert f"worker {replaced} does not stop; it is killed" in service.stop()
    assert service.process.returncode == 0


@pytest.mark.long
def test_one_taken_away_before_a_stop_closes_no_socket_of_those_that_linger(
    supervised: Callable[[], Supervised], tmp_path: Path
) -> None:
    (tmp_path / "good").touch()
    (tmp_path / "linger").touch()
    service = supervised()
    until(lambda: len(service.starts()) == 2 and len(service.pids()) == 2, "two workers answer")
    first, last = sorted(service.answering(2))
    for number, pid in ((signal.SIGTTOU, last), (signal.SIGTERM, first)):
        service.process.send_signal(number)
        until((tmp_path / f"term-{pid}").exists, "it is told to stop")
    (tmp_path / f"over-{last}").touch()
    until(lambda: not lives(last), "its linger is over")
    # That of the other one is not.
    assert httpx.get(f"http://127.0.0.1:{(tmp_path / 'port').read_text()}/", timeout=WAIT_S).status_code == 200
    (tmp_path / f"over-{first}").touch()
    service.stop()
    assert service.process.returncode == 0


@pytest.mark.long
def test_sighup_reaches_each_worker_and_ends_none(service: Supervised, tmp_path: Path) -> None:
    before = service.answering(2)
    service.process.send_signal(signal.SIGHUP)
    until(lambda: {path.name for path in tmp_path.glob("hup-*")} == {f"hup-{pid}" for pid in before}, "each has it")
    service.process.send_signal(signal.SIGTTIN)
    (added,) = service.answering(3) - before
    gauge = Path((tmp_path / "metrics").read_text()) / f"gauge_livemax_{added}.db"
    gauge.touch()
    service.process.send_signal(signal.SIGTTOU)
    until(lambda: service.pids() == before, "it is gone again")
    assert not gauge.exists()
    service.stop()


@pytest.mark.long
def test_sighup_ends_no_worker_that_starts(supervised: Callable[[], Supervised], tmp_path: Path) -> None:
    """As it comes to each process where the whole group or unit gets it."""
    (tmp_path / "good").touch()
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # for the parent, until it has its handler
    service = supervised()
    signal.signal(signal.SIGHUP, before)

    def both_answer() -> bool:
        os.killpg(service.process.pid, signal.SIGHUP)
        return len(service.starts()) >= 2 and len(service.pids()) == 2

    until(both_answer, "two workers answer")
    assert "ended with" not in service.stop()
    assert len(service.starts()) == 2


@pytest.mark.long
def test_ctrl_c_while_workers_start_is_quiet(supervised: Callable[[], Supervised]) -> None:
    """A terminal sends SIGINT to the whole group, also to processes that still import."""
    service = supervised()
    children = Path(f"/proc/{service.process.pid}/task/{service.process.pid}/children")
    until(lambda: b"spawn_main" in b"".join(command_of(pid) for pid in children.read_text().split()), "one starts")
    os.killpg(service.process.pid, signal.SIGINT)
    assert "Traceback" not in service.stop()


def command_of(pid: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


@pytest.mark.long
def test_where_no_worker_can_ever_start_the_command_ends_with_one_line(supervised: Callable[[], Supervised]) -> None:
    service = supervised()
    until(lambda: service.process.poll() is not None, "it ends")
    said = service.stop()
    assert service.process.returncode != 0
    assert said.rstrip().endswith("DataError: no worker could start; the log above says why")


class Process:
    """One that is gone at once; the system may have no room for it."""

    room = True
    exitcode = 1

    def __init__(self, **_: object) -> None:
        self.pid: int | None = None

    def start(self) -> None:
        if not self.room:
            raise BlockingIOError(11, "Resource temporarily unavailable")
        self.pid = 4_000_000

    def is_alive(self) -> bool:
        return False


def test_a_worker_that_the_system_has_no_room_for_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(workers.SPAWN, "Process", Process)
    monkeypatch.setattr(workers.log, "handlers", [caplog.handler])
    worker = Worker(uvicorn.Config("", log_config=None), [], None)
    worker.look(tmp_path / "metrics")
    assert worker.start_at is not None
    first, worker.start_at = worker.process, 0.0
    monkeypatch.setattr(Process, "room", False)
    worker.look(tmp_path / "metrics")
    told = "no worker could be started: [Errno 11] Resource temporarily unavailable; the next attempt is in 30 s"
    assert told in caplog.text
    assert worker.process is first and worker.start_at > time.monotonic()
    assert not signal.pthread_sigmask(signal.SIG_BLOCK, [])
    worker.start_at = 0.0
    monkeypatch.setattr(Process, "room", True)
    worker.look(tmp_path / "metrics")
    assert worker.start_at is None and worker.process is not first


def test_metrics_of_a_dead_worker_that_cannot_be_tidied_up_stop_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(workers.SPAWN, "Process", Process)
    monkeypatch.setattr(workers.log, "handlers", [caplog.handler])
    monkeypatch.setattr(workers, "release", Mock(side_effect=OSError(24, "Too many open files")))
    worker = Worker(uvicorn.Config("", log_config=None), [], None)
    worker.look(tmp_path / "metrics")
    assert worker.start_at is not None and "stay as they are: [Errno 24] Too many open files" in caplog.text


def test_workers_that_have_started_are_stopped_where_the_system_has_no_room_for_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process joins them before it ends, and they end with their parent: nobody else would stop them."""
    sent: list[int] = []
    monkeypatch.setattr(workers.SPAWN, "Process", Process)
    monkeypatch.setattr(workers.signal, "signal", lambda *_: None)
    monkeypatch.setattr(Worker, "send", lambda worker, number: sent.append(number))
    supervisor = workers.Workers(uvicorn.Config("", log_config=None, workers=3), [], tmp_path / "metrics")
    started: list[Worker] = []

    def worker() -> Worker:
        monkeypatch.setattr(Process, "room", len(started) < 2)
        started.append(Worker(supervisor._config, [], supervisor._wanted))
        return started[-1]

    monkeypatch.setattr(supervisor, "_worker", worker)
    with pytest.raises(BlockingIOError):
        supervisor.run()
    assert sent == [signal.SIGTERM] * 2 and all(each.closing.value for each in started)


@pytest.mark.parametrize("graceful_s", [None, 45])
def test_a_worker_that_finishes_its_requests_has_their_time_before_it_counts_as_hung(
    monkeypatch: pytest.MonkeyPatch, graceful_s: int | None
) -> None:
    monkeypatch.setattr(workers.SPAWN, "Process", Process)
    config = uvicorn.Config("", log_config=None, timeout_graceful_shutdown=graceful_s)
    worker = Worker(config, [], None)
    looks = next(count for count in range(1, 10_000) if worker._stands_still())
    assert looks * workers.LOOK_S == pytest.approx(workers.HUNG_S + (graceful_s or 0), abs=2 * workers.LOOK_S)


def test_the_directory_of_metrics_is_empty_at_the_start_and_gone_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(METRICS, raising=False)
    with shared_metrics() as directory:
        assert os.environ[METRICS] == str(directory) and list(directory.iterdir()) == []
        (directory / "counter_7.db").touch()
    assert METRICS not in os.environ and not directory.exists()


def test_an_operators_own_directory_is_emptied_of_metrics_and_stays(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(METRICS, str(tmp_path / "own"))
    code = "from serving.telemetry import metrics"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)  # the directory may be gone
    for name in ("counter_7.db", "a letter.txt"):
        (tmp_path / "own" / name).touch()
    with shared_metrics() as directory:
        assert [path.name for path in directory.iterdir()] == ["a letter.txt"]
    assert os.environ[METRICS] == str(directory) == str(tmp_path / "own") and directory.exists()
    (directory / "shop.db").touch()
    with (
        pytest.raises(FileExistsError, match=r"a directory of its own, this one holds shop\.db"),
        shared_metrics(),
    ):
        pytest.fail("the shop's file would be read")
    assert (directory / "shop.db").exists()


def test_a_port_is_closed_once_and_opens_again() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        address = listener.getsockname()
        close_ports([listener])  # nobody has listened yet
        listener.listen()
        close_ports([listener])
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(address, timeout=5)
        for _ in range(3):
            close_ports([listener])
        listener.listen()
        with socket.create_connection(listener.getsockname(), timeout=5) as caller, listener.accept()[0] as other:
            other.sendall(b"here")
            assert caller.recv(4) == b"here"
