"""Who may ask what: the middleware between the log and the limits.

In: requests. Out: those with a good key; 401 or 403 and the end of the connection for the others, whose bodies nobody
reads.
"""

from pathlib import Path
from typing import Any

from starlette.types import ASGIApp, Receive, Scope, Send

from serving import metrics
from serving.asgi import CLOSE, answer
from serving.keys import KeyRing
from serving.schemas import error_bytes

OPEN = frozenset({"/healthz", "/readyz"})
READ = frozenset({"/recall", "/recall/batch", "/similar", "/embed"})
SCHEME = b"bearer "

_CHALLENGE = (b"www-authenticate", b'Bearer realm="towers"')
NO_KEY = error_bytes("no_key", "send a key: Authorization: Bearer KEY")
WRONG_KEY = error_bytes("wrong_key", "this key is not known")
READ_ONLY = error_bytes("read_only", "this key may read; for changes and administration another one is needed")


class Access:
    """Pure ASGI.

    Args:
        app: what answers.
        keys: the file of keys.

    Raises:
        KeysError: the file cannot be used.
    """

    def __init__(self, app: ASGIApp, keys: Path) -> None:
        self.app, self._keys = app, KeyRing(keys)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Lets one request be answered, or refuses it."""
        if scope["type"] == "http" and scope["path"] not in OPEN:
            refused = _refused(self._keys, scope)
            if refused is not None:
                metrics.refused("key")
                await answer(send, *refused, CLOSE)
                return
        await self.app(scope, receive, send)


def _refused(keys: KeyRing, scope: Scope) -> tuple[Any, ...] | None:
    """Why a request is not let in: arguments of `answer`."""
    sent = [value for name, value in scope["headers"] if name == b"authorization"]
    if len(sent) != 1 or not sent[0].lower().startswith(SCHEME):
        return 401, NO_KEY, _CHALLENGE
    role = keys.role(sent[0][len(SCHEME) :].strip())
    if role is None:
        return 401, WRONG_KEY, (_CHALLENGE[0], _CHALLENGE[1] + b', error="invalid_token"')
    return None if role == "admin" or reads(scope["method"], scope["path"]) else (403, READ_ONLY)


def reads(method: str, path: str) -> bool:
    """Whether a request only reads. What is not known to is administration, a route of tomorrow too."""
    return (method == "POST" and path in READ) or (method == "GET" and not path.startswith("/admin"))
