"""The request path and the on-disk contract: bundle, index, encoder, recall, HTTP. Never imports `towers`.

`from serving import Bundle, Client` imports each lazily, so that the client loads no TensorFlow.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from serving.bundle.reader import Bundle as Bundle
    from serving.client.client import AsyncClient as AsyncClient
    from serving.client.client import Client as Client
    from serving.client.client import ServiceError as ServiceError
    from serving.search.exact import ExactIndex as ExactIndex

_HOMES = {
    "Bundle": "bundle.reader",
    "ExactIndex": "search.exact",
    "Client": "client.client",
    "AsyncClient": "client.client",
    "ServiceError": "client.client",
}
__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'serving' has no attribute {name!r}; there are {', '.join(_HOMES)}")
    return getattr(import_module(f"serving.{_HOMES[name]}"), name)
