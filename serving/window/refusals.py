"""Makes pages of the errors under `/window`, for a browser; all other routes keep their JSON.

In: what the routes and middlewares inside answer. Out: a page with the same status and headers. It needs no file, which
would be refused, too: its style is in the page, and its policy lets a browser use nothing else.
"""

import base64
import hashlib
from http import HTTPStatus

import orjson
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from serving.protocol.asgi import JSON
from serving.window.environment import environment
from serving.window.routes import PRIVATE, SAFE, is_window, static

STYLE = static("window.css").decode()
DIGEST = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
POLICY = f"default-src 'none'; style-src 'sha256-{DIGEST}'; form-action 'none'; base-uri 'none'; frame-ancestors 'none'"
HEADERS = PRIVATE | SAFE | {"content-security-policy": POLICY, "content-type": "text/html; charset=utf-8"}
REPLACED = (b"content-type", b"content-length")


class Refusals:
    """Pure ASGI middleware around all that may refuse a request.

    Args:
        app: the inner ASGI app.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes a request on, and makes a page of its refusal."""
        if scope["type"] != "http" or not is_window(scope["path"]):
            await self.app(scope, receive, send)
            return
        refused: Message | None = None
        content = b""

        async def noting(message: Message) -> None:
            nonlocal refused, content
            if message["type"] == "http.response.start" and message["status"] >= 400 and JSON in message["headers"]:
                refused = message
            elif refused is None:
                await send(message)
            else:
                content += message.get("body", b"")
                if not message.get("more_body", False):
                    page = _page(refused, content)
                    length = b"content-length", b"%d" % len(page)
                    added = [(name.encode(), value.encode()) for name, value in HEADERS.items()]
                    kept = [each for each in refused["headers"] if each[0] not in REPLACED]
                    await send({**refused, "headers": [*kept, *added, length]})
                    await send({"type": "http.response.body", "body": page})

        await self.app(scope, receive, noting)


def _page(refused: Message, content: bytes) -> bytes:
    html = (
        environment()
        .get_template("refusal.html.j2")
        .render(
            status=HTTPStatus(refused["status"]),
            message=orjson.loads(content)["error"]["message"],
            retry_after=dict(refused["headers"]).get(b"retry-after", b"").decode(),
            style=STYLE,
        )
    )
    return html.encode()
