"""The limits below the app, over real sockets: who is refused and how, what comes after, and that it harms no other."""

import asyncio

import pytest
from limited_server import World, in_world

from serving import connections
from serving.admission import Admission
from serving.refusals import MOST_HEADERS, MOST_PIPELINED

pytestmark = pytest.mark.usefixtures("frequent_looks")


def test_above_the_limit_429_comes_at_once_and_the_connection_stays(refused: list[str]) -> None:
    async def test(world: World) -> None:
        held = await world.holding(2)
        other = await world.caller()
        for number in range(3):
            other.send("/recall", b"x" * 10, f"X-Request-Id: mine-{number}")
            status, headers, _ = await other.answer()
            assert (status, headers["retry-after"], headers["x-request-id"]) == (429, "1", f"mine-{number}")
            assert "connection" not in headers and "date" in headers
        assert world.app.begun == 2  # no refused request reaches the app
        world.app.gate.set()
        for caller in held:
            assert (await caller.answer())[::2] == (200, b"hello")
        other.send("/recall", b"now")
        assert (await other.answer())[::2] == (200, b"now")
        assert refused == ["concurrency"] * 3

    in_world(test, max_concurrent=2)


def test_a_refusal_has_the_one_shape_and_an_id_of_its_own() -> None:
    async def test(world: World) -> None:
        await world.holding(1)
        other = await world.caller()
        ids = set()
        for sent in ((), ("X-Request-Id: no good\x01",)[:0], ("X-Request-Id: " + "a" * 200,)):
            other.send("/recall", b"", *sent)
            status, headers, body = await other.answer()
            ids.add(headers["x-request-id"])
            assert status == 429 and b'"code":"too_many_requests"' in body
        assert len(ids) == 3 and all(len(each) < 64 for each in ids)

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

    in_world(test, max_concurrent=10, max_heavy=2)


def test_the_body_of_a_refused_request_is_dropped_in_whatever_pieces_it_comes() -> None:
    async def test(world: World) -> None:
        await world.holding(1)
        other = await world.caller()
        lines = b"POST /recall HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
        other.writer.write(lines)
        assert (await other.answer())[0] == 429
        for piece in (b"5\r\nGET /", b"\r\n", b"300000\r\n", b"y" * 0x300000, b"\r\n0\r\n\r\n"):
            other.writer.write(piece)
            await other.writer.drain()
        world.app.gate.set()
        await asyncio.sleep(0.05)
        other.send("/recall", b"after")
        assert (await other.answer())[::2] == (200, b"after")
        assert world.app.begun == 2

    in_world(test, max_concurrent=1)


def test_a_body_that_comes_slowly_takes_no_place() -> None:
    async def test(world: World) -> None:
        slow = await world.caller()
        slow.writer.write(b"POST /recall HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhe")
        await asyncio.sleep(0.05)
        assert world.app.begun == 0
        other = await world.caller()
        other.send("/recall", b"whole")
        assert (await other.answer())[::2] == (200, b"whole")
        for piece in (b"l", b"lo"):
            slow.writer.write(piece)
            await asyncio.sleep(0.02)
        assert (await slow.answer())[::2] == (200, b"hello")

    in_world(test, max_concurrent=1)


def test_a_slow_body_behind_another_request_is_waited_for(refused: list[str]) -> None:
    async def test(world: World) -> None:
        (held,) = await world.holding(1)
        held.writer.write(b"POST /recall HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhe")
        await asyncio.sleep(0.02)
        world.app.gate.set()
        assert (await held.answer())[::2] == (200, b"hello")
        await asyncio.sleep(0.02)
        held.writer.write(b"llo")
        assert (await held.answer())[::2] == (200, b"hello")
        assert not refused

    in_world(test, max_concurrent=1)


def test_a_large_body_counts_as_heavy_until_it_is_here_and_one_that_is_asked_for_takes_no_place(
    refused: list[str],
) -> None:
    async def test(world: World) -> None:
        large, other, patient, single = [await world.caller() for _ in range(4)]
        lines = b"POST /recall HTTP/1.1\r\nHost: x\r\nContent-Length: 300000\r\n\r\n"
        large.writer.write(lines + b"x" * 200_000)
        await world.app.until_begun(1)
        other.writer.write(lines + b"x" * 200_000)
        assert await other.code() == (429, "too_many_requests")
        patient.writer.write(b"POST /recall HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n")
        assert await patient.reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        single.send("/recall")
        assert (await single.answer())[::2] == (200, b"hello")
        assert world.app.begun == 2
        patient.writer.write(b"hello")
        assert (await patient.answer())[::2] == (200, b"hello")
        large.writer.write(b"x" * 100_000)
        assert len((await large.answer())[2]) == 300_000
        assert refused == ["heavy"]

    in_world(test, max_concurrent=10, max_heavy=1)


def test_bodies_of_every_kind_in_a_row_are_each_answered_once_in_their_order() -> None:
    async def test(world: World) -> None:
        row = await world.caller(2**20)
        row.send("/recall", b"one")
        row.send("/recall", b"2" * 300_000)
        row.writer.write(
            b"POST /recall HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nthree\r\n0\r\n\r\n"
        )
        row.writer.write(b"POST /recall HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\nExpect: 100-continue\r\n\r\nfour")
        row.send("/recall", b"five")
        bodies = [(await row.answer())[2] for _ in range(3)]
        assert bodies == [b"one", b"2" * 300_000, b"three"]
        assert [(await row.answer())[2] for _ in range(2)] == [b"four", b"five"]
        row.send("/recall", b"six")
        assert (await row.answer())[2] == b"six"
        assert world.app.begun == 6

    in_world(test)


def test_requests_sent_in_a_row_are_answered_in_their_order_refused_or_not() -> None:
    async def test(world: World) -> None:
        (held,) = await world.holding(1)
        row = await world.caller()
        for number in range(5):
            row.send("/healthz" if number in (1, 3) else "/recall", b"%d" % number)
        statuses = [(await row.answer())[0] for _ in range(5)]
        assert statuses == [429, 200, 429, 200, 429]
        for number in range(3):  # behind one that is let in
            held.send("/recall", b"%d" % number)
        await asyncio.sleep(0.02)
        world.app.gate.set()
        assert [(await held.answer())[::2] for _ in range(4)] == [(200, b"hello")] + [
            (200, b"%d" % n) for n in range(3)
        ]

    in_world(test, max_concurrent=1)


def test_too_many_requests_in_a_row_end_the_connection() -> None:
    async def test(world: World) -> None:
        (held,) = await world.holding(1)
        held.writer.write(b"POST /recall HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n" * (MOST_PIPELINED + 1))
        await asyncio.sleep(0.05)
        world.app.gate.set()
        # What came before is answered: it may have changed something.
        assert [(await held.answer())[0] for _ in range(1 + MOST_PIPELINED)] == [200] * (1 + MOST_PIPELINED)
        assert await held.code() == (400, "invalid_http")
        assert await held.closed()

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


def test_a_caller_who_goes_away_gives_its_place_back() -> None:
    async def test(world: World) -> None:
        held = await world.holding(2)
        for caller in held:
            caller.writer.close()
        world.app.gate.set()
        other = await world.caller()
        for _ in range(3):
            other.send("/recall", b"1")
            while (await other.answer())[0] != 200:
                other.send("/recall", b"1")

    in_world(test, max_concurrent=2)


SLOW = {
    "nothing": b"",
    "half a line": b"POST /rec",
    "half a head": b"POST /recall HTTP/1.1\r\nHost: x\r\nContent-",
    "half a body": b"POST /recall HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n12345",
}


@pytest.mark.parametrize("name", SLOW)
def test_a_request_that_does_not_arrive_in_time_is_given_up_however_it_trickles(name: str) -> None:
    async def test(world: World) -> None:
        slow = await world.caller()
        slow.writer.write(SLOW[name])

        async def trickle() -> None:
            while name != "nothing":
                await asyncio.sleep(0.02)
                slow.writer.write(b"a")

        trickling = asyncio.create_task(trickle())
        if name == "half a body":  # it would be whole after five more
            trickling.cancel()
        if name == "nothing":
            assert await slow.closed()
        else:
            assert await slow.code() == (408, "too_slow")
        trickling.cancel()
        other = await world.caller()
        other.send()
        assert (await other.answer())[0] == 200
        assert not world.server.server_state.tasks

    in_world(test, header_timeout_s=0.3, max_concurrent=1)


def test_a_request_that_is_worked_on_for_long_is_not_taken_for_a_slow_one() -> None:
    async def test(world: World) -> None:
        (held,) = await world.holding(1)
        await asyncio.sleep(0.3)
        held.writer.write(b"POST /recall HTTP/1.1\r\nContent-Le")  # the next one, begun and not whole
        await asyncio.sleep(0.3)
        world.app.gate.set()
        assert (await held.answer())[0] == 200
        assert await held.code() == (408, "too_slow")

    in_world(test, header_timeout_s=0.1, keep_alive_s=0.1)


def test_an_idle_connection_is_closed() -> None:
    async def test(world: World) -> None:
        caller = await world.caller()
        caller.send()
        assert (await caller.answer())[0] == 200
        assert await caller.closed()

    in_world(test, keep_alive_s=0.1)


@pytest.mark.parametrize("in_pieces", [False, True])
def test_a_head_has_limits(in_pieces: bool) -> None:
    async def test(world: World) -> None:
        many, long = await world.caller(), await world.caller()
        many.send("/recall", b"", *(f"x-{n}: 1" for n in range(MOST_HEADERS)))
        assert await many.code() == (431, "too_large")
        long.writer.write(b"POST /recall HTTP/1.1\r\nX-Long: ")
        pieces = [b"a" * 10_000] * 7 if in_pieces else [b"a" * 70_000]
        for piece in pieces:
            long.writer.write(piece)
            await asyncio.sleep(0.001)
        assert (await long.code())[0] == 431
        assert await long.closed()
        assert world.app.begun == 0

    in_world(test)


def test_a_new_connection_takes_the_place_of_an_idle_one_else_of_the_slowest() -> None:
    async def test(world: World) -> None:
        slow = await world.caller()
        slow.writer.write(b"POST /rec")
        await asyncio.sleep(0.05)
        idle = await world.caller()
        idle.send()
        assert (await idle.answer())[0] == 200
        for given_up, told in ((idle, b""), (slow, b" 408 ")):
            new = await world.caller()
            new.send()
            assert (await new.answer())[0] == 200
            assert (await given_up.reader.read())[8:13] == told
            new.writer.write(b"POST /recall HTTP/1.1\r\n")  # now it is half-way, too, for less long
            await asyncio.sleep(0.05)

    in_world(test, max_connections=2, header_timeout_s=100, keep_alive_s=100)


def test_where_all_connections_are_in_use_a_new_one_is_told_so_and_closed(refused: list[str]) -> None:
    async def test(world: World) -> None:
        held = await world.holding(2)
        new = await world.caller()
        new.send()
        status, headers, _ = await new.answer()
        assert (status, headers["retry-after"], headers["connection"]) == (429, "1", "close")
        assert await new.closed()
        crowd = [await world.caller() for _ in range(4)]
        closed = await asyncio.gather(*(caller.closed() for caller in crowd[2:]))
        assert closed == [True, True]
        assert set(refused) == {"connections"}
        world.app.gate.set()
        for caller in held:
            assert (await caller.answer())[0] == 200

    in_world(test, max_connections=2, header_timeout_s=0.5)


@pytest.mark.parametrize("pause_s", [0.0, 0.02])
def test_a_caller_who_reads_no_answers_is_not_worked_for_and_then_closed(pause_s: float) -> None:
    async def test(world: World) -> None:
        deaf = await world.caller(limit=1)
        for _ in range(20):
            deaf.send("/recall", b"", "X-Answer-Bytes: 2000000")
            await asyncio.sleep(pause_s)
        await world.app.until_begun(1)
        await asyncio.sleep(0.3)
        assert world.app.begun < 10  # what the sockets take, and no more
        other = await world.caller()
        other.send()  # the one place is free
        assert (await other.answer())[0] == 200
        while len(world.server.server_state.connections) > 1:
            await asyncio.sleep(0.01)

    in_world(test, max_concurrent=1, keep_alive_s=0.5, request_timeout_s=0.5)


def test_a_stop_answers_what_comes_and_says_goodbye() -> None:
    async def test(world: World) -> None:
        (held,) = await world.holding(1)
        idle = await world.caller()
        world.drain.begun = True
        world.app.gate.set()
        assert "connection" not in (await held.answer())[1]  # let in before the stop
        for caller in (held, idle, await world.caller()):
            caller.send()
            status, headers, body = await caller.answer()
            assert (status, headers["connection"], body) == (200, "close", b"hello")
            assert await caller.closed()

    in_world(test)


def test_a_stop_answers_all_that_one_connection_has_sent() -> None:
    async def test(world: World) -> None:
        (held,) = await world.holding(1)
        for number in range(3):
            held.send("/recall", b"%d" % number)
        await asyncio.sleep(0.05)
        world.drain.begun = True
        world.app.gate.set()
        answers = [await held.answer() for _ in range(4)]
        assert [body for _, _, body in answers] == [b"hello", b"0", b"1", b"2"]
        assert ["connection" in headers for _, headers, _ in answers] == [False, False, False, True]
        assert await held.closed()

    in_world(test)


def test_a_request_on_its_way_when_the_server_stops_is_answered() -> None:
    async def test(world: World) -> None:
        fresh, idle, silent = [await world.caller() for _ in range(3)]
        idle.send()
        assert (await idle.answer())[0] == 200
        while len(world.server.server_state.connections) < 3:
            await asyncio.sleep(0.001)
        for connection in list(world.server.server_state.connections):
            connection.shutdown()
        for caller in (fresh, idle):
            caller.send()
            status, headers, _ = await caller.answer()
            assert (status, headers["connection"]) == (200, "close")
        assert await silent.closed()

    in_world(test)


def test_who_sends_again_at_once_is_read_later_and_still_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    late: list[bool] = []
    enter = Admission.enter
    monkeypatch.setattr(Admission, "enter", lambda self, *of: (late.append(of[1]), enter(self, *of))[1])
    monkeypatch.setattr(Admission, "may_refuse_at_once", lambda self: False)
    monkeypatch.setattr(connections, "RESUME_S", 0.2)

    async def test(world: World) -> None:
        await world.holding(1)
        hammer = await world.caller()
        hammer.send()
        assert (await hammer.answer())[0] == 429
        hammer.send("/recall", b"again")
        await asyncio.sleep(0.05)
        assert late == [False, False]  # the one in flight, and the first of these: the second is not read yet
        assert (await hammer.answer())[0] == 429
        world.app.gate.set()
        await asyncio.sleep(0.6)  # held once more, then read, then no longer late
        hammer.send("/recall", b"later")
        assert (await hammer.answer())[::2] == (200, b"later")
        assert late == [False, False, True, False]

    in_world(test, max_concurrent=1)
