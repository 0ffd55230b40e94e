"""Callers who send or read slowly, and answers that take long: given up in time, within one bound of memory."""

import asyncio
import json
import logging
import socket
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, cast

import pytest
from starlette.applications import Starlette

from serving.http.request_log import RequestLog
from serving.http.route_table import WORK
from serving.protocol.exchange import AT_ONCE, Exchanges
from serving.protocol.limits import Limits
from serving.protocol.shutdown import Drain
from serving.settings import Settings
from serving.telemetry.logs import JsonFormatter
from tests.support.processes.limited_server import Caller, World, in_world

pytestmark = pytest.mark.usefixtures("frequent_looks")

parsers = pytest.mark.parametrize("http", ["httptools", "h11"])
HALF = b"POST /recall HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b"


@parsers
@pytest.mark.parametrize("sent", [0, 5, 200_000])
def test_a_body_that_does_not_come_in_time_is_given_up_however_it_trickles(
    refused: list[str], http: str, sent: int
) -> None:
    async def test(world: World) -> None:
        slow = await world.caller()
        slow.writer.write(HALF % (300_000, b"x" * sent))

        async def trickle() -> None:
            while True:
                await asyncio.sleep(0.02)
                slow.writer.write(b"a")

        trickling = asyncio.create_task(trickle())
        assert await slow.code() == (408, "too_slow")
        trickling.cancel()
        other = await world.caller()
        other.send()
        assert (await other.answer())[0] == 200
        assert world.app.begun == 1 and refused == ["slow"]

    in_world(test, body_timeout_s=0.3, max_concurrent=1, http=http)


def test_many_that_are_late_are_given_up_a_few_at_a_time(refused: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[int] = []
    whole = Exchanges._look

    def look(self: Exchanges, loop: asyncio.AbstractEventLoop) -> None:
        before = len(refused)
        whole(self, loop)
        looks.append(len(refused) - before)

    monkeypatch.setattr(Exchanges, "_look", look)

    async def test(world: World) -> None:
        slow = [await world.caller() for _ in range(30)]
        for each in slow:
            each.writer.write(HALF % (1_000, b"x"))
        for each in slow:
            assert await each.code() == (408, "too_slow")
        assert refused == ["slow"] * 30
        assert max(looks) <= AT_ONCE and sum(looks) == 30

    in_world(test, body_timeout_s=0.3)


def test_half_bodies_have_one_bound_and_the_oldest_goes_first(refused: list[str]) -> None:
    async def test(world: World) -> None:
        halves: list[Caller] = []
        for _ in range(3):
            halves.append(await world.caller(2**19))
            halves[-1].writer.write(HALF % (300_000, b"x" * 200_000))
            await asyncio.sleep(0.1)
        assert await halves[0].code() == (408, "too_slow")
        assert await halves[0].closed()
        for each in halves[1:]:
            each.writer.write(b"x" * 100_000)
            assert (await each.answer())[::2] == (200, b"x" * 300_000)
        assert refused == ["slow"]
        last = await world.caller(2**19)  # nothing of them is counted any more
        last.send("/recall", b"y" * 400_000)
        assert (await last.answer())[::2] == (200, b"y" * 400_000)

    in_world(test, max_waiting_bytes=500_000, body_timeout_s=100)


def test_half_bodies_of_callers_who_have_gone_are_not_counted(refused: list[str]) -> None:
    async def test(world: World) -> None:
        for _ in range(3):
            gone = await world.caller()
            gone.writer.write(HALF % (300_000, b"x" * 200_000))
            await gone.writer.drain()
            await asyncio.sleep(0.1)
            gone.writer.close()
            await asyncio.sleep(0.1)
        halves = [await world.caller(2**19) for _ in range(2)]
        for each in halves:
            each.writer.write(HALF % (300_000, b"x" * 200_000))
        await asyncio.sleep(0.1)
        for each in halves:
            each.writer.write(b"x" * 100_000)
            assert (await each.answer())[::2] == (200, b"x" * 300_000)
        assert refused == []

    in_world(test, max_waiting_bytes=500_000, body_timeout_s=100)


@parsers
def test_an_answer_that_is_not_read_holds_no_place_and_is_given_up(
    refused: list[str], caplog: pytest.LogCaptureFixture, http: str
) -> None:
    caplog.set_level(logging.WARNING)

    async def test(world: World) -> None:
        deaf = [await world.caller(limit=1_024) for _ in range(3)]
        for each in deaf:
            each.send("/recall", b"", "X-Answer-Bytes: 20000000")  # far more than the sockets take
        await world.app.until_begun(3)
        other = await world.caller()
        other.send()  # the one place is free
        assert (await other.answer())[0] == 200
        while len(refused) < 3:
            await asyncio.sleep(0.01)
        assert refused == ["unread"] * 3
        while world.server.server_state.tasks:
            await asyncio.sleep(0.001)
        # Their connections are gone, with all that they have not read, though they still read nothing.
        assert len(world.server.server_state.connections) == 1
        for each in deaf:
            with pytest.raises(ConnectionResetError):
                await each.answer()  # cut off: nobody can take it for a whole one
        assert caplog.records == []  # `refused` is what the summary counts

    in_world(test, max_concurrent=1, request_timeout_s=0.5, http=http)


@parsers
def test_a_408_that_waits_for_earlier_answers_to_be_read_does_not_wait_for_good(
    refused: list[str], monkeypatch: pytest.MonkeyPatch, http: str
) -> None:
    monkeypatch.setattr("serving.protocol.exchange.REFUSE_S", 0.1)

    async def test(world: World) -> None:
        small = socket.socket()
        small.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        small.setblocking(False)
        await asyncio.get_running_loop().sock_connect(small, ("127.0.0.1", world.port))
        deaf = Caller(*await asyncio.open_connection(sock=small, limit=1_024))
        world.callers.append(deaf)
        while not world.server.server_state.connections:
            await asyncio.sleep(0.001)
        (connection,) = cast(set[Any], world.server.server_state.connections)
        connection.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4_096)
        connection.transport.set_write_buffer_limits(0)
        deaf.send("/recall", b"", "X-Answer-Bytes: 60000")
        while not (connection.flow.write_paused and connection.cycle.response_complete):
            await asyncio.sleep(0.001)
        deaf.writer.write(HALF % (300_000, b"x"))
        while world.server.server_state.tasks or world.server.server_state.connections:
            await asyncio.sleep(0.001)
        assert refused == ["slow"]

    in_world(test, body_timeout_s=0.3, http=http)


def test_answers_that_are_not_read_have_one_bound_and_the_oldest_goes_first(refused: list[str]) -> None:
    async def test(world: World) -> None:
        deaf, other = await world.caller(limit=1_024), await world.caller(limit=1_024)
        deaf.send("/recall", b"", "X-Answer-Bytes: 20000000")
        await world.app.until_begun(1)
        await asyncio.sleep(0.05)
        assert refused == []
        other.send("/recall", b"", "X-Answer-Bytes: 20000000")
        assert len((await other.answer())[2]) == 20_000_000
        assert refused == ["unread"]
        assert len(world.server.server_state.connections) == 1  # that of the one who reads

    in_world(test, max_waiting_bytes=30_000_000, request_timeout_s=100)


def test_a_large_answer_that_is_read_comes_whole_even_alone_beyond_the_bound(refused: list[str]) -> None:
    async def test(world: World) -> None:
        caller = await world.caller(2**16)
        for size in (65_536, 65_537, 1_000_000):
            caller.send("/recall", b"", f"X-Answer-Bytes: {size}")
            assert len((await caller.answer())[2]) == size
        assert refused == []

    in_world(test, max_waiting_bytes=1)


def test_late_work_gets_503_and_keeps_its_place_until_it_is_done(refused: list[str]) -> None:
    async def test(world: World) -> None:
        (late,) = await world.holding(1)
        assert await late.code() == (503, "timeout")
        assert await late.closed()
        other = await world.caller()
        other.send()
        assert await other.code() == (429, "too_many_requests")
        world.app.gate.set()
        while world.app.ended < 1:
            await asyncio.sleep(0.001)
        other.send()
        assert (await other.answer())[0] == 200
        assert refused == ["timeout", "concurrency"]

    in_world(test, max_concurrent=1, request_timeout_s=0.2)


App = Callable[[Any, Any, Any], Awaitable[None]]


def ask(app: App, path: str = "/recall", name: str = "") -> list[dict[str, Any]]:
    """What an app behind the limits has sent, with 0.05 s for a request."""
    sent: list[dict[str, Any]] = []

    async def main() -> None:
        await asked(Limits(app, Settings(bundle=Path("none"), request_timeout_s=0.05), WORK), path, sent)

    asyncio.run(main())
    return sent


async def asked(app: Any, path: str, sent: list[dict[str, Any]], name: str = "") -> None:
    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(dict(message))

    headers = [(b"x-request-id", name.encode())]
    await app({"type": "http", "method": "POST", "path": path, "headers": headers, "app": Starlette()}, receive, send)


@pytest.mark.parametrize(("path", "statuses"), [("/recall", [503]), ("/items", [503]), ("/admin/reload", [200])])
def test_an_answer_that_takes_too_long_is_503_and_comes_once(path: str, statuses: list[int]) -> None:
    ended = []

    async def slow(scope: Any, receive: Any, send: Any) -> None:
        await asyncio.sleep(0.2)
        ended.append(scope["path"])
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"late"})

    sent = ask(slow, path)
    assert [message["status"] for message in sent if "status" in message] == statuses
    if statuses == [503]:
        assert json.loads(sent[1]["body"])["error"]["code"] == "timeout"
        assert (b"connection", b"close") in sent[0]["headers"]
    assert len(sent) == 2 and ended == [path]  # the work itself goes on to its end


def test_a_request_ends_after_its_503_even_where_the_work_ends_in_the_same_turn() -> None:
    async def stands_still(scope: Any, receive: Any, send: Any) -> None:
        time.sleep(0.1)
        for _ in range(2):  # the look at what takes too long comes between these
            await asyncio.sleep(0)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"late"})

    assert [message.get("status") for message in ask(stands_still)] == [503, None]


def test_each_timeout_is_logged_under_its_own_id() -> None:
    """The look at what takes too long is begun by one request, and answers others."""
    told: list[tuple[str, int, str]] = []

    async def slow(scope: Any, receive: Any, send: Any) -> None:
        await asyncio.sleep(0.3)

    class Lines(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            line = json.loads(JsonFormatter().format(record))
            told.append((line["request_id"], line["status"], record.name))

    names = ("first", "second", "third")

    async def main() -> None:
        settings = Settings(bundle=Path("none"), request_timeout_s=0.05)
        inside = RequestLog(Limits(slow, settings, WORK), settings, Drain(0))
        await asyncio.gather(*(asked(inside, "/x", [], name) for name in names))

    lines = Lines()
    log = logging.getLogger("uvicorn.error.access")
    log.addHandler(lines)
    try:
        asyncio.run(main())
    finally:
        log.removeHandler(lines)
    assert sorted(told) == [(name, 503, log.name) for name in names]
