"""`towers serve` below the app: a wrong address is one line before any work; what is no HTTP, or wants another one."""

import errno
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
import uvicorn

from pipelines.errors import DataError
from pipelines.service import serve as command
from serving.bundle import arrays
from serving.errors import BundleError
from serving.settings import Settings
from serving.telemetry.metric_files import METRICS
from tests.support.processes.running_service import RunningService, free_port
from tests.support.served import served
from tests.support.worlds.serving import write_whole_world, write_world

ABSENT = Path("no such bundle")


@pytest.fixture
def taken() -> Iterator[int]:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield int(listener.getsockname()[1])


@pytest.mark.parametrize("workers", [1, 2])
def test_a_taken_port_is_refused_before_the_bundle_is_opened(taken: int, workers: int) -> None:
    with pytest.raises(DataError, match=rf"^--host 127\.0\.0\.1 --port {taken}: .*in use.*another --port"):
        command.run(bundle=ABSENT, host="127.0.0.1", port=taken, workers=workers)


@pytest.mark.parametrize("host", ["not..a..host", "x" * 70, "no-such-host.invalid", "[::1]", "a\0b", "192.0.2.1"])
@pytest.mark.parametrize("workers", [1, 2])
def test_a_host_that_cannot_be_listened_on_is_refused_before_the_bundle_is_opened(host: str, workers: int) -> None:
    with pytest.raises(DataError, match=r"^--host .* --port 0: cannot listen there: \w") as caught:
        command.run(bundle=ABSENT, host=host, port=0, workers=workers)
    assert f"--host {host} " in str(caught.value)


def test_the_command_ends_with_one_line_and_exit_code_2(tmp_path: Path, taken: int) -> None:
    words = [sys.executable, "-m", "pipelines", "serve", "--bundle", str(ABSENT), "--port", str(taken)]
    environment = {**os.environ, METRICS: str(tmp_path)}
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, env=environment)
    assert done.returncode == 2
    assert list(tmp_path.iterdir()) == [], "a start that is tried again and again must not fill the disk"
    assert done.stderr.startswith(f"error: --host 127.0.0.1 --port {taken}: ")
    assert done.stderr.count("\n") == 1 and done.stdout == ""


FAILING = """
import sys
from pathlib import Path
from pipelines.cli import app
from pipelines.service import serve
from serving.errors import BundleError
from serving.service.service import Service

def fails(service):
    raise BundleError("it finds nothing")

if sys.argv.pop(1) == "bundle":
    Service.start = fails
serve.refuse_files = lambda settings: None  # it was right a moment ago
app.main()
"""


def test_a_journal_among_the_copies_of_a_store_is_refused(tmp_path: Path) -> None:
    for state in (tmp_path, tmp_path / "copies" / ".." / "state"):
        told = f"--state {state}: must be outside the directory of the copies, {tmp_path}"
        with pytest.raises(DataError, match=told):
            command.run(bundle="memory://shop/recall", cache=tmp_path, state=state)


@pytest.mark.long
@pytest.mark.parametrize("cause", ["bundle", "keys"])
def test_a_service_that_cannot_start_ends_with_exit_code_2(tmp_path: Path, cause: str) -> None:
    keys = tmp_path / "keys.toml"
    keys.write_text("no file of keys" if cause == "keys" else "", encoding="utf-8")
    words = ["serve", "--bundle", str(write_whole_world(tmp_path)), "--port", "0", "--keys", str(keys)]
    done = subprocess.run([sys.executable, "-c", FAILING, cause, *words], capture_output=True, text=True, timeout=90)
    assert done.returncode == 2
    assert done.stderr.endswith("\nerror: the service could not start; the log above says why\n")
    assert ("it finds nothing" if cause == "bundle" else f"{keys}: ") in done.stderr


OPENING = """
import sys, time
from pathlib import Path
from pipelines.service import serve
serve.first_whole = lambda *_: (print("opening", flush=True), time.sleep(60))
serve.run(bundle=Path(sys.argv[1]), port=0)
"""


def test_sigterm_ends_it_while_the_bundle_is_read(tmp_path: Path) -> None:
    """By a handler: where the signal is ignored, as by the first process of a container, it ends the process, too."""
    write_world(tmp_path / "bundle")
    words = [sys.executable, "-c", OPENING, str(tmp_path / "bundle")]
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    signal.signal(signal.SIGTERM, before)
    assert process.stdout is not None and process.stdout.readline() == "opening\n"
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=30) == -signal.SIGTERM


IMPORTING = """
import sys, time
class Slow:
    def find_spec(self, name, *_):
        if name == "pipelines.service.serve":
            print("importing", flush=True)
            time.sleep(60)
sys.meta_path.insert(0, Slow())
from pipelines.cli import serve as cli
cli.serve(bundle="absent")
"""


def test_sigterm_ends_it_while_it_imports() -> None:
    """By a handler, as above: imports take seconds, and more where processors are few."""
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    process = subprocess.Popen([sys.executable, "-c", IMPORTING], stdout=subprocess.PIPE, text=True)
    signal.signal(signal.SIGTERM, before)
    assert process.stdout is not None and process.stdout.readline() == "importing\n"
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=30) == -signal.SIGTERM


STARTING = """
import sys
from pathlib import Path
from pipelines.cli import serve as cli
from pipelines.service import serve
whole = serve.first_whole
serve.first_whole = lambda *given: (print("opening", flush=True), sys.stdin.readline(), whole(*given))[-1]
cli.serve(bundle=sys.argv[1], port=int(sys.argv[2]))
"""


@pytest.mark.long
def test_sighup_ends_it_neither_while_the_bundle_is_read_nor_later(tmp_path: Path) -> None:
    bundle, port = write_whole_world(tmp_path), free_port()
    words = [sys.executable, "-c", STARTING, str(bundle), str(port)]
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # a child inherits it if it is ignored
    process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    signal.signal(signal.SIGHUP, before)
    try:
        assert process.stdin is not None and process.stdout is not None
        assert process.stdout.readline() == "opening\n"
        process.send_signal(signal.SIGHUP)
        process.stdin.write("\n")
        process.stdin.flush()
        for _ in range(2):
            until_ready(port, process)
            process.send_signal(signal.SIGHUP)
        process.send_signal(signal.SIGTERM)
        assert "Application shutdown complete" in process.communicate(timeout=60)[1]
    finally:
        process.kill()
        process.communicate()


def until_ready(port: int, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 90
    while True:
        assert process.poll() is None and time.monotonic() < deadline
        with suppress(httpx.TransportError):
            if httpx.get(f"http://127.0.0.1:{port}/readyz").status_code == 200:
                return
        time.sleep(0.1)


@pytest.mark.long
@pytest.mark.parametrize("workers", [1, 2])
def test_a_new_journal_is_told_once(tmp_path: Path, workers: int) -> None:
    """Where --state is mistyped, no other sign tells that the deleted items come back."""
    bundle, log, told = write_whole_world(tmp_path), tmp_path / "log", []
    for _ in range(2):
        with RunningService(bundle, tmp_path / "state", workers, log=log):
            told.append(log.read_text().count(f"{tmp_path / 'state' / 'journal.sqlite'}: a new journal, without any"))
    assert told == [1, 0]


def failing_disk(path: Path) -> None:
    raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))


def test_the_newest_bundle_that_is_whole_is_the_one_to_start_with(tmp_path: Path) -> None:
    for name in ("one", "two"):
        write_world(tmp_path / name)
    settings = Settings(bundle=tmp_path)
    assert command.first_whole([tmp_path / "two", tmp_path / "one"], settings) == tmp_path / "two"
    with pytest.MonkeyPatch.context() as patch:
        whole, sick = arrays.digest, tmp_path / "two" / "popularity.npy"
        patch.setattr(arrays, "digest", lambda path: whole(path) if path != sick else failing_disk(path))
        assert command.first_whole([tmp_path / "two", tmp_path / "one"], settings) == tmp_path / "one"
    (tmp_path / "two" / "popularity.npy").write_bytes(b"")
    assert command.first_whole([tmp_path / "two", tmp_path / "one"], settings) == tmp_path / "one"
    with pytest.raises(BundleError, match=r"two/popularity\.npy: truncated"):
        command.first_whole([tmp_path / "two", ABSENT], settings)


@pytest.fixture(scope="module")
def ports(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, int]]:
    """Of a service with each parser."""
    bundle = write_whole_world(tmp_path_factory.mktemp("serve"))
    with served(config_of(bundle, http="httptools")) as one, served(config_of(bundle, http="h11")) as other:
        yield {http: int(url.rpartition(":")[2]) for http, url in (("httptools", one), ("h11", other))}


def config_of(bundle: Path, **settings: Any) -> uvicorn.Config:
    """What the command has uvicorn run, with this process's own log."""
    given: list[uvicorn.Config] = []
    with pytest.MonkeyPatch.context() as patch:
        double = lambda config: SimpleNamespace(run=lambda _: given.append(config), started=True)  # noqa: E731
        patch.setattr(command, "Server", double)
        patch.setattr(command, "log_config", lambda settings: None)
        command.run(bundle=bundle, port=0, **settings)
    return given[0]


def test_uvicorn_gets_the_times_of_the_settings_and_tells_nobody_its_name(tmp_path: Path) -> None:
    write_world(tmp_path / "bundle")
    config = config_of(tmp_path / "bundle", keep_alive_s=7.5, graceful_timeout_s=3)
    assert (config.timeout_keep_alive, config.timeout_graceful_shutdown) == (7.5, 3)
    assert (config.proxy_headers, config.server_header) == (False, False)


NO_LIMIT = resource.RLIM_INFINITY


@pytest.mark.parametrize(
    ("limits", "raised"),
    [
        ((1_024, 65_536), (16_384, 65_536)),
        ((1_024, 2_048), (2_048, 2_048)),
        ((1_024, NO_LIMIT), (16_384, NO_LIMIT)),
        ((16_384, 65_536), None),
        ((NO_LIMIT, NO_LIMIT), None),
    ],
)
def test_the_limit_of_open_files_is_raised_as_far_as_the_system_allows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limits: tuple[int, int], raised: tuple[int, int] | None
) -> None:
    write_world(tmp_path / "bundle")
    given: list[tuple[int, tuple[int, int]]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda which: limits)
    monkeypatch.setattr(resource, "setrlimit", lambda which, new: given.append((which, new)))
    config_of(tmp_path / "bundle")
    assert given == ([] if raised is None else [(resource.RLIMIT_NOFILE, raised)])


def answers(port: int, sent: bytes) -> list[tuple[int, dict[str, str], bytes]]:
    """Status, headers and body of every answer until the service closes the connection."""
    with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
        connection.sendall(sent)
        received = b"".join(iter(lambda: connection.recv(65_536), b""))
    found = []
    while received:
        head, _, rest = received.partition(b"\r\n\r\n")
        first, *lines = head.decode("ascii").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        length = int(headers.get("content-length", len(rest)))  # h11's own goes to the end of the connection
        found.append((int(first.split()[1]), headers, rest[:length]))
        received = rest[length:]
    return found


POST = b"POST /recall HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
MALFORMED = {
    "no HTTP at all": b"hello\r\n\r\n",
    "a TLS handshake": bytes.fromhex("16030100a5010000a10303") + b"\0" * 50,
    "unknown method": b"FETCH /recall HTTP/1.1\r\nHost: x\r\n\r\n",
    "unknown version": b"GET /healthz HTTP/7.7\r\nHost: x\r\n\r\n",
    "target that is no path": b"CONNECT x:1 HTTP/1.1\r\nHost: x\r\n\r\n",
    "header without a colon": b"GET /healthz HTTP/1.1\r\nHost x\r\n\r\n",
    "length that is no number": POST + b"Content-Length: ten\r\n\r\n{}",
    "negative length": POST + b"Content-Length: -1\r\n\r\n{}",
    "two lengths": POST + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}",
    "length and chunks": POST + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "chunk size that is no number": POST + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n{}\r\n0\r\n\r\n",
    "chunk longer than its size": POST + b"Transfer-Encoding: chunked\r\n\r\n1\r\n{}{}{}\r\n0\r\n\r\n",
    "wrong chunk for a path that reads none": POST.replace(b"/recall", b"/nowhere")
    + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
    "address of 70,000 bytes": b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
    "target with a fragment": b"DELETE /items/i1#2 HTTP/1.1\r\nHost: x\r\n\r\n",
    "CONNECT to a path": b"CONNECT /recall HTTP/1.1\r\nHost: x\r\n\r\nGET /healthz HTTP/1.1\r\nHost: x\r\n\r\n",
}


# h11 takes these: a method of its own gets 405 from the app, chunks go before a length, and a path has all its letters.
TAKEN_BY_H11 = {"unknown method", "unknown version", "target that is no path", "length and chunks"} | {
    "address of 70,000 bytes",
    "target with a fragment",
    "CONNECT to a path",
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("http", "name"),
    [("httptools", name) for name in MALFORMED] + [("h11", name) for name in MALFORMED if name not in TAKEN_BY_H11],
)
def test_malformed_http_gets_one_answer_and_the_end_of_the_connection(
    ports: dict[str, int], http: str, name: str
) -> None:
    """The server's own, below the app: its text is not ours, its status is."""
    ((status, headers, _),) = answers(ports[http], MALFORMED[name])
    assert (status, headers["connection"]) == (400, "close")


@pytest.mark.slow
@pytest.mark.parametrize("http", ["httptools", "h11"])
def test_an_upgrade_is_refused_with_its_body(ports: dict[str, int], http: str) -> None:
    body = POST + b"Content-Length: 2\r\n\r\n{}"
    sent = POST + b"Connection: Upgrade\r\nUpgrade: h2c\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
    ((status, headers, answer),) = answers(ports[http], sent)
    assert (status, headers["connection"]) == (400, "close")
    message = "send HTTP/1.1 without Upgrade; no other protocol is supported"
    assert json.loads(answer) == {"error": {"code": "invalid_http", "message": message, "field": None}}
    assert headers["x-request-id"]
