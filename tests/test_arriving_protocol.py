"""How requests come in, over real sockets: trailers, late bodies, what is malformed, HEAD, a stop."""

import asyncio

import pytest
from limited_server import World, in_world

CHUNKED = b"POST /recall HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n"


pytestmark = pytest.mark.usefixtures("frequent_looks")


def test_what_follows_a_body_is_limited(refused: list[str]) -> None:
    async def test(world: World) -> None:
        caller = await world.caller()
        caller.writer.write(CHUNKED + b"x: ")
        for _ in range(8):
            caller.writer.write(b"a" * 10_000)
            await asyncio.sleep(0.001)
        assert await caller.code() == (431, "too_large")
        assert await caller.closed()
        assert refused == ["malformed"]

    in_world(test)


def test_what_follows_a_body_is_no_header() -> None:
    async def test(world: World) -> None:
        caller = await world.caller()
        caller.writer.write(CHUNKED + b"x-answer-bytes: 3\r\nX-Request-Id: forged\r\n\r\n")
        status, _, body = await caller.answer()
        assert (status, body) == (200, b"hello")
        empty = CHUNKED.replace(b"5\r\nhello\r\n", b"")
        caller.writer.write(empty + b"x-answer-bytes: 3\r\n\r\n")
        assert (await caller.answer())[2] == b""  # of a real header: three bytes

    in_world(test)


def test_a_large_body_has_as_long_to_arrive_as_a_small_one(refused: list[str]) -> None:
    async def test(world: World) -> None:
        caller = await world.caller()
        caller.writer.write(b"POST /recall HTTP/1.1\r\nHost: x\r\nContent-Length: 300000\r\n\r\n")
        await asyncio.sleep(0.02)
        caller.writer.write(b"x" * 200_000)
        await world.app.until_begun(1)
        assert await caller.code() == (408, "too_slow")
        assert await caller.closed()
        assert refused == ["slow"]

    in_world(test, header_timeout_s=0.3, request_timeout_s=100)


def test_a_refusal_of_head_has_no_body() -> None:
    async def test(world: World) -> None:
        await world.holding(1)
        caller = await world.caller()
        caller.send("/docs", b"", method="HEAD")
        assert (await caller.reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 429 ")
        caller.send("/healthz", b"", method="GET")
        # The next answer begins where the head ended.
        assert (await caller.reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 ")

    in_world(test, max_concurrent=1)


def test_what_came_whole_before_a_malformed_request_is_answered(refused: list[str]) -> None:
    async def test(world: World) -> None:
        (held,) = await world.holding(1)
        held.send("/recall", b"second")
        held.writer.write(b"nonsense\r\n\r\n")
        await asyncio.sleep(0.05)
        world.app.gate.set()
        assert [(await held.answer())[::2] for _ in range(2)] == [(200, b"hello"), (200, b"second")]
        assert await held.code() == (400, "invalid_http")
        assert await held.closed()
        assert refused == ["malformed"]

    in_world(test)


def test_a_caller_refused_before_the_body_gets_no_second_answer(refused: list[str]) -> None:
    async def test(world: World) -> None:
        await world.holding(1)
        caller = await world.caller()
        caller.writer.write(b"POST /recall HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n12345")
        assert await caller.code() == (429, "too_many_requests")
        assert await caller.closed()
        assert refused == ["concurrency"]

    in_world(test, max_concurrent=1, header_timeout_s=0.2, keep_alive_s=0.2)


def test_a_broken_body_behind_a_refusal_gets_no_second_answer(refused: list[str]) -> None:
    async def test(world: World) -> None:
        await world.holding(1)
        caller = await world.caller()
        caller.writer.write(b"POST /recall HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n")
        assert await caller.code() == (429, "too_many_requests")
        caller.writer.write(b"no chunk\r\n")
        assert await caller.closed()
        assert "concurrency" in refused

    in_world(test, max_concurrent=1, header_timeout_s=100, keep_alive_s=100)


def test_a_later_request_has_no_more_time_to_arrive_than_the_first(refused: list[str]) -> None:
    async def test(world: World) -> None:
        caller = await world.caller()
        caller.send()
        assert (await caller.answer())[0] == 200
        caller.writer.write(b"POST /rec")
        async with asyncio.timeout(50):
            assert await caller.code() == (408, "too_slow")
        assert await caller.closed()
        assert refused == ["slow"]

    in_world(test, header_timeout_s=0.3, keep_alive_s=100)


def test_an_idle_connection_makes_room_before_one_that_sends() -> None:
    async def test(world: World) -> None:
        sending = await world.caller()
        sending.writer.write(b"POST /recall HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhe")
        idle = await world.caller()
        idle.send()
        assert (await idle.answer())[0] == 200
        await asyncio.sleep(0.02)
        new = await world.caller()
        new.send()
        assert (await new.answer())[0] == 200
        assert await idle.closed()
        sending.writer.write(b"llo")
        assert (await sending.answer())[::2] == (200, b"hello")

    # The one that sends is due first, and began to wait first.
    in_world(test, max_connections=2, header_timeout_s=50, keep_alive_s=100)


def test_a_body_on_its_way_when_the_stop_begins_is_waited_for() -> None:
    async def test(world: World) -> None:
        caller = await world.caller()
        caller.writer.write(b"POST /recall HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhe")
        await asyncio.sleep(0.05)
        for each in list(world.server.server_state.connections):
            each.shutdown()  # type: ignore[union-attr]
        await asyncio.sleep(0.5)  # far more than what is only on its way gets
        caller.writer.write(b"llo")
        assert (await caller.answer())[::2] == (200, b"hello")
        assert await caller.closed()

    in_world(test, header_timeout_s=50)
