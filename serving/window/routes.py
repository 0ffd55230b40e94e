"""The routes of the window: `/window` and its files. They are in no OpenAPI document and only read.

The page runs in a thread of the pool and counts among the heavy requests. Its policy lets a browser load nothing but
the package's own files, run no inline script and show the page in no frame.
"""

from collections.abc import Awaitable, Callable, Mapping
from importlib.resources import files
from typing import Any

from fastapi import FastAPI, Request, Response
from starlette.concurrency import run_in_threadpool

from serving.errors import RequestError
from serving.recall.query import RecallQuery
from serving.service.service import service_of
from serving.window.form import MOST_CHARACTERS, MOST_K, Form
from serving.window.page import Beside, Page

PATH = "/window"
MEDIA_TYPES = {"window.css": "text/css", "window.js": "text/javascript", "window.svg": "image/svg+xml"}
POLICY = (
    "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; form-action 'self'; base-uri 'none'; "
    "frame-ancestors 'none'"
)
# A page holds what users took: no cache keeps it, and no other site learns its address.
PRIVATE = {"cache-control": "no-store", "referrer-policy": "no-referrer"}
SAFE = {"content-security-policy": POLICY, "x-content-type-options": "nosniff"}


def is_window(path: str) -> bool:
    """Whether a path is that of the page or of one of its files."""
    return path == PATH or path.startswith(f"{PATH}/")


def static(name: str) -> bytes:
    """A file of the page."""
    return (files("serving.window") / "static" / name).read_bytes()


def add_window(
    app: FastAPI,
    query_of: Callable[[Mapping[str, Any]], RecallQuery],
    beside: Beside,
    readyz: Callable[[Request], Awaitable[Response]],
) -> None:
    """Adds the page and its files. All links are relative: it works behind a proxy that adds a prefix.

    Args:
        app: the app whose `state.service` answers.
        query_of: checks the keys of a request by the models and limits of its route, and makes the query.
        beside: what the page shows beside the service's own bundles.
        readyz: raises RequestError if the service is not ready.
    """

    async def page(request: Request) -> Response:
        service = service_of(request)
        size, most_k, status = len(request.scope["query_string"]), min(MOST_K, service.settings.max_k), 200
        form = Form(dict(request.query_params) if size <= MOST_CHARACTERS else {}, most_k)
        if size > MOST_CHARACTERS:
            status = 413
            form.errors[""] = (
                f"the address has {size:,} characters, at most {MOST_CHARACTERS:,} are allowed; "
                "POST /recall takes longer lists"
            )
        if form["user"]:
            request.scope.setdefault("state", {})["user_id"] = form["user"]
        try:
            await readyz(request)
            unready = ""
        except RequestError as error:
            unready = error.message
        content = await run_in_threadpool(Page(service, query_of, beside).render, form, unready)
        return Response(
            content,
            400 if form.errors and status == 200 else status,
            headers=PRIVATE | SAFE,
            media_type="text/html",
        )

    def add_file(name: str, media_type: str) -> None:
        content = static(name)

        async def file(_: Request) -> Response:
            return Response(content, headers=SAFE | {"cache-control": "no-cache"}, media_type=media_type)

        app.add_route(f"{PATH}/{name}", file, include_in_schema=False)

    app.add_route(PATH, page, include_in_schema=False)
    for name, media_type in MEDIA_TYPES.items():
        add_file(name, media_type)
