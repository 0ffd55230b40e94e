"""The page at `/docs`: Swagger UI from files that are installed here, so that a browser asks no other host.

In: the app. Out: its routes for the page and the page's files. The page says by its content policy, too, that nothing
comes from elsewhere. All of its links are relative: it works behind a proxy that adds a prefix.
"""

from collections.abc import Awaitable, Callable
from importlib.resources import files
from pathlib import Path

from fastapi import FastAPI
from fastapi.openapi.docs import get_swagger_ui_html
from starlette.requests import Request
from starlette.responses import FileResponse, Response

PAGE = "/docs"
SCRIPT, STYLE, ICON = "swagger-ui-bundle.js", "swagger-ui.css", "favicon.png"
MEDIA_TYPES = {SCRIPT: "text/javascript", STYLE: "text/css", ICON: "image/png"}
POLICY = (
    "default-src 'none'; connect-src 'self'; img-src 'self' data:; "
    "script-src 'self' 'unsafe-inline'; style-src 'self' 'unsafe-inline'"
)


def add_docs_page(app: FastAPI) -> None:
    """Adds the page and its files; the app must have been made with neither `docs_url` nor `redoc_url`."""

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

    app.add_route(PAGE, page, include_in_schema=False)
    # Of the package only the files: its own way to them is another class of app.
    directory = Path(str(files("fastapi_offline") / "static"))
    for name, media_type in MEDIA_TYPES.items():
        app.add_route(f"{PAGE}/{name}", _file(directory / name, media_type), include_in_schema=False)


def _file(path: Path, media_type: str) -> Callable[[Request], Awaitable[Response]]:
    async def file(_: Request) -> Response:
        return FileResponse(path, media_type=media_type)

    return file
