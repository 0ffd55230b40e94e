"""The limits over real sockets, with both parsers: which requests are refused, how, and what follows."""

import asyncio
import gc

import numpy as np
import pytest

from serving.protocol.line import AFTER_S, BURST_S, GAP_S, OVERFLOW_S, RATE_S, TURN_S, Line
from serving.telemetry import metrics
from tests.support.exposition import Exposed
from tests.support.processes.limited_server import World, in_world

pytestmark = pytest.mark.usefixtures("frequent_looks")

HEAD = b"POST /recall HTTP/1.1\r\nHost: x\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
parsers = pytest.mark.parametrize("http", ["httptools", "h11"])


@parsers
def test_above_the_limit_429_comes_at_once_and_the_connection_stays(refused: list[str], http: str) -> None:
    async def test(world: World) -> None:
        held = await world.holding(2)
        other = await world.caller()
        for number in range(3):
            other.send("/recall", b"x" * 10, f"X-Request-Id: mine-{number}")
            status, headers, _ = await other.answer()
            assert (status, headers["retry-after"], headers["x-request-id"]) == (429, "1", f"mine-{number}")
            assert "connection" not in headers
        assert world.app.begun == 2  # no refused request reaches the app
        world.app.gate.set()
        for caller in held:
            assert (await caller.answer())[::2] == (200, b"hello")
        other.send("/recall", b"now")
        assert (await other.answer())[::2] == (200, b"now")
        assert refused == ["concurrency"] * 3

    in_world(test, max_concurrent=2, http=http)


@parsers
def test_requests_leave_nothing_for_the_garbage_collector(http: str) -> None:
    """A collection delays every answer, so few are made (`serving.recall.loading`)."""

    async def test(world: World) -> None:
        caller = await world.caller()
        for number in range(60):
            if number == 10:
                gc.collect()
            caller.send("/recall", b"x")
            assert (await caller.answer())[0] == 200
        assert gc.collect() < 50

    gc.disable()
    try:
        in_world(test, http=http)
    finally:
        gc.enable()


def test_a_refusal_has_the_one_shape_and_an_id_of_its_own() -> None:
    async def test(world: World) -> None:
        await world.holding(1)
        other = await world.caller()
        ids = set()
        for sent in ((), (), ("X-Request-Id: " + "a" * 200,)):
            other.send("/recall", b"", *sent)
            status, headers, body = await other.answer()
            ids.add(headers["x-request-id"])
            assert status == 429 and b'"code":"too_many_requests"' in body
        assert len(ids) == 3 and all(len(each) < 64 for each in ids)
        other.send()
        assert await other.code() == (429, "too_many_requests")

    in_world(test, max_concurrent=1)


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/metrics"])
def test_probes_and_metrics_are_never_refused(path: str) -> None:
    async def test(world: World) -> None:
        await world.holding(1)
        other = await world.caller()
        other.send(path, b"", method="GET")
        assert (await other.answer())[0] == 200

    in_world(test, max_concurrent=1)


@pytest.mark.parametrize("path", ["/recall/batch", "/similar", "/embed", "/items", "/events", "/admin/reload"])
def test_heavy_requests_leave_room_for_single_recalls(path: str, refused: list[str]) -> None:
    async def test(world: World) -> None:
        await world.holding(2, path)
        other, single = await world.caller(), await world.caller()
        other.send(path)
        assert await other.code() == (429, "too_many_requests")
        single.send("/recall")
        await world.app.until_begun(3)
        assert refused == ["heavy"]
        world.app.gate.set()
        assert (await single.answer())[0] == 200
        other.send(path)  # their places are free again
        assert (await other.answer())[0] == 200

    in_world(test, max_concurrent=10, max_heavy=2)


@parsers
def test_the_body_of_a_refused_request_is_dropped_in_whatever_pieces_it_comes(http: str) -> None:
    async def test(world: World) -> None:
        await world.holding(1)
        other = await world.caller()
        other.writer.write(CHUNKED)
        assert (await other.answer())[0] == 429
        for piece in (b"5\r\nGET /", b"\r\n", b"300000\r\n", b"y" * 0x300000, b"\r\n0\r\n\r\n"):
            other.writer.write(piece)
            await other.writer.drain()
        world.app.gate.set()
        other.send("/recall", b"after")
        assert (await other.answer())[::2] == (200, b"after")
        assert world.app.begun == 2

    in_world(test, max_concurrent=1, http=http)


@parsers
def test_the_gauge_counts_what_is_processed_and_no_caller_who_sends(http: str) -> None:
    """An autoscaler goes by it."""

    def in_flight() -> float:
        return Exposed(metrics.exposition()[0].decode()).sum("towers_requests_in_flight")

    async def test(world: World) -> None:
        assert in_flight() == before
        slow = await world.caller()
        slow.writer.write(b"POST /similar HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nx")
        held = await world.holding(3)
        assert in_flight() == before + 3
        world.app.gate.set()
        for caller in held:
            assert (await caller.answer())[0] == 200
        assert in_flight() == before
        slow.writer.close()

    before = in_flight()
    in_world(test, http=http)
    assert in_flight() == before


@parsers
def test_bodies_that_come_slowly_take_no_place(http: str) -> None:
    """More of them than places, each larger than what the server reads without being asked."""

    async def test(world: World) -> None:
        slow = [await world.caller(2**18) for _ in range(8)]
        for each in slow:
            each.writer.write(b"POST /similar HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n" + b"x" * 70_000)
        await asyncio.sleep(0.05)
        assert world.app.begun == 0
        other = await world.caller()
        for path in ("/recall", "/recall/batch"):
            other.send(path, b"whole")
            assert (await other.answer())[::2] == (200, b"whole")
        for each in slow:
            each.writer.write(b"x" * 30_000)
            assert (await each.answer())[::2] == (200, b"x" * 100_000)

    in_world(test, max_concurrent=1, max_heavy=1, http=http)


def test_a_slow_body_behind_another_request_is_waited_for(refused: list[str]) -> None:
    async def test(world: World) -> None:
        (held,) = await world.holding(1)
        held.writer.write(HEAD + b"Content-Length: 5\r\n\r\nhe")
        await asyncio.sleep(0.02)
        world.app.gate.set()
        assert (await held.answer())[::2] == (200, b"hello")
        await asyncio.sleep(0.02)
        held.writer.write(b"llo")
        assert (await held.answer())[::2] == (200, b"hello")
        assert not refused

    in_world(test, max_concurrent=1)


def test_where_all_is_full_when_a_body_has_come_it_is_refused_then(refused: list[str]) -> None:
    async def test(world: World) -> None:
        slow = await world.caller()
        slow.writer.write(HEAD + b"Content-Length: 5\r\n\r\nhe")
        await asyncio.sleep(0.05)
        await world.holding(1)
        slow.writer.write(b"llo")
        assert await slow.code() == (429, "too_many_requests")
        assert refused == ["concurrency"] and world.app.begun == 1

    in_world(test, max_concurrent=1)


def test_bodies_of_every_kind_in_a_row_are_each_answered_once_in_their_order() -> None:
    async def test(world: World) -> None:
        row = await world.caller(2**20)
        row.send("/recall", b"one")
        row.send("/recall", b"2" * 300_000)
        row.writer.write(CHUNKED + b"5\r\nthree\r\n0\r\n\r\n")
        assert [(await row.answer())[2] for _ in range(3)] == [b"one", b"2" * 300_000, b"three"]
        row.writer.write(HEAD + b"Content-Length: 4\r\nExpect: 100-continue\r\n\r\n")
        assert await row.reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        row.writer.write(b"four")
        assert (await row.answer())[2] == b"four"
        assert world.app.begun == 4

    in_world(test)


def test_requests_sent_in_a_row_are_answered_in_their_order_refused_or_not() -> None:
    async def test(world: World) -> None:
        (held,) = await world.holding(1)
        row = await world.caller()
        for number in range(5):
            row.send("/healthz" if number in (1, 3) else "/recall", b"%d" % number)
        assert [(await row.answer())[0] for _ in range(5)] == [429, 200, 429, 200, 429]
        for number in range(3):  # behind an accepted one
            held.send("/recall", b"%d" % number)
        await asyncio.sleep(0.02)
        world.app.gate.set()
        answers = [(await held.answer())[::2] for _ in range(4)]
        assert answers == [(200, b"hello"), (200, b"0"), (200, b"1"), (200, b"2")]

    in_world(test, max_concurrent=1)


@pytest.mark.parametrize("wants", ["Connection: close", "Expect: 100-continue"])
def test_a_refusal_closes_where_nothing_more_can_come(wants: str) -> None:
    async def test(world: World) -> None:
        await world.holding(1)
        other = await world.caller()
        other.send("/recall", b"", wants)
        status, headers, _ = await other.answer()
        assert (status, headers["connection"]) == (429, "close")
        assert await other.closed()

    in_world(test, max_concurrent=1)


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


def test_a_caller_who_goes_away_gives_its_place_back() -> None:
    async def test(world: World) -> None:
        held = await world.holding(2)
        half = await world.caller()
        half.writer.write(HEAD + b"Content-Length: 5\r\n\r\nhe")
        for caller in (*held, half):
            caller.writer.close()
        world.app.gate.set()
        other = await world.caller()
        for _ in range(3):
            other.send("/recall", b"1")
            assert (await other.answer())[0] == 200
        assert world.app.begun == 5

    in_world(test, max_concurrent=2)


@parsers
@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_that_is_too_large_gets_413_and_the_next_request_its_answer(http: str, chunked: bool) -> None:
    async def test(world: World) -> None:
        caller = await world.caller()
        whole = b"x" * 1_000
        if chunked:
            caller.writer.write(CHUNKED + b"3e8\r\n%b\r\n3e8\r\n%b\r\n" % (whole, whole))
        else:
            caller.writer.write(HEAD + b"Content-Length: 2000\r\n\r\n" + whole)  # the rest comes after the answer
        assert await caller.code() == (413, "too_large")
        caller.writer.write(b"0\r\n\r\n" if chunked else whole)
        caller.send("/recall", whole)
        assert (await caller.answer())[::2] == (200, whole)
        assert world.app.begun == 1

    in_world(test, max_body_bytes=1_000, http=http)


UPGRADES = ("h2c", "websocket", "TLS/1.0")


@parsers
@pytest.mark.parametrize("protocol", UPGRADES)
@pytest.mark.parametrize("in_pieces", [False, True])
def test_a_request_with_an_upgrade_gets_one_answer_and_its_body_is_never_a_request(
    http: str, protocol: str, in_pieces: bool, refused: list[str]
) -> None:
    async def test(world: World) -> None:
        caller = await world.caller()
        body = b"POST /recall HTTP/1.1\r\nHost: x\r\nContent-Length: 6\r\n\r\nhidden"
        head = f"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: {protocol}\r\nContent-Length: {len(body)}\r\n\r\n"
        caller.writer.write(HEAD + head.encode())
        if in_pieces:
            await caller.writer.drain()
            await asyncio.sleep(0.01)
        caller.writer.write(body)
        status, headers, answer = await caller.answer()
        assert (status, headers["connection"]) == (400, "close")
        assert b'"invalid_http"' in answer and b"HTTP/1.1 without Upgrade" in answer
        assert await caller.closed()
        assert world.app.begun == 0 and refused == ["upgrade"]

    in_world(test, http=http)


@parsers
def test_an_upgrade_behind_another_request_ends_the_connection_after_both_answers(http: str) -> None:
    async def test(world: World) -> None:
        (held,) = await world.holding(1)
        held.send("/recall", HEAD + b"Content-Length: 6\r\n\r\nhidden", "Connection: upgrade", "Upgrade: h2c")
        world.app.gate.set()
        assert (await held.answer())[::2] == (200, b"hello")
        assert await held.code() == (400, "invalid_http")
        assert await held.closed()
        assert world.app.begun == 1

    in_world(test, http=http)


@parsers
def test_a_stop_answers_what_comes_and_says_goodbye(http: str) -> None:
    async def test(world: World) -> None:
        (held,) = await world.holding(1)
        idle = await world.caller()
        world.drain.begun = True
        world.app.gate.set()
        assert (await held.answer())[1]["connection"] == "close"
        assert await held.closed()
        for caller, path in ((idle, "/recall"), (await world.caller(), "/healthz")):
            caller.send(path)
            status, headers, body = await caller.answer()
            assert (status, headers["connection"], body) == (200, "close", b"hello")
            assert await caller.closed()

    in_world(test, http=http)


@parsers
def test_a_stop_that_cuts_a_request_off_tells_its_caller(http: str) -> None:
    async def test(world: World) -> None:
        (held,) = await world.holding(1)
        world.server.should_exit = True  # the world gives it a second
        status, headers, body = await held.answer()
        assert (status, headers["connection"]) == (503, "close") and b'"stopping"' in body
        assert await held.closed()

    in_world(test, http=http)


@parsers
def test_a_body_on_its_way_when_the_stop_begins_is_waited_for(http: str) -> None:
    async def test(world: World) -> None:
        caller = await world.caller()
        caller.writer.write(HEAD + b"Content-Length: 5\r\n\r\nhe")
        await asyncio.sleep(0.05)
        world.server.should_exit = True
        await asyncio.sleep(0.3)
        caller.writer.write(b"llo")
        assert (await caller.answer())[::2] == (200, b"hello")
        assert await caller.closed()

    in_world(test, http=http)


def asked(line: Line, count: int, seconds: float, every: float, at: float) -> tuple[list[bool], float]:
    """Whether the line has room for `count` more, asked every `every` seconds; and the time at the end."""
    said = []
    for _ in range(round(seconds / every)):
        at += every
        said.append(line.has_room(count, at))
    return said, at


def test_a_burst_fills_all_places_and_a_line_that_stands_an_eighth() -> None:
    assert not Line(128).has_room(128, 1.0)
    line = Line(128)
    assert all(line.has_room(count, 1.0) for count in (0, 15, 16, 127))
    said, at = asked(line, 16, 1.5, 0.01, 1.0)
    # All come through for as long as a burst may last, and none afterwards.
    first = round(BURST_S / 0.01)
    assert said[: first - 1] == [True] * (first - 1) and not any(said[first + 1 :])
    said, at = asked(line, 3, 2 * RATE_S, 0.01, at)
    assert all(said) and line.has_room(15, at)  # the flood is over, the line is not
    said, at = asked(line, 40, 1.0, 2 * GAP_S, at)
    assert not any(said)  # gaps do not end it
    said, at = asked(line, 3, 2 * AFTER_S, 0.01, at)
    assert all(said)
    assert line.has_room(100, at)  # now it is a burst again


@pytest.mark.parametrize(("rate", "short"), [(100, 16), (2_000, 30), (5_000, 75)])
def test_a_line_that_stands_holds_what_is_answered_in_15_ms(rate: int, short: int) -> None:
    """By Little's law, count = rate x time: that many callers wait for 15 ms each; never fewer than an eighth."""
    line, step = Line(128), 0.01
    for turn in range(200):
        for _ in range(round(rate * step)):
            line.leave()
        standing = [line.has_room(count, turn * step) for count in (0, short - 1, short)]
    assert standing == [True, True, False]


def flood(line: Line, seconds: float, at: float) -> float:
    """60 are answered and 61 refused in each of the centiseconds: 6,000 answers a second, 30 in 5 ms."""
    for _ in range(round(seconds / 0.01)):
        at += 0.01
        for _ in range(60):
            line.leave()
        said = [line.has_room(count, at) for count in (29, 30, *[127] * 61)]
    assert said == [True, False] + [False] * 61
    return at


def test_where_more_are_refused_than_answered_a_line_holds_what_is_answered_in_5_ms() -> None:
    line = Line(128)
    at = flood(line, 2.0, 0.0)
    assert line.flooded
    for _ in range(round(2 * AFTER_S / 0.01)):
        at += 0.01
        for _ in range(60):
            line.leave()
        assert line.has_room(29, at)
    assert not line.flooded
    said, _ = asked(line, 89, 2 * BURST_S, 0.3, at)
    assert all(said)  # nobody is refused any more


def turns_of(monkeypatch: pytest.MonkeyPatch, *seconds: float) -> None:
    """How long each measured turn of the event loop lasts, whatever else the machine does."""
    clock = iter(np.repeat(np.cumsum([0.0, *seconds]), 2)[1:-1])
    monkeypatch.setattr("serving.protocol.line.perf_counter", lambda: float(next(clock)))


def test_after_a_long_turn_of_a_flood_few_are_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    turns_of(monkeypatch, 2 * TURN_S, 0.0, 2 * TURN_S)

    async def test() -> None:
        line, loop = Line(128), asyncio.get_running_loop()
        at = flood(line, 2.0, 0.0)
        for most in (4, 30, 4):
            line.time_turn(loop)
            line.time_turn(loop)  # of the same turn: measures nothing anew
            await asyncio.sleep(0)
            assert [line.has_room(count, at) for count in (most - 1, most)] == [True, False]

    asyncio.run(test())


def test_a_full_queue_is_a_line_at_once_where_it_stays_so() -> None:
    line = Line(128)
    said, at = asked(line, 128, OVERFLOW_S, 0.01, 0.0)
    assert not any(said) and line.has_room(127, at)  # a free place is taken
    _, at = asked(line, 128, 0.02, 0.01, at)
    assert not line.has_room(127, at) and line.has_room(15, at)
    line = Line(128)
    for turn in range(10):
        assert not line.has_room(128, float(turn)) and line.has_room(127, turn + 0.04)


def test_bursts_with_gaps_between_them_are_no_line() -> None:
    said, _ = asked(Line(128), 127, 10.0, 1.5 * GAP_S, 0.0)
    assert all(said)


def test_few_places_know_no_line() -> None:
    said, _ = asked(Line(8), 7, 3.0, 0.01, 0.0)
    assert all(said)


def test_a_standing_line_is_reported_and_delays_no_heavy_request(
    refused: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("serving.protocol.line.BURST_S", -1)  # any queue is a standing one

    async def test(world: World) -> None:
        await world.holding(8)
        other = await world.caller()
        other.send("/recall", b"")
        assert await other.code() == (429, "too_many_requests")
        other.send("/similar", b"")
        await world.app.until_begun(9)
        world.app.gate.set()
        assert (await other.answer())[0] == 200
        assert refused == ["wait"]

    in_world(test, max_concurrent=32)
