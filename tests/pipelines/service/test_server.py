"""A stop resets nobody who has connected, and waits for no bundle that opens."""

import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import uvicorn

from pipelines.service import server
from pipelines.service.server import Server
from tests.support.paths import ROOT

WAIT_S = 60
REQUEST = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
PROGRAM = """
import asyncio, time
from concurrent.futures import ThreadPoolExecutor
import uvicorn
from pipelines.service.server import Server
from serving.background import OPENING

async def app(scope, receive, send):
    await receive()
    if {starting}:
        print("begun", flush=True)
        await asyncio.to_thread(time.sleep, 600)
    await send({{"type": "lifespan.startup.complete"}})
    ThreadPoolExecutor(1, OPENING).submit(time.sleep, 600)
    asyncio.get_running_loop().call_later(0.5, lambda: print("begun", flush=True))
    await receive()
    await send({{"type": "lifespan.shutdown.complete"}})

Server(uvicorn.Config(app, port=0, log_level="warning")).run()
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("starting", [True, False])
def test_a_stop_waits_for_no_bundle_that_opens(starting: bool, number: signal.Signals) -> None:
    program = [sys.executable, "-c", PROGRAM.format(starting=starting)]
    with subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT) as process:
        try:
            assert process.stdout is not None and process.stdout.readline() == b"begun\n"
            process.send_signal(number)
            assert process.wait(WAIT_S) in (0, -number)
        finally:
            process.kill()


class App:
    """Answers each request with `Connection: close`; `/busy` holds up the event loop and then stops the server."""

    def __init__(self) -> None:
        self.busy, self.connected = threading.Event(), threading.Event()
        self.server: Server

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["path"] == "/busy":
            self.busy.set()
            assert self.connected.wait(WAIT_S)
            time.sleep(0.2)  # longer than the server's pause between two looks at `should_exit`
            self.server.should_exit = True
        headers = [(b"content-length", b"2"), (b"connection", b"close")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"ok"})


@contextmanager
def serving(app: App, listener: socket.socket | None = None, closing: Any = None) -> Iterator[int]:
    """Runs a server in a thread, which must end by itself; gives its port."""
    config = uvicorn.Config(app, port=0, lifespan="off", log_level="warning")
    app.server = Server(config, closing=closing)
    thread = threading.Thread(target=app.server.run, args=([listener] if listener else None,))
    thread.start()
    try:
        deadline = time.monotonic() + WAIT_S
        while not app.server.started:
            assert thread.is_alive() and time.monotonic() < deadline
            time.sleep(0.01)
        yield app.server.servers[0].sockets[0].getsockname()[1]
        thread.join(WAIT_S)
        assert not thread.is_alive()
    finally:
        app.connected.set()
        app.server.should_exit = True
        thread.join(WAIT_S)


def answer(connection: socket.socket, request: bytes = REQUEST) -> bytes:
    with connection:
        connection.sendall(request)
        return b"".join(iter(lambda: connection.recv(1_000), b""))


def test_who_waits_in_the_accept_queue_at_a_stop_is_answered_and_who_comes_later_is_refused() -> None:
    app = App()
    with serving(app) as port:
        connect = lambda: socket.create_connection(("127.0.0.1", port), timeout=WAIT_S)  # noqa: E731
        busy = connect()
        asking = threading.Thread(target=answer, args=(busy, REQUEST.replace(b"/ ", b"/busy ")))
        asking.start()
        assert app.busy.wait(WAIT_S)
        waiting = [connect() for _ in range(8)]
        app.connected.set()
        assert [answer(each)[-2:] for each in waiting] == [b"ok"] * 8
        deadline = time.monotonic() + WAIT_S
        with pytest.raises(ConnectionRefusedError):
            while time.monotonic() < deadline:
                assert answer(connect())[-2:] == b"ok"
        asking.join()


@pytest.mark.parametrize(("closing", "connects"), [(0, True), (1, False)])
def test_a_worker_that_stops_alone_leaves_the_queue_to_the_others(closing: int, connects: bool) -> None:
    app = App()
    app.connected.set()
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        with serving(app, listener.dup(), SimpleNamespace(value=closing)) as port:
            answer(socket.create_connection(("127.0.0.1", port), timeout=WAIT_S), REQUEST.replace(b"/ ", b"/busy "))
        # `listener` is the copy of another worker.
        with nullcontext() if connects else pytest.raises(TimeoutError):
            socket.create_connection(("127.0.0.1", port), timeout=0.5).close()


def test_a_worker_that_stops_alone_answers_whom_it_has_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "REQUEST_S", 1.0)
    app, deadline = App(), time.monotonic() + WAIT_S
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        with serving(app, listener.dup(), SimpleNamespace(value=0)) as port:
            accepted = socket.create_connection(("127.0.0.1", port), timeout=WAIT_S)
            while not app.server.server_state.connections:
                assert time.monotonic() < deadline
                time.sleep(0.01)
            app.server.should_exit = True
            while app.server.servers[0].is_serving():
                assert time.monotonic() < deadline
                time.sleep(0.01)
            assert answer(accepted)[-2:] == b"ok"
