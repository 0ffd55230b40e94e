"""Creates the FastAPI app: routes with their documented responses, middlewares, and one error shape.

`serving.http.route_table` lists the routes, `serving.http.routes` answers them.
"""

import asyncio
import logging
import os
import re
import signal
import weakref
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Any, cast

# Before NumPy is loaded. A service runs requests and workers in parallel; a second BLAS thread for one small product
# only waits for a busy core: an exact search of 20,000 items then took 8 ms instead of 0.14.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.docs import get_swagger_ui_html
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, PlainTextResponse
from starlette.routing import Match, Route

from serving.bundle.reader import Bundle
from serving.errors import RequestError
from serving.http import health, openapi
from serving.http.auth import Access
from serving.http.fast_routes import FastRoutes, Json
from serving.http.media_type import JSON
from serving.http.request_errors import explained
from serving.http.request_log import RequestLog
from serving.http.requests import query_of
from serving.http.responses import Reloaded
from serving.http.route_table import FAST, ROUTES, WORK
from serving.protocol.asgi import error_bytes
from serving.protocol.limits import PROBE, Limits
from serving.protocol.shutdown import Drain
from serving.service.service import Service
from serving.settings import Settings
from serving.telemetry.logs import SERVICE
from serving.window.page import Beside
from serving.window.refusals import Refusals
from serving.window.routes import add_window

log = logging.getLogger(SERVICE)

STATUS_OF = {
    "invalid_json": 400,
    "unsupported_media_type": 415,
    "no_state": 409,
    "not_recallable": 409,
    "not_ready": 503,
    "stopping": 503,
    "not_written": 503,
    "timeout": 503,
}
CODE_OF = {404: "not_found", 405: "method_not_allowed"}

# Swagger UI from locally installed files; the content security policy forbids other hosts.
PAGE = "/docs"
SCRIPT, STYLE, ICON = "swagger-ui-bundle.js", "swagger-ui.css", "favicon.png"
MEDIA_TYPES = {SCRIPT: "text/javascript", STYLE: "text/css", ICON: "image/png"}
POLICY = (
    "default-src 'none'; connect-src 'self'; img-src 'self' data:; "
    "script-src 'self' 'unsafe-inline'; style-src 'self' 'unsafe-inline'"
)


def create_app(settings: Settings, *, verified: Path | None = None, beside: Beside | None = None) -> FastAPI:
    """Makes the service; the bundle is opened, verified and warmed up when it starts, not here.

    Args:
        settings: paths and limits.
        verified: a bundle whose checksums this process has just compared.
        beside: what `towers look` shows in the window beside the service's own bundles.
    """
    drain = Drain(settings.linger_s)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        service = await asyncio.to_thread(Service, settings, verified=verified)
        await asyncio.to_thread(service.start)
        app.state.service = service
        drain.install()
        # Outside the main thread, as in a test, no handler can be installed.
        with suppress(ValueError, RuntimeError, NotImplementedError):
            if beside is None:  # `towers look` ends with its terminal
                asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, service.reload)
        watching = asyncio.create_task(service.watch())
        yield
        app.state.service = None
        watching.cancel()
        with suppress(asyncio.CancelledError):
            await watching
        service.stop()

    app = FastAPI(
        title="towers recall",
        version="1",
        description="Items for a user, for features, for a history or for other items, best first.",
        lifespan=lifespan,
        # FastAPI's own pages load their scripts from other hosts.
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        generate_unique_id_function=lambda route: route.name,  # what generated clients call their functions
        # FastAPI's own looks for providers with each request, and would export data such as exceptions.
        telemetry={"tracing": False, "metrics": False, "logs": False},
    )
    app.state.service, app.state.drain, app.state.settings = None, drain, settings
    app.state.documents = weakref.WeakKeyDictionary()
    _add_routes(app)
    _add_docs_page(app)
    app.add_exception_handler(RequestError, _on_request_error)
    app.add_exception_handler(RequestValidationError, _on_wrong_path)
    app.add_exception_handler(HTTPException, _on_http_exception)
    # The last ones are the outermost; `RequestLog` handles unexpected exceptions.
    app.add_middleware(FastRoutes, routes=FAST)
    app.add_middleware(Limits, settings=settings, work=WORK)
    if settings.keys is not None:
        app.add_middleware(Access, keys=settings.keys)
    app.add_middleware(RequestLog, settings=settings, drain=drain)
    if settings.window:
        add_window(app, partial(query_of, settings=settings), beside or Beside(), health.readyz)
        app.add_middleware(Refusals)
    for route in app.routes:
        if isinstance(route, Route):
            # `$` matches before a last line feed, too: `/window%0A` would be the page, but no path that keys protect.
            route.path_regex = re.compile(route.path_regex.pattern.removesuffix("$") + r"\Z")
    app.openapi = lambda: _document(app)  # type: ignore[method-assign]
    return app


def _add_routes(app: FastAPI) -> None:
    for route in ROUTES:
        kind = PlainTextResponse if route.answer is None else JSONResponse
        answers: dict[int | str, dict[str, Any]] = {
            200: {"content": {str(kind.media_type): {"example": route.example}}},
            **openapi.errors(*route.errors),
        }
        if route.answer is not None:
            answers[200]["model"] = route.answer
        if route.answer is Reloaded:
            content = {JSON: {"example": route.example | {"refused": {"2026-11-21": "item_vectors.npy: altered"}}}}
            refused = "A bundle was refused; the previous ones stay in use"
            answers[409] = {"model": Reloaded, "description": refused, "content": content}
        app.add_api_route(
            route.path,
            route.function,
            methods=[route.method],
            response_model=None,
            response_class=kind,
            summary=route.summary,
            responses=answers,
        )
        if route.work is PROBE:
            app.add_api_route(
                route.path, route.function, methods=["HEAD"], response_model=None, include_in_schema=False
            )


def _add_docs_page(app: FastAPI) -> None:
    """Adds the page at `/docs` and its files. All links are relative: it works behind a proxy that adds a prefix."""
    # Only the package's files: its own API needs another app class.
    directory = Path(str(files("fastapi_offline") / "static"))

    async def page(_: Request) -> Response:
        html = get_swagger_ui_html(
            openapi_url="openapi.json",
            title=app.title,
            swagger_js_url=f"docs/{SCRIPT}",
            swagger_css_url=f"docs/{STYLE}",
            swagger_favicon_url=f"docs/{ICON}",
            # Otherwise Swagger UI sends the address of the document to a validator on the internet.
            swagger_ui_parameters={"validatorUrl": None},
        )
        html.headers["content-security-policy"] = POLICY
        return html

    async def file(request: Request) -> Response:
        name = request.url.path.rpartition("/")[2]
        # Not Starlette's FileResponse: it answers a bad Range in plain text.
        content = await asyncio.to_thread((directory / name).read_bytes)
        return Response(content, media_type=MEDIA_TYPES[name])

    app.add_route(PAGE, page, include_in_schema=False)
    for name in MEDIA_TYPES:
        app.add_route(f"{PAGE}/{name}", file, include_in_schema=False)


def _document(app: FastAPI) -> dict[str, Any]:
    service: Service | None = app.state.service
    if service is None:
        return openapi.document(app, None, app.state.settings)
    # By bundle, as the document lists its features and columns; weak, so that a retired bundle is freed.
    documents: weakref.WeakKeyDictionary[Bundle, dict[str, Any]] = app.state.documents
    bundle = service.pick(None).bundle
    if bundle not in documents:
        documents[bundle] = openapi.document(app, bundle, app.state.settings)
    return documents[bundle]


async def _on_request_error(_: Request, error: Exception) -> Response:
    error = cast(RequestError, error)
    if error.code == "not_written":
        log.error("a change could not be kept: %s", error.__cause__)
    return Json(error_bytes(error.code, error.message, error.field), STATUS_OF.get(error.code, 422))


async def _on_wrong_path(request: Request, error: Exception) -> Response:
    detail = cast(RequestValidationError, error).errors()[0]
    return await _on_request_error(request, explained({**detail, "loc": detail["loc"][1:]}))


async def _on_http_exception(request: Request, error: Exception) -> Response:
    error = cast(HTTPException, error)
    message = {404: "no such path", 405: f"{request.method} is not allowed here"}
    content = error_bytes(CODE_OF.get(error.status_code, "http_error"), message.get(error.status_code, error.detail))
    headers = dict(error.headers or {})
    if error.status_code == 405:
        # Starlette's own names the methods of one route; a path may have several.
        routes = [route for route in request.app.routes if isinstance(route, Route)]
        fitting = [route.methods or () for route in routes if route.matches(request.scope)[0] != Match.NONE]
        headers["Allow"] = ", ".join(sorted(set().union(*fitting)))
    return Response(content, error.status_code, headers=headers, media_type=JSON)
