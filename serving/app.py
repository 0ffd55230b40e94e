"""The HTTP service: a FastAPI factory, three short routes, one error shape.

In: HTTP requests. Out: JSON. All that is known about recall lives in `serving.recall`; here are only bytes and codes.
"""

import asyncio
import logging
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

# Before NumPy is loaded. A service is parallel over requests and workers; a second BLAS thread inside one small product
# only waits for a busy processor: an exact search of 20,000 items then took 8 ms instead of 0.14.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from fastapi import FastAPI, Request, Response
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from serving import openapi
from serving.errors import RequestError
from serving.filtering import OVERFETCH_LIMIT
from serving.index import ExactIndex
from serving.opening import open_recaller
from serving.recall import Recaller, RecallQuery
from serving.schemas import RecallResponse, Status, answer_bytes, error_bytes, parse_request
from serving.settings import Settings

# A child of the server's own logger: its handlers, format and level, in every worker.
log = logging.getLogger("uvicorn.error.serving")

JSON = "application/json"
STATUS_OF = {"invalid_json": 400, "too_large": 413, "unsupported_media_type": 415, "not_ready": 503}
CODE_OF = {404: "not_found", 405: "method_not_allowed"}
# An exact scan of more numbers than this takes longer than a thread switch is worth.
INLINE_NUMBERS = 4_000_000


def create_app(settings: Settings | None = None) -> FastAPI:
    """Makes the service; the bundle is opened, verified and warmed up when it starts, not here.

    Args:
        settings: None reads them from the environment.
    """
    settings = settings or Settings()

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        recaller = await asyncio.to_thread(open_recaller, settings.bundle, verify=settings.verify)
        for query in _warm_up_queries(recaller):
            recaller.recall(query)
        app.state.recaller = recaller
        app.openapi_schema = None
        manifest = recaller.bundle.manifest
        log.info(
            "%s: model %s, %d items, %d users",
            settings.bundle,
            manifest.model_version,
            manifest.items,
            manifest.queries,
        )
        yield
        app.state.recaller = None

    app = FastAPI(
        title="towers recall",
        version="1",
        description="Items for a user, for features or for a history, best first.",
        lifespan=lifespan,
        redirect_slashes=False,
    )
    app.state.recaller = None
    app.state.settings = settings
    app.add_api_route(
        "/recall", recall, methods=["POST"], response_model=None,
        summary="The k best items for a user, for features or for a history",
        responses={
            200: {"model": RecallResponse, "content": {JSON: {"example": openapi.ANSWER_EXAMPLE}}},
            **openapi.errors(400, 413, 415, 422, 500, 503),
        },
    )  # fmt: skip
    app.add_api_route(
        "/healthz", healthz, methods=["GET"], response_model=None, summary="Is the process alive",
        responses={200: {"model": Status, "content": {JSON: {"example": {"status": "ok"}}}}},
    )  # fmt: skip
    app.add_api_route(
        "/readyz", readyz, methods=["GET"], response_model=None, summary="Is a bundle loaded, and does a search work",
        responses={
            200: {"model": Status, "content": {JSON: {"example": {"status": "ready"}}}},
            **openapi.errors(500, 503),
        },
    )  # fmt: skip
    app.add_exception_handler(RequestError, _on_request_error)
    app.add_exception_handler(HTTPException, _on_http_exception)
    app.add_exception_handler(ClientDisconnect, _on_disconnect)
    app.add_exception_handler(Exception, _on_defect)
    app.openapi = lambda: _document(app)  # type: ignore[method-assign]
    return app


async def recall(request: Request) -> Response:
    """Answers with the k best items; unknown users, and requests that name nothing known, get the popular ones."""
    recaller = _ready(request)
    settings: Settings = request.app.state.settings
    query = parse_request(await _body(request, settings.max_body_bytes), settings.max_k)
    quick = _is_quick(recaller, query)
    recalled = recaller.recall(query) if quick else await run_in_threadpool(recaller.recall, query)
    return Response(answer_bytes(recalled), media_type=JSON)


async def healthz() -> Response:
    """The process is alive and its event loop turns."""
    return Response(b'{"status":"ok"}', media_type=JSON)


async def readyz(request: Request) -> Response:
    """A bundle is loaded, and a search in it, made now, gives an item."""
    recaller = _ready(request)
    rows, _ = await run_in_threadpool(recaller.index.search, recaller.bundle.item_vectors[:1], 1)
    if rows[0, 0] < 0:
        raise RequestError("a search finds nothing", code="not_ready")
    return Response(b'{"status":"ready"}', media_type=JSON)


def _ready(request: Request) -> Recaller:
    recaller: Recaller | None = request.app.state.recaller
    if recaller is None:
        raise RequestError("no bundle is loaded yet", code="not_ready")
    return recaller


async def _body(request: Request, max_bytes: int) -> bytes:
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != JSON:
        raise RequestError(f"send Content-Type: {JSON}", code="unsupported_media_type")
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > max_bytes:
            raise RequestError(f"the body is larger than {max_bytes} bytes", code="too_large")
    return bytes(body)


def _is_quick(recaller: Recaller, query: RecallQuery) -> bool:
    """Whether the answer is cheaper than handing the work to a thread: a stored vector and a fast search."""
    if query.features or query.history:
        return False
    bundle = recaller.bundle
    row = None if query.user_id is None else bundle.query_rows.get(query.user_id)
    excluded = len(query.exclude) + (len(bundle.seen(row)) if row is not None else 0)
    scans = isinstance(recaller.index, ExactIndex) or excluded > OVERFETCH_LIMIT
    return not scans or bundle.item_vectors.size <= INLINE_NUMBERS


def _warm_up_queries(recaller: Recaller) -> list[RecallQuery]:
    bundle = recaller.bundle
    queries = [RecallQuery(), RecallQuery(history=[bundle.item_ids[0]])]
    if len(bundle.query_ids):
        queries.append(RecallQuery(user_id=bundle.query_ids[0]))
    return queries


def _document(app: FastAPI) -> dict[str, Any]:
    if app.openapi_schema is None:
        recaller: Recaller | None = app.state.recaller
        bundle = None if recaller is None else recaller.bundle
        app.openapi_schema = openapi.document(app, bundle, app.state.settings.max_k)
    return app.openapi_schema


async def _on_request_error(_: Request, error: Exception) -> Response:
    error = cast(RequestError, error)
    content = error_bytes(error.code, error.message, error.field)
    return Response(content, STATUS_OF.get(error.code, 422), media_type=JSON)


async def _on_http_exception(request: Request, error: Exception) -> Response:
    error = cast(HTTPException, error)
    message = {404: "no such path", 405: f"{request.method} is not allowed here"}
    content = error_bytes(CODE_OF.get(error.status_code, "http_error"), message.get(error.status_code, error.detail))
    return Response(content, error.status_code, headers=error.headers, media_type=JSON)


async def _on_disconnect(_: Request, error: Exception) -> Response:
    return Response(error_bytes("disconnected", "the caller went away"), 400, media_type=JSON)


async def _on_defect(request: Request, error: Exception) -> Response:
    # The text of an exception may hold paths or data: it goes to the log, never to the caller.
    log.error("%s %s failed", request.method, request.url.path, exc_info=error)
    return Response(error_bytes("internal", "internal error; see the log"), 500, media_type=JSON)
