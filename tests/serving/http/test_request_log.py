"""Around every request: its id, what is logged of it, and what a defect answers."""

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from serving.http.request_log import RequestLog
from serving.protocol.shutdown import Drain
from serving.settings import Settings
from serving.telemetry import metrics
from serving.telemetry.logs import request_id
from tests.support.exposition import Exposed


class Clock:
    """What the log of requests reads the time from: it goes on only where a route says that it takes long."""

    now = 0.0

    def perf_counter(self) -> float:
        return self.now


CLOCK = Clock()


@pytest.fixture(autouse=True)
def only_slow_routes_take_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine any request may stand still for longer than one that the tests call slow."""
    monkeypatch.setattr("serving.http.request_log.time", CLOCK)


async def fine(request: Request) -> Response:
    request.scope["state"]["user_id"] = "u-17"
    return PlainTextResponse(request_id.get() or "")


async def broken(_: Request) -> Response:
    raise KeyError("a secret of the caller")


async def half(_: Request) -> Response:
    async def parts() -> Any:
        yield b"half an "
        raise KeyError("a secret of the caller")

    return StreamingResponse(parts())


async def slow(_: Request) -> Response:
    CLOCK.now += 0.02
    return PlainTextResponse("late")


async def teapot(_: Request) -> Response:
    return PlainTextResponse("no", 418)


async def late_body(_: Request) -> Response:
    CLOCK.now += 0.02
    return PlainTextResponse("too slow", 408)


async def late_and_full(_: Request) -> Response:
    CLOCK.now += 0.02
    return PlainTextResponse("full", 429)


def client(**settings: Any) -> TestClient:
    routes = [Route(f"/{each.__name__}", each) for each in (fine, broken, half, slow, teapot, late_body, late_and_full)]
    app = Starlette(routes=[*routes, Route("/things/{name:path}", fine)])
    app.add_middleware(RequestLog, settings=Settings(bundle=Path("unused"), **settings), drain=Drain(0))
    return TestClient(app, raise_server_exceptions=False)


def lines(caplog: pytest.LogCaptureFixture) -> list[tuple[str, dict[str, Any]]]:
    return [(each.levelname, each.fields) for each in caplog.records if each.name == "uvicorn.error.access"]


@pytest.mark.parametrize("sent", ["a", "Root=1-67891233-abcdef012345678912345678", "x" * 128, "0:/+.-_="])
def test_the_callers_id_comes_back(sent: str) -> None:
    answer = client().get("/fine", headers={"X-Request-Id": sent})
    assert answer.headers.get_list("x-request-id") == [sent]
    assert answer.text == sent  # What the log of this request names, too.


@pytest.mark.parametrize("sent", [None, "", "x" * 129, "two words", 'a"b', "a\tb", "é", "{}", "a\\b", "50%"])
def test_any_other_id_is_replaced(sent: str | None) -> None:
    headers = {} if sent is None else {"X-Request-Id": sent.encode()}
    with client() as asked:
        ids = [asked.get("/fine", headers=headers).headers["x-request-id"] for _ in range(3)]
    assert len(set(ids)) == 3 and sent not in ids
    assert all(1 <= len(each) <= 128 and each.replace("-", "").isalnum() for each in ids)


@pytest.mark.parametrize(("path", "status"), [("/nothing", 404), ("/teapot", 418), ("/broken", 500)])
def test_errors_have_an_id(path: str, status: int) -> None:
    answer = client().get(path, headers={"X-Request-Id": "mine"})
    assert (answer.status_code, answer.headers["x-request-id"]) == (status, "mine")


def test_a_defect_is_logged_once_and_tells_the_caller_nothing(caplog: pytest.LogCaptureFixture) -> None:
    answer = client().get("/broken?user=secret")
    assert answer.json() == {"error": {"code": "internal", "message": "internal error; see the log", "field": None}}
    failed = [each for each in caplog.records if each.exc_info]
    assert [each.getMessage() for each in failed] == ["GET /broken failed"]


def test_half_an_answer_is_cut_off_and_counted_as_failed(caplog: pytest.LogCaptureFixture) -> None:
    before = Exposed(metrics.exposition()[0].decode())
    with pytest.raises((KeyError, ExceptionGroup)):  # a group in Starlette before 0.40
        TestClient(client().app).get("/half")
    after = Exposed(metrics.exposition()[0].decode())
    name, labels = "towers_requests_total", {"route": "/half", "status": "500"}
    assert after.sum(name, **labels) - before.sum(name, **labels) == 1
    assert after.sum(name, route="/half") - before.sum(name, route="/half") == 1


@pytest.mark.parametrize(("access_log", "told"), [("errors", []), ("all", [("WARNING", 200)])])
def test_an_answer_that_its_caller_does_not_read_is_counted(
    caplog: pytest.LogCaptureFixture, access_log: Any, told: list[tuple[str, int]]
) -> None:
    """`serving.protocol.limits` cuts it off, and returns without its end."""
    before = Exposed(metrics.exposition()[0].decode())

    async def cut_off(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"half an ", "more_body": True})
        CLOCK.now += 0.02

    async def unread(_: Any) -> None:
        pass

    log = RequestLog(cut_off, Settings(bundle=Path("unused"), access_log=access_log, slow_ms=10), Drain(0))
    scope = {"type": "http", "method": "GET", "path": "/unread", "headers": [], "app": Starlette()}
    with caplog.at_level(logging.INFO, "uvicorn.error.access"):
        asyncio.run(log(scope, unread, unread))  # type: ignore[arg-type]
    after = Exposed(metrics.exposition()[0].decode())
    assert after.sum("towers_requests_total", status="200") - before.sum("towers_requests_total", status="200") == 1
    assert [(level, fields["status"]) for level, fields in lines(caplog)] == told


ACCESS: dict[str, tuple[dict[str, Any], list[tuple[str, str, int]]]] = {
    "errors": ({}, [("ERROR", "/broken", 500)]),
    "slow ones": ({"slow_ms": 10}, [("ERROR", "/broken", 500), ("WARNING", "/slow", 200)]),
    "all": (
        {"access_log": "all"},
        [
            ("INFO", "/fine", 200),
            ("INFO", "/teapot", 418),
            ("ERROR", "/broken", 500),
            ("INFO", "/slow", 200),
            ("INFO", "unknown", 404),
            ("INFO", "/things/{name}", 200),
        ],
    ),
    "none": ({"access_log": "none", "slow_ms": 10}, []),
}


@pytest.mark.parametrize("which", ACCESS)
def test_which_requests_are_logged(caplog: pytest.LogCaptureFixture, which: str) -> None:
    settings, expected = ACCESS[which]
    caplog.set_level(logging.INFO, "uvicorn.error.access")
    with client(**settings) as asked:
        for path in ("/fine", "/teapot", "/broken", "/slow", "/a/secret?key=secret", "/things/a/secret"):
            asked.get(path)
    # Templates alone: paths and query strings are the caller's.
    assert [(level, each["route"], each["status"]) for level, each in lines(caplog)] == expected
    assert "secret" not in " ".join(each.getMessage() for each in caplog.records)
    for level, each in lines(caplog):
        assert each["method"] == "GET" and each["ms"] >= (20 if each["route"] == "/slow" else 0), level


@pytest.mark.parametrize("path", ["/late_body", "/late_and_full"])
@pytest.mark.parametrize(("which", "levels"), [("errors", []), ("all", ["INFO"])])
def test_a_refused_request_whose_body_came_slowly_has_no_line_of_its_own(
    caplog: pytest.LogCaptureFixture, path: str, which: str, levels: list[str]
) -> None:
    """Anyone can open many connections and send nothing; the summary counts them."""
    caplog.set_level(logging.INFO, "uvicorn.error.access")
    client(slow_ms=10, access_log=which).get(path)
    assert [level for level, _ in lines(caplog)] == levels


@pytest.mark.parametrize(
    ("which", "path", "status", "levels"),
    [
        ("errors", "/readyz", 503, []),
        ("all", "/readyz", 503, ["INFO"]),
        ("errors", "/readyz", 500, ["ERROR"]),
        ("errors", "/recall", 503, ["ERROR"]),
    ],
)
def test_the_503_of_a_probe_is_no_error(
    caplog: pytest.LogCaptureFixture, which: str, path: str, status: int, levels: list[str]
) -> None:
    """A load balancer asks until it has seen that the service stops."""

    async def answers(_: Request) -> Response:
        return PlainTextResponse("", status)

    caplog.set_level(logging.INFO, "uvicorn.error.access")
    app = Starlette(routes=[Route(path, answers)])
    app.add_middleware(RequestLog, settings=Settings(bundle=Path("unused"), access_log=which), drain=Drain(0))
    TestClient(app).get(path)
    assert [level for level, _ in lines(caplog)] == levels


def test_a_stop_that_cuts_a_request_off_counts_it() -> None:
    async def waits(scope: Any, receive: Any, send: Any) -> None:
        await asyncio.sleep(60)

    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def cut(app: Callable[..., Awaitable[None]]) -> None:
        scope = {"type": "http", "method": "GET", "path": "/cut", "headers": [], "app": Starlette()}
        task = asyncio.create_task(app(scope, None, send))
        await asyncio.sleep(0.01)
        task.cancel()
        await task

    labels = {"route": "unknown", "method": "GET", "status": "503"}
    counted = Exposed(metrics.exposition()[0].decode()).sum("towers_requests_total", **labels)
    asyncio.run(cut(RequestLog(waits, Settings(bundle=Path("unused")), Drain(0))))
    after = Exposed(metrics.exposition()[0].decode())
    assert after.sum("towers_requests_total", **labels) == counted + 1
    assert sent[0]["status"] == 503 and (b"connection", b"close") in sent[0]["headers"]
    assert json.loads(sent[1]["body"])["error"]["code"] == "stopping"
