"""The client against a real HTTP server that fails as told; each rule holds for `Client` and `AsyncClient` alike."""

import asyncio
import copy
import gc
import json
import logging
import math
import pickle
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from typing import Any

import httpx
import numpy as np
import pytest

from serving.client import calls, retries
from serving.client.client import LIMITS, AsyncClient, Client, EmbedAnswer, RecallAnswer, ServiceError
from serving.client.retries import Answer, Service, Trial
from serving.settings import Settings
from tests.support.pages.programs import program
from tests.support.paths import ROOT

RECALLED = {"items": [{"id": "i7", "score": 0.5}, {"id": "i1", "score": -1}], "model_version": "v1", "source": "user"}
ANSWER = RecallAnswer([("i7", 0.5), ("i1", -1)], "v1", "user")
NOT_READY = {"error": {"code": "not_ready", "message": "no bundle is loaded yet", "field": None}}

Reply = tuple[int, dict[str, str], bytes]


def reply(status: int, content: Any, **headers: str) -> Reply:
    body = content if isinstance(content, bytes) else json.dumps(content).encode()
    return status, {"content-length": str(len(body)), **headers}, body


class Told:
    """A server, its replies in turn (the last one again and again), and what it was asked."""

    def __init__(self) -> None:
        self.replies: list[Any] = []
        self.asked: list[tuple[str, str, Any]] = []
        self.ports: list[int] = []  # of the callers: one for each connection
        told = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_one_request(self) -> None:
                self.raw_requestline = self.rfile.readline(65537)
                if not self.raw_requestline or not self.parse_request():
                    self.close_connection = True
                    return
                body = self.rfile.read(int(self.headers.get("content-length", 0)))
                if body:
                    assert self.headers["content-type"] == "application/json"
                told.ports.append(self.client_address[1])
                told.asked.append((self.command, self.path, json.loads(body) if body else None))
                now = told.replies.pop(0) if len(told.replies) > 1 else told.replies[0]
                if callable(now):
                    self.close_connection = True
                    now(self)
                    return
                status, headers, content = now
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name.replace("_", "-"), value)
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_: Any) -> None:
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, *_: Any) -> None:
                """A client that went away in the middle is what some tests are about."""

        self.server = Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()

    def stop(self) -> None:
        # In this order: a server whose socket is closed under it asks for the next caller without end.
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def told() -> Iterator[Told]:
    made = Told()
    yield made
    made.stop()


@pytest.fixture(params=["waiting", "asyncio"])
def ask(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """ask(url, call, **settings) makes a client of one kind, and gives what the call on it gives."""

    async def awaited(url: str, call: Any, settings: Any) -> Any:
        async with AsyncClient(url, **settings) as client:
            return await call(client)

    def ask(url: str, call: Any, **settings: Any) -> Any:
        if request.param == "asyncio":
            return asyncio.run(awaited(url, call, settings))
        with Client(url, **settings) as client:
            return call(client)

    return ask


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[tuple[float, float]]:
    """The ranges that pauses were drawn from; each is drawn as its least."""
    ranges: list[tuple[float, float]] = []

    def uniform(least: float, most: float) -> float:
        ranges.append((least, most))
        return least

    monkeypatch.setattr(retries.random, "uniform", uniform)
    return ranges


def test_pauses_stay_short_after_a_thousand_tries(pauses: list[tuple[float, float]]) -> None:
    trial = Trial(Service("http://service", 3_600, 2_000), calls.delete_item("i1"))
    for _ in range(1_500):
        trial.request()
        assert trial.pause_s(Answer(503, "", b"")) == 0
    assert pauses[-1] == (0, 2.0)


FILTER = {"and": [{"column": "year", "op": "gte", "value": 2000}]}
ITEM = {"id": "i1", "features": {"tags": ["a"]}, "attributes": {"year": 2001}}
EVENT = {"id": "e1", "user_id": "u1", "item_id": "i1", "time": 17}
SHOWN = {"id": "s1", "request_id": "r1", "user_id": "u1", "item_ids": ["i1", "i7"], "time": 17}
# What is called, what must be on the wire (method, path, body), what comes back over it, and what the caller gets.
CALLS: dict[str, tuple[Any, tuple[str, str, Any], Any, Any]] = {
    "nothing known": (lambda c: c.recall(), ("POST", "/recall", {}), RECALLED, ANSWER),
    "everything": (
        lambda c: c.recall(
            "u1", features={"country": "FR"}, history=("i1", "i2"), vector=np.float32([0.5, -1]), k=3, exclude={"i9"},
            exclude_seen=False, allow=["i7"], filter=FILTER, diversity={"column": "genre", "most": 2},
        ),
        ("POST", "/recall", {
            "user_id": "u1", "features": {"country": "FR"}, "history": ["i1", "i2"], "vector": [0.5, -1.0], "k": 3,
            "exclude": ["i9"], "exclude_seen": False, "allow": ["i7"], "filter": FILTER,
            "diversity": {"column": "genre", "most": 2},
        }),
        RECALLED, ANSWER,
    ),
    "None is left out, an empty list is not": (
        lambda c: c.recall(user_id="é\U0001f600", features=None, k=None, allow=[], filter=None),
        ("POST", "/recall", {"user_id": "é\U0001f600", "allow": []}), RECALLED, ANSWER,
    ),
    "batch": (
        lambda c: c.recall_batch([{"user_id": "u1", "k": 2}, {"vector": (1, 2), "history": None}]),
        ("POST", "/recall/batch", {"queries": [{"user_id": "u1", "k": 2}, {"vector": [1.0, 2.0]}]}),
        {"answers": [RECALLED, {**RECALLED, "items": []}]}, [ANSWER, RecallAnswer([], "v1", "user")],
    ),
    "item columns": (
        lambda c: c.recall("u1", attributes=("title",)),
        ("POST", "/recall", {"user_id": "u1", "attributes": ["title"]}),
        {**RECALLED, "items": [{**item, "attributes": {"title": None}} for item in RECALLED["items"]]},
        RecallAnswer(ANSWER.items, "v1", "user", [{"title": None}, {"title": None}]),
    ),
    "similar": (
        lambda c: c.similar(("i1", "i2"), k=5, filter=FILTER),
        ("POST", "/similar", {"items": ["i1", "i2"], "k": 5, "filter": FILTER}), RECALLED, ANSWER,
    ),
    "embed": (
        lambda c: c.embed([{"user_id": "u1"}, {"history": ["i1"]}]),
        ("POST", "/embed", {"queries": [{"user_id": "u1"}, {"history": ["i1"]}]}),
        {"vectors": [[1.0, 0.5], [0.0, 0.0]], "sources": ["user", "popular"], "model_version": "v1"},
        EmbedAnswer([[1.0, 0.5], [0.0, 0.0]], ["user", "popular"], "v1"),
    ),
    "put": (
        lambda c: c.put_item("i1", {"tags": ["a"]}, {}),
        ("PUT", "/items/i1", {"features": {"tags": ["a"]}, "attributes": {}}), {"seq": 4}, 4,
    ),
    "an id of dots": (lambda c: c.delete_item(".."), ("DELETE", "/items/%2E%2E", None), {"seq": 4}, 4),
    "put all": (lambda c: c.put_items([ITEM]), ("PUT", "/items", {"items": [ITEM]}), {"seq": 5}, 5),
    "delete": (lambda c: c.delete_item("a/b ?#%é"), ("DELETE", "/items/a%2Fb%20%3F%23%25%C3%A9", None), {"seq": 6}, 6),
    "events": (
        lambda c: c.add_events(iter([EVENT | {"type": None}])),
        ("POST", "/events", {"events": [EVENT]}), {"added": 1}, 1,
    ),
    "impressions": (
        lambda c: c.add_impressions([{**SHOWN, "item_ids": ("i1", "i7")}]),
        ("POST", "/impressions", {"impressions": [SHOWN]}), {"added": 1}, 1,
    ),
    "ready": (lambda c: c.ready(), ("GET", "/readyz", None), {"status": "ready"}, True),
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_each_call_on_the_wire_and_back(name: str, told: Told, ask: Callable[..., Any]) -> None:
    call, wire, answer, expected = CALLS[name]
    told.replies = [reply(200, answer)]
    assert ask(told.url + "/behind/a/proxy/", call) == expected
    method, path, body = wire
    assert told.asked == [(method, f"/behind/a/proxy{path}", body)]


def test_an_answer_names_the_request_for_impressions(told: Told, ask: Callable[..., Any]) -> None:
    told.replies = [reply(200, RECALLED, **{"X-Request-Id": "r-7"})]
    assert ask(told.url, lambda c: c.recall("u1")).request_id == "r-7"
    told.replies = [reply(200, {"answers": [RECALLED, RECALLED]}, **{"x-request-id": "r-8"})]
    assert [each.request_id for each in ask(told.url, lambda c: c.recall_batch([{}, {}]))] == ["r-8", "r-8"]


def test_a_connection_is_kept_for_less_than_the_other_side_keeps(told: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    conf = (ROOT / "deploy" / "nginx.conf").read_text(encoding="utf-8")
    (nginx_s,) = re.findall(r"^    keepalive_timeout (\d+)s;", conf, re.MULTILINE)
    kept_s = LIMITS.keepalive_expiry
    assert kept_s is not None and kept_s < min(int(nginx_s), Settings.model_fields["keep_alive_s"].default)
    monotonic, ahead_s = time.monotonic, [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: monotonic() + ahead_s[0])
    told.replies = [reply(200, RECALLED)]

    async def awaited() -> None:
        async with AsyncClient(told.url) as client:
            for pause_s in (0, kept_s - 1, kept_s + 1):
                ahead_s[0] += pause_s
                await client.recall("u1")

    asyncio.run(awaited())
    with Client(told.url) as waiting:
        for pause_s in (0, kept_s - 1, kept_s + 1):
            ahead_s[0] += pause_s
            waiting.recall("u1")
    assert [told.ports.index(port) for port in told.ports] == [0, 0, 2, 3, 3, 5]


def drop(handler: BaseHTTPRequestHandler) -> None:
    """Closes the connection without a word."""


def drop_in_the_middle(handler: BaseHTTPRequestHandler) -> None:
    handler.wfile.write(b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n{")


def test_what_is_lost_or_too_much_is_tried_again(
    told: Told, ask: Callable[..., Any], pauses: list[tuple[float, float]]
) -> None:
    told.replies = [
        reply(503, NOT_READY), drop, reply(429, b"slow down", retry_after="0"), drop_in_the_middle,
        reply(502, b"<html>"), reply(504, b""), reply(503, NOT_READY), reply(200, {"seq": 9}),
    ]  # fmt: skip
    assert ask(told.url, lambda c: c.put_items([ITEM]), tries=8) == 9
    assert told.asked == [("PUT", "/items", {"items": [ITEM]})] * 8
    # Full jitter: from 0 to what doubles each time, at most 2 s.
    assert pauses == [(0, 0.05), (0, 0.1), (0, 0.2), (0, 0.4), (0, 0.8), (0, 1.6), (0, 2.0)]


@pytest.mark.parametrize("status", [301, 400, 404, 405, 409, 413, 415, 422, 500, 501])
def test_what_would_only_come_again_is_final(status: int, told: Told, ask: Callable[..., Any]) -> None:
    error = {"code": "invalid_request", "message": "k: must be at most 9, got 10", "field": "k"}
    told.replies = [reply(status, {"error": error})]
    with pytest.raises(ServiceError, match="k: must be at most 9, got 10") as caught:
        ask(told.url, lambda c: c.recall("u1"))
    raised = caught.value
    assert (raised.status, raised.code, raised.message, raised.field) == (status, *error.values())
    assert len(told.asked) == 1


def test_after_the_last_try_the_error_is_the_last_one(told: Told, ask: Callable[..., Any]) -> None:
    told.replies = [drop, reply(502, b"<html>"), reply(503, NOT_READY)]
    with pytest.raises(ServiceError) as caught:
        ask(told.url, lambda c: c.recall("u1"), tries=3)
    assert (caught.value.status, caught.value.code, len(told.asked)) == (503, "not_ready", 3)
    told.replies = [drop]
    with pytest.raises(ServiceError, match=re.escape(told.url)) as caught:
        ask(told.url, lambda c: c.recall("u1"), tries=2)
    assert (caught.value.status, caught.value.code, len(told.asked)) == (None, "no_connection", 5)


def test_nobody_at_the_address(ask: Callable[..., Any]) -> None:
    made = Told()
    made.stop()
    with pytest.raises(ServiceError, match=r"try 2 of 2") as caught:
        ask(made.url, lambda c: c.recall("u1"), tries=2)
    assert (caught.value.status, caught.value.code) == (None, "no_connection")
    assert ask(made.url, lambda c: c.ready()) is False


@pytest.mark.parametrize("content", [b"<html>", b"[]", b"{}", b"null", b'{"items": [{"id": "i1"}]}', b""])
def test_a_success_of_somebody_else_is_no_answer(content: bytes, told: Told, ask: Callable[..., Any]) -> None:
    told.replies = [reply(200, content)]
    with pytest.raises(ServiceError) as caught:
        ask(told.url, lambda c: c.recall("u1"))
    assert (caught.value.status, caught.value.code, len(told.asked)) == (200, "bad_answer", 1)
    told.replies = [reply(404, content)]
    with pytest.raises(ServiceError) as caught:
        ask(told.url, lambda c: c.ready())
    assert (caught.value.status, caught.value.code, caught.value.field) == (404, "http_error", None)


def test_an_answer_that_cannot_be_unpacked_is_no_answer(told: Told, ask: Callable[..., Any]) -> None:
    told.replies = [reply(200, b"plain", **{"content-encoding": "gzip"})]
    with pytest.raises(ServiceError, match="its answer cannot be unpacked") as caught:
        ask(told.url, lambda c: c.recall("u1"))
    assert (caught.value.status, caught.value.code, len(told.asked)) == (None, "bad_answer", 1)
    with pytest.raises(ServiceError, match="its answer cannot be unpacked"):
        ask(told.url, lambda c: c.ready())


def test_ready_asks_once(told: Told, ask: Callable[..., Any]) -> None:
    told.replies = [reply(503, NOT_READY)]
    assert ask(told.url, lambda c: c.ready()) is False
    assert len(told.asked) == 1


DEADLINE_S = 0.5


def late(handler: BaseHTTPRequestHandler) -> None:
    time.sleep(2 * DEADLINE_S)


def late_twice(handler: BaseHTTPRequestHandler) -> None:
    """Head and body each in less than the deadline."""
    content = json.dumps(RECALLED).encode()
    for part in (b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(content), content):
        time.sleep(0.7 * DEADLINE_S)
        handler.wfile.write(part)
        handler.wfile.flush()


def in_pieces(handler: BaseHTTPRequestHandler) -> None:
    content = json.dumps(RECALLED).encode()
    handler.wfile.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(content))
    for place in range(0, len(content), 20):
        handler.wfile.write(content[place : place + 20])
        handler.wfile.flush()
        time.sleep(0.4 * DEADLINE_S)


@pytest.mark.parametrize("slow", [late, late_twice, in_pieces])
def test_the_deadline_is_one_for_all_of_a_call(slow: Any, told: Told, ask: Callable[..., Any]) -> None:
    told.replies = [slow]
    with pytest.raises(ServiceError, match=r"no answer within 0\.5 s") as caught:
        ask(told.url, lambda c: c.recall("u1"), deadline_s=DEADLINE_S)
    assert (caught.value.status, caught.value.code, len(told.asked)) == (None, "deadline", 1)


def head_in_pieces(handler: BaseHTTPRequestHandler, most: int, sent: list[bytes]) -> None:
    """A head without an end, each piece within what is left at the start, as long as somebody reads it."""
    for _ in range(most):
        handler.wfile.write(b"HTTP/1.1 200 OK\r\nx: " if not sent else b"y")
        handler.wfile.flush()
        sent.append(b"y")
        time.sleep(0.1 * DEADLINE_S)


def test_a_head_in_slow_pieces_is_a_matter_of_the_deadline(told: Told, ask: Callable[..., Any]) -> None:
    told.replies = [lambda handler: head_in_pieces(handler, 15, [])]
    with pytest.raises(ServiceError, match=r"no answer within 0\.5 s") as caught:
        ask(told.url, lambda c: c.recall("u1"), deadline_s=DEADLINE_S)
    assert (caught.value.code, len(told.asked)) == ("deadline", 1)


def test_the_deadline_ends_an_answer_that_still_comes_for_asyncio(told: Told) -> None:
    sent: list[bytes] = []
    told.replies = [lambda handler: head_in_pieces(handler, 100, sent), reply(200, RECALLED)]

    async def calls() -> None:
        async with AsyncClient(told.url, deadline_s=DEADLINE_S) as client:
            with pytest.raises(ServiceError, match=r"no answer within 0\.5 s") as caught:
                await client.recall("u1")
            assert caught.value.code == "deadline" and len(sent) < 100
            assert await client.recall("u1") == ANSWER, "on another connection"

    asyncio.run(calls())


def test_a_cancelled_call_is_cancelled(told: Told) -> None:
    told.replies = [late]

    async def cancelled() -> None:
        async with AsyncClient(told.url, deadline_s=60) as client:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.2):
                    await client.recall("u1")
            call = asyncio.create_task(client.recall("u1"))
            await asyncio.sleep(0.1)
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call

    asyncio.run(cancelled())


def test_a_call_cancelled_while_its_connection_is_put_back_leaves_no_place_taken(
    told: Told, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("serving.client.client.LIMITS", httpx.Limits(max_connections=1))
    told.replies = [reply(200, RECALLED)]
    calls: list[asyncio.Task[RecallAnswer]] = []

    class AtTheEnd(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if "response_closed.started" in record.getMessage():
                calls.pop().cancel()
                log.removeHandler(self)

    async def cancelled() -> None:
        async with AsyncClient(told.url, deadline_s=5) as client:
            calls.append(asyncio.create_task(client.recall("u1")))
            with pytest.raises(asyncio.CancelledError):
                await calls[0]
            assert await client.recall("u1") == ANSWER

    log = logging.getLogger("httpcore.http11")
    caplog.set_level(logging.DEBUG, log.name)
    log.addHandler(AtTheEnd())
    asyncio.run(cancelled())
    assert not calls, "cancelled there"


def test_calls_whose_time_is_up_together_take_no_place_of_later_ones() -> None:
    content = json.dumps(RECALLED).encode()
    answer = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(content), content)
    server, healthy, taken = socket.create_server(("127.0.0.1", 0), backlog=512), threading.Event(), []

    def serve() -> None:
        with suppress(OSError):  # closed at the end
            while True:
                taken.append(server.accept()[0])
                if healthy.is_set():
                    taken[-1].recv(65_536)
                    taken[-1].sendall(answer)

    async def calls_of_one_client() -> None:
        async with AsyncClient(f"http://127.0.0.1:{server.getsockname()[1]}", deadline_s=1) as client:
            for _ in range(3):
                came = await asyncio.gather(*[client.recall("u1") for _ in range(250)], return_exceptions=True)
                assert {each.code if isinstance(each, ServiceError) else each for each in came} == {"deadline"}
            healthy.set()
            assert await client.recall("u1") == ANSWER

    threading.Thread(target=serve, daemon=True).start()
    try:
        asyncio.run(calls_of_one_client())
    finally:
        server.shutdown(socket.SHUT_RDWR)
        for each in (server, *taken):
            each.close()


def test_as_many_calls_are_sent_at_once_as_the_client_has_places(told: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("serving.client.client.MOST_CALLS", 2)
    under_way, most, lock = [0], [0], threading.Lock()

    def slow(handler: BaseHTTPRequestHandler) -> None:
        with lock:
            under_way[0] += 1
            most[0] = max(most[0], under_way[0])
        time.sleep(0.05)
        with lock:
            under_way[0] -= 1
        content = json.dumps(RECALLED).encode()
        handler.wfile.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(content), content))

    told.replies = [slow]
    with Client(told.url) as client, ThreadPoolExecutor(6) as pool:
        assert [*pool.map(client.recall, ["u1"] * 6)] == [ANSWER] * 6
    assert most[0] == 2


def test_a_deadline_without_end_is_a_long_one(told: Told) -> None:
    told.replies = [reply(200, RECALLED)]
    with Client(told.url, deadline_s=1e300) as client:
        assert client.recall("u1") == ANSWER


def test_an_error_after_a_call_was_cancelled_is_not_logged_as_lost(
    told: Told, caplog: pytest.LogCaptureFixture
) -> None:
    async def cancelled() -> None:
        client = AsyncClient(told.url)
        await client.close()
        call = asyncio.create_task(client.recall("u1"))
        await asyncio.sleep(0)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await asyncio.sleep(0)

    asyncio.run(cancelled())
    gc.collect()
    assert "never retrieved" not in caplog.text


def test_a_child_of_fork_does_not_close_the_connections_of_its_parent(
    told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    told.replies = [reply(200, RECALLED)]
    with Client(told.url) as client:
        client.recall("u1")
        with monkeypatch.context() as child:
            child.setattr("os.getpid", lambda: 0)
            client.close()
        client.recall("u1")
    assert len(set(told.ports)) == 1


def test_a_child_of_fork_has_connections_of_its_own(told: Told) -> None:
    told.replies = [reply(200, RECALLED)]
    forks = f"""
import os
from serving import Client
with Client({told.url!r}) as client:
    client.recall("u1")
    child = os.fork()
    client.recall("u1")
    if child:
        os.waitpid(child, 0)
"""
    subprocess.run([sys.executable, "-c", forks], check=True, cwd=ROOT)
    assert len(told.ports) == 3 and len(set(told.ports)) == 2


def test_each_wait_gets_what_is_left_at_its_moment(told: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[tuple[str, float]] = []
    clock = iter(range(100, 200))  # each look at it is a second later
    get = retries._Left.get

    def noted(left: Any, key: str, default: Any = None) -> Any:
        waits.append((key, get(left, key, default)))
        return waits[-1][1]

    monkeypatch.setattr(retries._Left, "get", noted)
    monkeypatch.setattr(retries, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    told.replies = [reply(200, b"{}")]
    trial = Trial(Service(told.url, 60, 5), calls.recall("u1", {}))
    with httpx.Client() as client, client.stream(**trial.request()) as response:
        response.read()
    keys = [key for key, _ in waits]
    assert {"connect", "write", "read"} <= set(keys) and keys.count("read") > 1
    assert [seconds for _, seconds in waits] == [60 - n for n in range(1, len(waits) + 1)]


def test_a_pause_that_would_pass_the_deadline_ends_the_call(told: Told, ask: Callable[..., Any]) -> None:
    told.replies = [reply(503, NOT_READY, retry_after="100")]
    with pytest.raises(ServiceError) as caught:
        ask(told.url, lambda c: c.recall("u1"), deadline_s=60)
    assert (caught.value.code, len(told.asked)) == ("not_ready", 1)


def pause_s(retry_after: str | None) -> float:
    trial = Trial(Service("http://service", 60, 5), calls.delete_item("i1"))
    trial.request()
    return trial.pause_s(Answer(503, retry_after, b""))


def test_retry_after_is_waited_for_and_jitter_comes_on_top(pauses: list[tuple[float, float]]) -> None:
    assert pause_s("7") == 7.0
    assert pause_s(None) == pause_s("soon") == pause_s("-3") == pause_s("Wed, 21 Oct 2015 07:28:00 GMT") == 0.0
    assert pause_s("Fri, 99 Dec 99999999999 23:59:59 +9999999999999999") == 0.0
    date = format_datetime(datetime.now(UTC) + timedelta(seconds=30), usegmt=True)
    assert 0 < pause_s(date) <= 30
    assert pauses == [(0, 0.05)] * 7


@pytest.mark.parametrize("copied", [copy.copy, lambda error: pickle.loads(pickle.dumps(error))])
def test_an_error_comes_whole_out_of_another_process(copied: Callable[[ServiceError], ServiceError]) -> None:
    error = ServiceError(422, "invalid_request", "k: must be at least 1, got 0", "k")
    assert vars(copied(error)) == vars(error) and str(copied(error)) == str(error)


def test_mistakes_that_need_no_service(ask: Callable[..., Any]) -> None:
    for url in ("127.0.0.1:8000", "localhost", "ftp://service", "http://", ""):
        with pytest.raises(ValueError, match=r"^url: "):
            ask(url, lambda c: c.recall())
    for url in ("anna:s3cret@host", "ftp://anna:s3cret@host", "http://anna:s3/cret@host", "http://anna:s3cret@[::1"):
        with pytest.raises(ValueError, match=r"^url: .*\*\*\*@") as caught:
            ask(url, lambda c: c.recall())
        assert not {"anna", "s3", "cret"} & {*re.findall(r"\w+", str(caught.value))}
    no_end = "must hold no ? and no #: the path of each call comes at its end"
    for url, reason in {
        "http://service/#": no_end,
        "http://service:-1": "the port must be from 0 to 65535",
        "http://service:65536": "the port must be from 0 to 65535",
        "http://service:84340": "the port must be from 0 to 65535",
        "http://a..b": "not a valid address",
        "http://service/\udcff": "not a valid address",
    }.items():
        with pytest.raises(ValueError, match=f"^{re.escape(f'url: {url!r}: {reason}')}$"):
            ask(url, lambda c: c.recall())
    with pytest.raises(ValueError, match=re.escape("url: 'http://service?***': " + no_end)):
        ask("http://service?signature=s3cret", lambda c: c.recall())
    with pytest.raises(ValueError, match=re.escape("url: 'http://***@service?': " + no_end)):
        ask("http://anna:s3cret@service?", lambda c: c.recall())
    for settings in ({"deadline_s": 0}, {"deadline_s": math.nan}, {"deadline_s": math.inf}, {"tries": 0}):
        with pytest.raises(ValueError, match=next(iter(settings))):
            ask("http://service", lambda c: c.recall(), **settings)
    with pytest.raises(TypeError, match="items: a list is wanted, got the string 'i1'"):
        ask("http://service", lambda c: c.similar("i1"))
    with pytest.raises(TypeError, match="events: a list of dictionaries is wanted, got 'id' in it"):
        ask("http://service", lambda c: c.add_events({"id": "e", "user_id": "u", "item_id": "i", "time": 1}))
    for number in (1, b"x", None):
        with pytest.raises(TypeError, match=f"item_id: a string is wanted, got {number!r}; ids are strings"):
            ask("http://service", lambda c, number=number: c.put_item(number, {}, {}))
    with pytest.raises(ValueError, match="JSON"):
        ask("http://service", lambda c: c.put_item("i1", {"price": math.nan}, {}))
    with pytest.raises(ValueError, match=r"^DELETE http://\*\*\*@service: URL.* too long$"):
        ask("http://anna:s3cret@service", lambda c: c.delete_item("x" * 70_000))


def test_importing_it_loads_neither_tensorflow_nor_the_server() -> None:
    heavy = ("tensorflow", "fastapi", "starlette", "uvicorn", "numpy", "polars", "scann", "pydantic")
    imports = "import sys; from serving.client.client import Client"
    program = f"{imports}; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_page_shows_what_works(told: Told, capsys: pytest.CaptureFixture[str]) -> None:
    error = {"code": "invalid_request", "message": "k: must be at most 1000", "field": "k"}
    told.replies = [
        reply(200, RECALLED), reply(200, {"added": 1}), reply(200, {"seq": 1}), reply(200, {"added": 1}),
        reply(422, {"error": error}),
    ]  # fmt: skip
    exec(program("docs/service/client.md", "with Client", {"http://127.0.0.1:8000": told.url}), {})
    assert [path for _, path, _ in told.asked] == ["/recall", "/impressions", "/items/i7", "/events", "/similar"]
    assert capsys.readouterr().out.splitlines() == [
        "i7 0.5", "i1 -1", "user v1", "422 invalid_request k k: must be at most 1000",
    ]  # fmt: skip
