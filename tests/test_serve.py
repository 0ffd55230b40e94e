"""`towers serve` below the app: a wrong address is one line before any work, and malformed HTTP gets the one error."""

import asyncio
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from serving_world import write_whole_world
from test_service_process import free_port, wait_until_ready

from pipelines import serve as command
from pipelines.errors import DataError
from serving.http_protocol import JsonErrorsProtocol

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
        command.run(ABSENT, "127.0.0.1", taken, workers)


@pytest.mark.parametrize("host", ["not..a..host", "x" * 70, "no-such-host.invalid", "[::1]", "a\0b", "192.0.2.1"])
@pytest.mark.parametrize("workers", [1, 2])
def test_a_host_that_cannot_be_listened_on_is_refused_before_the_bundle_is_opened(host: str, workers: int) -> None:
    with pytest.raises(DataError, match=r"^--host .* --port 0: cannot listen there: \w") as caught:
        command.run(ABSENT, host, 0, workers)
    assert f"--host {host} " in str(caught.value)


def test_the_command_ends_with_one_line_and_exit_code_2(taken: int) -> None:
    words = [sys.executable, "-m", "pipelines", "serve", "--bundle", str(ABSENT), "--port", str(taken)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: --host 127.0.0.1 --port {taken}: ")
    assert done.stderr.count("\n") == 1 and done.stdout == ""


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    bundle = write_whole_world(tmp_path_factory.mktemp("serve"))
    port = free_port()
    words = [sys.executable, "-m", "pipelines", "serve", "--bundle", str(bundle), "--port", str(port)]
    process = subprocess.Popen(words, stderr=subprocess.PIPE, env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"})
    try:
        wait_until_ready(f"http://127.0.0.1:{port}", process)
        yield port
    finally:
        process.kill()
        process.communicate()


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
        length = int(headers["content-length"])
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
}


@pytest.mark.slow
@pytest.mark.parametrize("name", MALFORMED)
def test_malformed_http_gets_the_one_error_shape(port: int, name: str) -> None:
    ((status, headers, body),) = answers(port, MALFORMED[name])
    assert (status, headers["content-type"], headers["connection"]) == (400, "application/json", "close")
    message = "this is not a valid HTTP request"
    assert json.loads(body) == {"error": {"code": "invalid_http", "message": message, "field": None}}


GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"


async def talk(app: Any, request: bytes, until: asyncio.Event, then: bytes | None) -> bytes:
    """Sends a request to an app behind the protocol and, once the event is set, more bytes or a stop."""
    config = uvicorn.Config(
        app, port=free_port(), http=JsonErrorsProtocol, lifespan="off", log_config=None, timeout_graceful_shutdown=0
    )
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server.serve())
    async with asyncio.timeout(20):
        while not server.started:
            await asyncio.sleep(0.01)
        reader, writer = await asyncio.open_connection("127.0.0.1", config.port)
        writer.write(request)
        await until.wait()
        if then is None:
            server.should_exit = True
        else:
            writer.write(then)
        received = await reader.read()
        writer.close()
        server.should_exit = True
        await serving
    return received


def test_a_malformed_request_never_lands_inside_the_answer_before_it() -> None:
    half_sent = asyncio.Event()

    async def half(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"10")]})
        await send({"type": "http.response.body", "body": b"half", "more_body": True})
        half_sent.set()
        await receive()  # Until the caller is gone.

    received = asyncio.run(talk(half, GET, half_sent, b"nonsense\r\n\r\n"))
    assert received.startswith(b"HTTP/1.1 200 OK") and received.endswith(b"\r\n\r\nhalf")


def test_a_request_that_a_stop_cuts_off_gets_the_one_error_shape() -> None:
    arrived = asyncio.Event()

    async def endless(scope: Any, receive: Any, send: Any) -> None:
        arrived.set()
        await asyncio.sleep(600)

    head, _, body = asyncio.run(talk(endless, GET, arrived, None)).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 503 ") and b"content-type: application/json" in head
    message = "the service is stopping"
    assert json.loads(body) == {"error": {"code": "stopping", "message": message, "field": None}}


def test_an_answer_that_a_stop_cuts_off_in_its_midst_gets_no_second_one() -> None:
    half_sent = asyncio.Event()

    async def half(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"10")]})
        await send({"type": "http.response.body", "body": b"half", "more_body": True})
        half_sent.set()
        await asyncio.sleep(600)

    received = asyncio.run(talk(half, GET, half_sent, None))
    assert received.startswith(b"HTTP/1.1 200 OK") and received.endswith(b"\r\n\r\nhalf")


@pytest.mark.slow
def test_a_wish_for_a_websocket_is_answered_as_plain_http(port: int) -> None:
    sent = b"GET /nowhere HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: upgrade, close\r\n\r\n"
    ((status, _, body),) = answers(port, sent)
    assert (status, json.loads(body)["error"]["code"]) == (404, "not_found")
