"""A server with the limits before an app of the test's own, in this process, and callers that speak raw HTTP.

The app answers POST with the body that came, once its gate is open: a test holds requests in flight by closing it.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import uvicorn

from pipelines.service.whole_responses import PROTOCOLS
from serving.http.request_log import RequestLog
from serving.http.route_table import WORK
from serving.protocol.limits import Limits
from serving.protocol.shutdown import Drain
from serving.settings import Settings

TEST_S = 180  # far more than any of these tests takes: a busy machine may stand still


class Gated:
    """The app: `begun` counts the requests it was given, `ended` those whose work is done."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.gate.set()
        self.begun = self.ended = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.begun += 1
        body = b""
        more = True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            body += message.get("body", b"")
            more = message.get("more_body", False)
        if scope["path"] not in ("/healthz", "/readyz", "/metrics"):
            await self.gate.wait()
        self.ended += 1
        size = int(dict(scope["headers"]).get(b"x-answer-bytes", 0))
        body = body or b"x" * size
        headers = [(b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    async def until_begun(self, count: int) -> None:
        while self.begun < count:
            await asyncio.sleep(0.001)


class Caller:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    def send(self, path: str = "/recall", body: bytes = b"hello", *headers: str, method: str = "POST") -> None:
        lines = [f"{method} {path} HTTP/1.1", "Host: x", f"Content-Length: {len(body)}", *headers]
        self.writer.write("\r\n".join([*lines, "", ""]).encode() + body)

    async def answer(self) -> tuple[int, dict[str, str], bytes]:
        head = await self.reader.readuntil(b"\r\n\r\n")
        first, *lines = head.decode().rstrip().split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        return int(first.split()[1]), headers, await self.reader.readexactly(int(headers["content-length"]))

    async def code(self) -> tuple[int, str]:
        """Status and error code of an error, in the one shape."""
        status, headers, body = await self.answer()
        error = json.loads(body)
        assert headers["content-type"] == "application/json"
        assert error.keys() == {"error"} and error["error"].keys() == {"code", "message", "field"}
        return status, error["error"]["code"]

    async def closed(self) -> bool:
        """Waits until the server has closed this connection; whether nothing more came."""
        try:
            return await self.reader.read() == b""
        except ConnectionResetError:
            return True


class World:
    def __init__(self, app: Gated, drain: Drain, port: int, server: uvicorn.Server) -> None:
        self.app, self.drain, self.port, self.server = app, drain, port, server
        self.callers: list[Caller] = []

    async def caller(self, limit: int = 2**16) -> Caller:
        caller = Caller(*await asyncio.open_connection("127.0.0.1", self.port, limit=limit))
        self.callers.append(caller)
        return caller

    async def holding(self, count: int, path: str = "/recall") -> list[Caller]:
        """So many callers, each with a request in flight; the gate stays closed."""
        self.app.gate.clear()
        callers = [await self.caller() for _ in range(count)]
        for caller in callers:
            caller.send(path)
        await self.app.until_begun(self.app.begun + count)
        return callers


class Prompt(uvicorn.Server):
    """Looks all the time whether it is to stop; uvicorn itself does so ten times a second."""

    async def main_loop(self) -> None:
        await self.on_tick(0)
        while not self.should_exit:
            await asyncio.sleep(0.001)


@asynccontextmanager
async def serving(**limits: Any) -> AsyncIterator[World]:
    app, drain = Gated(), Drain(0)
    settings = Settings(bundle=Path("none"), **limits)
    inside = RequestLog(Limits(app, settings, WORK), settings, drain)

    async def routed(scope: Any, receive: Any, send: Any) -> None:
        await inside({**scope, "app": SimpleNamespace(routes=[])}, receive, send)

    config = uvicorn.Config(
        routed,
        port=0,
        http=PROTOCOLS[settings.http],
        ws="none",
        lifespan="off",
        log_config=None,
        timeout_graceful_shutdown=1,
    )
    server = Prompt(config)
    running = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.001)
    world = World(app, drain, server.servers[0].sockets[0].getsockname()[1], server)
    try:
        yield world
    finally:
        app.gate.set()
        for caller in world.callers:
            caller.writer.close()
        # uvicorn looks ten times a second whether connections that are open at a stop have ended.
        for _ in range(50):
            if not server.server_state.connections:
                break
            await asyncio.sleep(0.001)
        server.should_exit = True
        await running


def in_world(test: Callable[[World], Awaitable[None]], **limits: Any) -> None:
    """Runs a test against a server with these limits."""

    async def main() -> None:
        async with asyncio.timeout(TEST_S), serving(**limits) as world:
            await test(world)

    asyncio.run(main())
