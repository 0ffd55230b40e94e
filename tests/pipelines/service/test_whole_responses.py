"""What uvicorn's protocols write to a connection, by both parsers: the head of a response goes with its body."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import uvicorn
from uvicorn.server import ServerState

from pipelines.service import whole_responses
from pipelines.service.whole_responses import PROTOCOLS, WholeResponses

App = Callable[[Any, Any, Any], Awaitable[None]]
GET, HEAD = b"GET / HTTP/1.1\r\nhost: a\r\n\r\n", b"HEAD / HTTP/1.1\r\nhost: a\r\n\r\n"

pytestmark = pytest.mark.parametrize("http", PROTOCOLS)


class Recorder(asyncio.Transport):
    """A connection that records what it is told to do."""

    def __init__(self) -> None:
        super().__init__({"peername": ("127.0.0.1", 1), "sockname": ("127.0.0.1", 2)})
        self.calls: list[bytes | str] = []

    def write(self, data: Any) -> None:
        if data:  # h11 ends a response with nothing
            self.calls.append(bytes(data))

    def close(self) -> None:
        self.calls.append("close")

    def is_closing(self) -> bool:
        return "close" in self.calls

    def pause_reading(self) -> None:
        self.calls.append("pause")

    def resume_reading(self) -> None:
        self.calls.append("resume")


def written(http: str, app: App, *requests: bytes) -> list[bytes | str]:
    """What is done to the connection of a caller who sends these bytes, each when nothing more happens."""

    async def ask() -> list[bytes | str]:
        config = uvicorn.Config(app, http=PROTOCOLS[http], ws="none", lifespan="off", log_config=None)
        config.load()
        protocol, connection = PROTOCOLS[http](config, ServerState(), {}), Recorder()  # type: ignore[call-arg]
        protocol.connection_made(connection)
        for each in requests:
            protocol.data_received(each)
            for _ in range(20):
                await asyncio.sleep(0)
        calls = list(connection.calls)
        protocol.connection_lost(None)
        return calls

    return asyncio.run(ask())


def responding(*pieces: bytes, ready: bool = True, headers: tuple[tuple[bytes, bytes], ...] = ()) -> App:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        length = (b"content-length", b"%d" % sum(map(len, pieces)))
        await send({"type": "http.response.start", "status": 200, "headers": [length, *headers]})
        for number, piece in enumerate(pieces, 1):
            if not ready:
                await asyncio.Event().wait()
            await send({"type": "http.response.body", "body": piece, "more_body": number < len(pieces)})

    return app


def heads(calls: list[bytes | str]) -> list[bool]:
    return [isinstance(each, bytes) and each.startswith(b"HTTP/1.1 200 ") for each in calls]


def test_head_and_body_are_one_write_of_each_request(http: str) -> None:
    calls = written(http, responding(b"body"), GET, GET)
    assert heads(calls) == [True, True]
    assert all(isinstance(each, bytes) and each.endswith(b"\r\n\r\nbody") for each in calls)


def test_nothing_is_written_to_a_caller_who_has_gone(http: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Recorder, "is_closing", lambda _: True)
    assert not any(isinstance(each, bytes) for each in written(http, responding(b"one", b"two"), GET))


def test_the_pieces_after_the_first_are_writes_of_their_own(http: str) -> None:
    calls = written(http, responding(b"one", b"two", b"HTTP/1.1 "), GET)
    assert heads(calls) == [True, False, False]
    assert isinstance(calls[0], bytes) and calls[0].endswith(b"\r\n\r\none") and calls[1:] == [b"two", b"HTTP/1.1 "]


def test_a_head_without_a_body_goes_in_the_next_turn(http: str) -> None:
    (head,) = written(http, responding(b"body"), HEAD)
    assert isinstance(head, bytes) and head.endswith(b"\r\n\r\n") and b"content-length: 4" in head
    waiting = written(http, responding(b"body", ready=False), GET)
    assert heads(waiting) == [True] and isinstance(waiting[0], bytes) and waiting[0].endswith(b"\r\n\r\n")


def test_what_is_held_back_is_written_before_the_connection_closes(http: str) -> None:
    closing = ((b"connection", b"close"),)
    whole, close = written(http, responding(b"body", headers=closing), GET)
    assert isinstance(whole, bytes) and whole.endswith(b"\r\n\r\nbody") and close == "close"
    head, close = written(http, responding(b"", headers=closing), HEAD)
    assert isinstance(head, bytes) and head.startswith(b"HTTP/1.1 200 ") and close == "close"
    *answer, close = written(http, responding(b"body"), b"GET nonsense\r\n\r\n")
    assert b"".join(each for each in answer if isinstance(each, bytes)).startswith(b"HTTP/1.1 400 ")
    assert close == "close"


def test_a_connection_closes_also_after_the_rest_of_a_body_that_was_refused_unread(http: str) -> None:
    async def ask() -> list[bytes | str]:
        config = uvicorn.Config(responding(b"no"), http=PROTOCOLS[http], ws="none", lifespan="off", log_config=None)
        config.load()
        protocol, connection = PROTOCOLS[http](config, ServerState(), {}), Recorder()  # type: ignore[call-arg]
        protocol.connection_made(connection)
        protocol.data_received(b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 4\r\n\r\nbo")
        await asyncio.sleep(0.01)
        protocol.data_received(b"dy")
        protocol.data_received(GET)  # its answer begins the wait anew, and nothing ends that
        await asyncio.sleep(0.01)
        protocol.data_received(b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 4\r\n\r\nbo")
        await asyncio.sleep(0.01)
        protocol.timeout_keep_alive = 0.1  # type: ignore[attr-defined]
        protocol.data_received(b"dy")
        assert "close" not in connection.calls
        for _ in range(200):
            await asyncio.sleep(0.02)
            if "close" in connection.calls:
                break
        return connection.calls

    assert asyncio.run(ask()).count("close") == 1


@pytest.mark.parametrize("body", [b"", b"x" * 100_000])
def test_no_more_is_read_while_a_request_waits_for_its_turn(http: str, body: bytes) -> None:
    """Else a caller who reads no answer fills the memory with requests."""
    turns: list[asyncio.Event] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        turns.append(asyncio.Event())
        while (await receive()).get("more_body", False):
            pass
        await turns[-1].wait()
        await responding(b"body")(scope, receive, send)

    async def ask() -> list[bool]:
        config = uvicorn.Config(app, http=PROTOCOLS[http], ws="none", lifespan="off", log_config=None)
        config.load()
        protocol, connection = PROTOCOLS[http](config, ServerState(), {}), Recorder()  # type: ignore[call-arg]
        protocol.connection_made(connection)
        head = b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: %d\r\n\r\n" % len(body)
        protocol.data_received(3 * (head + body) + head[:20])  # the last is half a head
        paused = []
        for number in range(3):
            for _ in range(20):
                await asyncio.sleep(0)
            assert len(turns) == number + 1
            paused.append(protocol.flow.read_paused)  # type: ignore[attr-defined]
            turns[number].set()
        for _ in range(20):
            await asyncio.sleep(0)
        paused.append(protocol.flow.read_paused)  # type: ignore[attr-defined]
        protocol.data_received(head[20:] + body)
        for _ in range(20):
            await asyncio.sleep(0)
        assert len(turns) == 4
        protocol.connection_lost(None)
        return paused

    first, second, _, last = asyncio.run(ask())  # at the third h11 cannot tell half a head from a request
    assert first and second and not last


def test_one_read_of_many_requests_is_not_held_whole(http: str) -> None:
    """What comes at once is parsed at once, before any pause helps."""
    connections: list[str] = []

    async def ask(count: int) -> tuple[int, bool]:
        config = uvicorn.Config(
            responding(b"body", ready=False), http=PROTOCOLS[http], ws="none", lifespan="off", log_config=None
        )
        config.load()
        protocol, connection = PROTOCOLS[http](config, ServerState(), {}), Recorder()  # type: ignore[call-arg]
        connection.abort = lambda: connection.calls.append("close")  # type: ignore[method-assign]
        protocol.connection_made(connection)
        protocol.data_received(count * b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 4\r\n\r\nbody")
        held, closed = len(getattr(protocol, "pipeline", ())), connection.is_closing()
        protocol.connection_lost(None)
        return held, closed

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(whole_responses.metrics, "refused", connections.append)
        patch.setattr(WholeResponses, "abort", lambda whole: whole._transport.abort())
        few, many = (asyncio.run(ask(count)) for count in (33, 5_000))
    assert few == ((32, False) if http == "httptools" else (0, False))
    assert many == ((32, True) if http == "httptools" else (0, False))
    assert connections == (["connections"] if http == "httptools" else [])


def test_what_is_malformed_after_an_answer_gets_no_second_one(http: str) -> None:
    chunked = b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n"
    calls = written(http, responding(b"body"), chunked, b"zz\r\n")
    assert heads(calls)[0] and calls[-1] == "close"
    assert sum(isinstance(each, bytes) and each.startswith(b"HTTP/1.1 ") for each in calls) <= 2


def test_connections_beyond_the_file_handles_are_reset(http: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a handle for itself a library may end the process."""
    monkeypatch.setattr(whole_responses.resource, "getrlimit", lambda _: (2_564, 2_564))
    refused: list[str] = []
    monkeypatch.setattr(whole_responses.metrics, "refused", refused.append)
    monkeypatch.setattr(WholeResponses, "abort", lambda whole: whole._transport.calls.append("abort"))

    async def connect() -> list[bool]:
        config = uvicorn.Config(responding(b"body"), http=PROTOCOLS[http], ws="none", lifespan="off", log_config=None)
        config.load()
        state, found = ServerState(), []
        for _ in range(1_413):
            protocol, connection = PROTOCOLS[http](config, state, {}), Recorder()  # type: ignore[call-arg]
            protocol.connection_made(connection)
            found.append("abort" in connection.calls)
        return found

    found = asyncio.run(connect())
    # Of 2,564 a quarter is for those that wait to be accepted, and 512 for the service itself.
    assert found == [False] * 1_411 + [True] * 2 and refused == ["connections"] * 2


def test_continue_comes_before_the_response(http: str) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        message = await receive()
        await responding(message["body"])(scope, receive, send)

    post = b"POST / HTTP/1.1\r\nhost: a\r\nexpect: 100-continue\r\ncontent-length: 4\r\n\r\n"
    calls = [each for each in written(http, app, post, b"body") if isinstance(each, bytes)]
    assert calls[0].startswith(b"HTTP/1.1 100 ")
    assert heads(calls) == [False, True] and calls[1].endswith(b"\r\n\r\nbody")
