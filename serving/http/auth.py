"""Authenticates and authorises requests by API key, in a middleware between the log and the limits.

Rejected requests get 401 or 403 and a closed connection; their bodies are dropped unseen. A browser, which cannot send
`Bearer`, sends the key for the window as the password of `Basic`; no other path accepts that, so that no other site can
make a browser send the key along with a change.
"""

import base64
import binascii
from pathlib import Path
from typing import Any

from starlette.types import ASGIApp, Receive, Scope, Send

from serving.http.api_keys import KeyRing
from serving.http.route_table import OPEN, READ
from serving.protocol.asgi import CLOSE, error_bytes
from serving.protocol.refusal import refuse
from serving.telemetry import metrics
from serving.window.routes import is_window

SCHEME, BROWSER_SCHEME = b"bearer ", b"basic "

_CHALLENGE = (b"www-authenticate", b'Bearer realm="towers"')
_BROWSER_CHALLENGE = (b"www-authenticate", b'Basic realm="towers", charset="UTF-8"')
NO_KEY = error_bytes("no_key", "send a key: Authorization: Bearer KEY")
NO_PASSWORD = error_bytes("no_key", "give an admin key as the password, with any user name")
WRONG_KEY = error_bytes("wrong_key", "this key is not known")
READ_ONLY = error_bytes("read_only", "this key may read; for changes and administration another one is needed")


class Access:
    """Pure ASGI middleware.

    Args:
        app: the inner ASGI app.
        keys: the key file.

    Raises:
        KeysError: the file cannot be used.
    """

    def __init__(self, app: ASGIApp, keys: Path) -> None:
        self.app, self._keys = app, KeyRing(keys)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes a request on or rejects it."""
        if scope["type"] == "http" and scope["path"] not in OPEN:
            refused = _refused(self._keys, scope)
            if refused is not None:
                metrics.refused("key")
                await refuse(scope, receive, send, *refused, CLOSE)
                return
        await self.app(scope, receive, send)


def _refused(keys: KeyRing, scope: Scope) -> tuple[Any, ...] | None:
    """The arguments of `refuse` that reject a request, or None."""
    sent = [value for name, value in scope["headers"] if name == b"authorization"]
    if is_window(scope["path"]) and not (len(sent) == 1 and sent[0].lower().startswith(SCHEME)):
        return _refused_browser(keys, sent)
    if len(sent) != 1 or not sent[0].lower().startswith(SCHEME):
        return 401, NO_KEY, _CHALLENGE
    role = keys.role(sent[0][len(SCHEME) :].strip())
    if role is None:
        return 401, WRONG_KEY, (_CHALLENGE[0], _CHALLENGE[1] + b', error="invalid_token"')
    return None if role == "admin" or reads(scope["method"], scope["path"]) else (403, READ_ONLY)


def _refused_browser(keys: KeyRing, sent: list[bytes]) -> tuple[Any, ...] | None:
    """Like `_refused`; a key that may only read gets 401, too, so that the browser asks for another one."""
    if len(sent) != 1 or not sent[0].lower().startswith(BROWSER_SCHEME):
        return 401, NO_PASSWORD, _BROWSER_CHALLENGE
    try:
        pair = base64.b64decode(sent[0][len(BROWSER_SCHEME) :].strip(), validate=True)
    except binascii.Error:
        return 401, NO_PASSWORD, _BROWSER_CHALLENGE
    role = keys.role(pair.partition(b":")[2])
    if role is None:
        return 401, WRONG_KEY, _BROWSER_CHALLENGE
    return None if role == "admin" else (401, READ_ONLY, _BROWSER_CHALLENGE)


def reads(method: str, path: str) -> bool:
    """Whether a request only reads. Anything not listed needs the admin role, future routes included."""
    if path.startswith("/admin") or is_window(path):
        return False
    return (method == "POST" and path in READ) or method in ("GET", "HEAD")
