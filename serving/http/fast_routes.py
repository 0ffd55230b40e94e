"""Calls the routes that must be fast directly by path; FastAPI only documents them.

Their errors go to the app's exception handlers, as for all routes. Even for a route that takes only the request,
FastAPI sets up two exit stacks, searches all routes, resolves dependencies and checks the response model: a third of
the time of a small answer.
"""

from collections.abc import Awaitable, Callable, Mapping

from fastapi import Request, Response
from starlette.types import ASGIApp, Receive, Scope, Send

Endpoint = Callable[[Request], Awaitable[Response]]


class FastRoutes:
    """The innermost ASGI middleware.

    Args:
        app: the app for all other paths and methods.
        routes: path -> endpoint of its POST requests.
    """

    def __init__(self, app: ASGIApp, routes: Mapping[str, Endpoint]) -> None:
        self.app, self.routes = app, dict(routes)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers one request."""
        route = self.routes.get(scope.get("path", ""))
        if route is None or scope.get("method") != "POST" or scope.get("root_path"):
            await self.app(scope, receive, send)
            return
        request = Request(scope, receive, send)
        try:
            response = await route(request)
        except Exception as error:
            handlers = scope["app"].exception_handlers
            handler = next((handlers[kind] for kind in type(error).__mro__ if kind in handlers), None)
            if handler is None:
                raise
            response = await handler(request, error)
        await response(scope, receive, send)


class Json(Response):
    """A JSON response with only two headers."""

    def __init__(self, body: bytes, status_code: int = 200) -> None:
        self.status_code, self.body, self.background = status_code, body, None
        self.raw_headers = [(b"content-length", b"%d" % len(body)), (b"content-type", b"application/json")]
