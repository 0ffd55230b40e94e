"""Callers who send all of a request before they read: the answer reaches them, and slow or endless bodies are left."""

import asyncio
import json
import socket
import time

import pytest

from serving.protocol.limits import FULL
from tests.support.processes.limited_server import World, in_world

pytestmark = pytest.mark.usefixtures("frequent_looks")

parsers = pytest.mark.parametrize("http", ["httptools", "h11"])
HEAD = b"POST /recall HTTP/1.1\r\nHost: x\r\nConnection: %b\r\n"
LENGTH = b"Content-Length: %d\r\n\r\n"
CHUNKED = b"Transfer-Encoding: chunked\r\n\r\n"
BODY = b"x" * 3_000_000  # more than the sockets of both sides hold


def told(port: int, head: bytes, body: bytes) -> tuple[bytes, bytes]:
    """Head and body of the answer, read once all is sent and the service has closed the connection."""
    with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
        connection.sendall(head)
        time.sleep(0.05)  # the answer could come now
        connection.sendall(body)
        head, _, body = b"".join(iter(lambda: connection.recv(65_536), b"")).partition(b"\r\n\r\n")
        return head, body


@parsers
@pytest.mark.parametrize(
    ("head", "body"),
    [
        (HEAD % b"close" + LENGTH % len(BODY), BODY),
        (HEAD % b"TE, Close" + LENGTH % len(BODY), BODY),
        (b"POST /recall HTTP/1.0\r\n" + LENGTH % len(BODY), BODY),
        (HEAD % b"close" + b"Transfer-Encoding: chunked\r\n\r\n", b"%x\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY)),
    ],
    ids=["close", "close among others", "HTTP/1.0", "chunked"],
)
def test_whoever_sends_too_much_and_then_reads_finds_the_413(http: str, head: bytes, body: bytes) -> None:
    async def test(world: World) -> None:
        answer, error = await asyncio.to_thread(told, world.port, head, body)
        assert answer.startswith(b"HTTP/1.1 413 ") and b"\r\nconnection: close" in answer.lower()
        assert json.loads(error)["error"]["code"] == "too_large"
        assert world.app.begun == 0

    in_world(test, max_body_bytes=1_000, http=http)


@parsers
@pytest.mark.parametrize("length", [LENGTH % len(BODY), CHUNKED], ids=["whole", "chunked"])
def test_while_the_service_stops_the_413_is_found_too(http: str, length: bytes) -> None:
    body = b"%x\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY) if b"chunked" in length else BODY

    async def test(world: World) -> None:
        world.drain.begun = True
        answer, _ = await asyncio.to_thread(told, world.port, HEAD % b"keep-alive" + length, body)
        assert answer.startswith(b"HTTP/1.1 413 ") and b"\r\nconnection: close" in answer.lower()

    in_world(test, max_body_bytes=1_000, http=http)


@parsers
def test_whoever_sends_a_body_to_a_full_service_and_then_reads_finds_the_429(refused: list[str], http: str) -> None:
    async def test(world: World) -> None:
        await world.holding(1)
        answer, error = await asyncio.to_thread(told, world.port, HEAD % b"close" + LENGTH % len(BODY), BODY)
        assert answer.startswith(b"HTTP/1.1 429 ") and error == FULL["concurrency"]
        assert refused == ["concurrency"]

    in_world(test, max_concurrent=1, max_body_bytes=len(BODY), http=http)


@parsers
@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_that_stands_still_is_waited_for_a_while_and_takes_no_place(
    monkeypatch: pytest.MonkeyPatch, http: str, chunked: bool
) -> None:
    monkeypatch.setattr("serving.protocol.refusal.REST_S", 0.2)

    async def test(world: World) -> None:
        slow, other = await world.caller(), await world.caller()
        rest = b"Transfer-Encoding: chunked\r\n\r\n7d0\r\n" + b"x" * 1_500 if chunked else LENGTH % 2_000 + b"x"
        slow.writer.write(HEAD % b"close" + rest)
        begun = time.monotonic()
        await asyncio.sleep(0.05)
        for _ in range(3):
            other.send()
            assert (await other.answer())[0] == 200
        assert await slow.code() == (413, "too_large")
        assert time.monotonic() - begun >= 0.2
        assert await slow.closed()

    in_world(test, max_body_bytes=1_000, max_concurrent=1, http=http)


@parsers
def test_a_body_without_end_is_left_at_the_bound(monkeypatch: pytest.MonkeyPatch, http: str) -> None:
    monkeypatch.setattr("serving.protocol.refusal.REST_S", 100)
    monkeypatch.setattr("serving.protocol.refusal.REST_BYTES", 20_000_000)

    async def test(world: World) -> None:
        endless = await world.caller()
        endless.writer.write(HEAD % b"close" + LENGTH % 10**12)
        sent = 0
        with pytest.raises(ConnectionError):
            while sent < 10**9:
                endless.writer.write(b"x" * 100_000)
                sent += 100_000
                await endless.writer.drain()
        assert 20_000_000 <= sent < 40_000_000  # the sockets of both sides hold a few more
        assert not world.server.server_state.connections

    in_world(test, max_body_bytes=1_000, http=http)


@parsers
def test_a_refused_caller_who_waits_for_100_continue_is_not_asked_for_the_body(http: str) -> None:
    async def test(world: World) -> None:
        caller = await world.caller()
        caller.writer.write(HEAD % b"close" + b"Expect: 100-continue\r\n" + LENGTH % 2_000)
        status, headers, _ = await caller.answer()  # the first that comes
        assert (status, headers["connection"]) == (413, "close")
        assert await caller.closed()

    in_world(test, max_body_bytes=1_000, http=http)


@pytest.mark.long
@parsers
def test_a_stop_does_not_wait_for_a_body_that_nobody_wants(monkeypatch: pytest.MonkeyPatch, http: str) -> None:
    monkeypatch.setattr("serving.protocol.refusal.REST_S", 100)

    async def test(world: World) -> None:
        slow = await world.caller()
        slow.writer.write(HEAD % b"close" + LENGTH % 2_000)
        await asyncio.sleep(0.05)
        world.server.should_exit = True  # the world gives it a second
        assert await slow.code() == (503, "stopping")
        assert await slow.closed()

    in_world(test, max_body_bytes=1_000, http=http)
