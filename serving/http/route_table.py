"""Every route of the API: what answers it, what its document says, and how the middlewares treat it."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Literal

from fastapi import Response
from pydantic import BaseModel
from starlette.convertors import Convertor, register_url_convertor

from serving.http import health, routes
from serving.http.change_requests import EventsRequest, ImpressionsRequest, ItemRequest, ItemsRequest
from serving.http.requests import EmbedRequest, RecallBatchRequest, RecallRequest, SimilarRequest
from serving.http.responses import (
    Added,
    EmbedResponse,
    Ready,
    RecallBatchResponse,
    RecallResponse,
    Reloaded,
    Status,
    Written,
)
from serving.protocol.limits import HEAVY, LIGHT, LONG, PROBE, Work


class _IdConvertor(Convertor[str]):
    """A parameter that takes the rest of the path, slashes and line breaks too: `OldId` refuses what no id may hold.

    Starlette's own `path` ends at a line break, so that `x` would stand for an id that ends with one.
    """

    regex = "(?s:.*)"

    def convert(self, value: str) -> str:
        """Returns the id as it came."""
        return value

    def to_string(self, value: str) -> str:
        """Returns the id as it goes into a path."""
        return value


register_url_convertor("id", _IdConvertor())

UPGRADE = 400  # the status for a request to switch protocols; also for a body that is not JSON


@dataclass(frozen=True)
class Route:
    """A route. What it does not declare is the careful default: a key that may change, few at a time.

    Attributes:
        path, method: as FastAPI takes them. `key`, `work` and `fast` are looked up by the path of a request, so a
            path with a parameter cannot declare them.
        function: answers.
        summary, answer, example, errors: for the document; `answer` None is plain text. Any route may refuse `Upgrade`.
        body: the model of its body; None: it has none.
        key: "none" for anybody, "read" for a key that may only read, "admin" for one that may change. Any key may GET.
        work: how it takes part in the limits (`serving.protocol.limits`).
        fast: microseconds count; see `serving.http.fast_routes`.
    """

    path: str
    method: Literal["GET", "POST", "PUT", "DELETE"]
    function: Callable[..., Awaitable[Response]]
    summary: str
    answer: type[BaseModel] | None
    example: Any
    errors: tuple[int, ...] = (UPGRADE,)
    body: type[BaseModel] | None = None
    key: Literal["none", "read", "admin"] = "admin"
    work: Work = HEAVY
    fast: bool = False


VERSION = "20250101-120000-1a2b3c4d"
ANSWER = {
    "items": [{"id": "318", "score": 0.8125}, {"id": "64", "score": 0.75}],
    "model_version": VERSION,
    "source": "user",
}
VECTORS = {"vectors": [[0.6, -0.8]], "sources": ["user"], "model_version": VERSION}
METRICS = 'towers_requests_total{method="POST",route="/recall",status="200"} 318.0\n'
OF_BODY = (UPGRADE, 408, 413, 415, 422, 429, 500, 503)

ROUTES = (
    Route(
        "/recall", "POST", routes.recall, "The k best items for a user, features, a history or a vector",
        RecallResponse, ANSWER, OF_BODY, RecallRequest, key="read", work=LIGHT, fast=True,
    ),
    Route(
        "/recall/batch", "POST", routes.recall_batch, "The answers to several queries",
        RecallBatchResponse, {"answers": [ANSWER]}, OF_BODY, RecallBatchRequest, key="read", fast=True,
    ),
    Route(
        "/similar", "POST", routes.similar, "The k items nearest to some items",
        RecallResponse, ANSWER | {"source": "similar"}, OF_BODY, SimilarRequest, key="read",
    ),
    Route(
        "/embed", "POST", routes.embed, "The vectors of queries",
        EmbedResponse, VECTORS, OF_BODY, EmbedRequest, key="read",
    ),
    Route(
        "/items/{item_id:id}", "PUT", routes.put_item, "Add or replace an item",
        Written, {"seq": 12}, (*OF_BODY, 409), ItemRequest,
    ),
    Route(
        "/items", "PUT", routes.put_items, "Add or replace items",
        Written, {"seq": 14}, (*OF_BODY, 409), ItemsRequest,
    ),
    Route(
        "/items/{item_id:id}", "DELETE", routes.delete_item, "Delete an item",
        Written, {"seq": 15}, (UPGRADE, 408, 409, 413, 422, 429, 500, 503),
    ),
    Route(
        "/events", "POST", routes.add_events, "Tell what users took",
        Added, {"added": 2}, (*OF_BODY, 409), EventsRequest,
    ),
    Route(
        "/impressions", "POST", routes.add_impressions, "Tell what users were shown",
        Added, {"added": 1}, (*OF_BODY, 409), ImpressionsRequest,
    ),
    Route(
        "/healthz", "GET", health.healthz, "Is the process alive",
        Status, {"status": "ok"}, key="none", work=PROBE,
    ),
    Route(
        "/readyz", "GET", health.readyz, "Is a bundle loaded, and does a search work",
        Ready, {"status": "ready"}, (UPGRADE, 500, 503), key="none", work=PROBE,
    ),
    Route(
        "/admin/reload", "POST", routes.reload, "Check for another active bundle now",
        Reloaded, {"active": "2026-11-20", "canary": None, "refused": {}}, (UPGRADE, 408, 413, 429, 500, 503),
        work=LONG,
    ),
    Route(
        "/metrics", "GET", health.metrics, "The metrics of all workers, for Prometheus",
        None, METRICS, key="read", work=PROBE,
    ),
)  # fmt: skip

OPEN = frozenset(route.path for route in ROUTES if route.key == "none")
READ = frozenset(route.path for route in ROUTES if route.key == "read")
WORK = {route.path: route.work for route in ROUTES}
FAST = {route.path: route.function for route in ROUTES if route.fast}
