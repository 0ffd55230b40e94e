"""The routes: `serving.recall.recaller` answers queries, `serving.catalogue.updates` applies changes.

They return JSON or raise a `RequestError`, which `serving.http.app` turns into an HTTP error.
"""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from time import perf_counter
from typing import Annotated, Any, TypeVar
from urllib.parse import unquote_to_bytes

import anyio.to_thread
from fastapi import Depends, Path, Request, Response
from pydantic import BaseModel
from starlette.concurrency import run_in_threadpool

from serving.errors import RequestError, refuse_unknown_column
from serving.http import change_requests as changes
from serving.http.fast_routes import Json
from serving.http.media_type import refuse_other_media_types
from serving.http.request_errors import refuse_many
from serving.http.requests import (
    LONGEST_ID,
    NOT_BLANK,
    ONE_LINE,
    EmbedRequest,
    RecallBatchRequest,
    RecallRequest,
    SimilarRequest,
    described,
    limited,
    parse,
    refuse_large,
    refuse_many_conditions,
)
from serving.http.responses import Added, Reloaded, Written, answer_bytes, answers_bytes, vectors_bytes
from serving.recall.query import EVERYTHING, Recalled, RecallQuery
from serving.recall.recaller import Recaller
from serving.search.exact import ExactIndex
from serving.search.filtered import OVERFETCH_LIMIT, SMALLEST_K, to_fetch
from serving.service.service import Service, service_of
from serving.telemetry import metrics

# An exact scan of more numbers than this takes longer than a thread switch.
INLINE_NUMBERS = 4_000_000
# Looking up more ids than this holds the event loop for a millisecond.
INLINE_IDS = 1_000
# Look-ups hold the interpreter: more threads of them would leave the event loop no time.
LOOK_UPS = anyio.CapacityLimiter(2)

T = TypeVar("T")
Body = TypeVar("Body", bound=BaseModel)


def _item_id(pattern: str) -> Any:
    path = Path(min_length=1, max_length=LONGEST_ID, pattern=pattern, description="the item's id, URL-encoded")

    async def read(request: Request, item_id: Annotated[str, path]) -> str:
        # The server replaces what is not UTF-8, so that two ids of other bytes would be one item.
        try:
            unquote_to_bytes(request.scope["raw_path"]).decode()
        except UnicodeDecodeError:
            raise RequestError("item_id: must be URL-encoded UTF-8, got other bytes", field="item_id") from None
        return item_id

    return Depends(read)


NewId = Annotated[str, _item_id(NOT_BLANK)]
OldId = Annotated[str, _item_id(ONE_LINE)]  # of a bundle of your own vectors, perhaps


async def recall(request: Request) -> Response:
    """Answers with the k best items; unknown users, and requests that name nothing known, get the popular ones."""
    service = service_of(request)
    query = limited(await _body(request, RecallRequest), service.settings)
    if query.user_id is not None:
        request.scope.setdefault("state", {})["user_id"] = query.user_id
    recaller = _pick(service, query)
    many_ids = query.listed > INLINE_IDS
    if not many_ids and _is_fast(recaller, query):
        recalled = await service.batcher.answer(recaller, query)
    else:
        recalled = await anyio.to_thread.run_sync(recaller.recall, query, limiter=LOOK_UPS if many_ids else None)
    return await _answered(recalled, query)


async def recall_batch(request: Request) -> Response:
    """Answers several queries, each as `POST /recall` would; one invalid query fails the request."""
    service = service_of(request)
    body = await _body(request, RecallBatchRequest, queries=service.settings.max_batch)
    queries = [limited(each, service.settings, f"queries.{place}.") for place, each in enumerate(body.queries)]
    refuse_large(queries, service.settings)
    refuse_many_conditions(queries, service.settings)
    recallers = [_pick(service, query) for query in queries]

    def answer() -> bytes:
        answers: dict[int, Recalled] = {}
        for recaller in dict.fromkeys(recallers):
            places = [place for place, each in enumerate(recallers) if each is recaller]
            metrics.batch(len(places))
            answers |= zip(places, recaller.recall_many([queries[place] for place in places]), strict=True)
        serialise = partial(answers_bytes, columns=[query.attributes for query in queries])
        return _serialised(serialise, [answers[place] for place in sorted(answers)])

    return Json(await run_in_threadpool(answer))


async def similar(request: Request) -> Response:
    """Returns the items nearest to the given ones, without those."""
    service = service_of(request)
    query = limited(await _body(request, SimilarRequest), service.settings)
    return await _answered(await run_in_threadpool(_pick(service, query).recall, query), query)


async def embed(request: Request) -> Response:
    """Returns the vectors that `POST /recall` would search with, from the active bundle."""
    service = service_of(request)
    body = await _body(request, EmbedRequest, queries=service.settings.max_batch)
    queries = [described(each, service.settings, f"queries.{place}.") for place, each in enumerate(body.queries)]
    recaller = service.pick(None)
    embedded = await run_in_threadpool(recaller.embed, queries)
    return Json(vectors_bytes(embedded, recaller.bundle.manifest.model_version))


async def put_item(request: Request, item_id: NewId) -> Response:
    """Adds an item, or replaces all that is known about it. The change is on disk before the response."""
    item = await _body(request, changes.ItemRequest)
    return await _put(request, [(item_id, item.features, item.attributes)], "")


async def put_items(request: Request) -> Response:
    """Adds or replaces items: all of them, or none. They are on disk before the response."""
    body = await _body(request, changes.ItemsRequest, items=service_of(request).settings.max_items)
    return await _put(request, [(each.id, each.features, each.attributes) for each in body.items])


async def delete_item(request: Request, item_id: OldId) -> Response:
    """Removes an item from every answer; an unknown id is no error. The change is on disk before the response."""
    service = service_of(request)
    seq = await changes.write(request, lambda: service.live.delete([item_id]))
    return Json(Written(seq=seq).model_dump_json().encode())


async def add_events(request: Request) -> Response:
    """Adds what users took to their seen items and histories. All events are on disk before the response."""
    service = service_of(request)
    events = changes.user_events(await _body(request, changes.EventsRequest), service.settings)
    added = await changes.write(request, lambda: service.live.add_events(events))
    return Json(Added(added=added).model_dump_json().encode())


async def add_impressions(request: Request) -> Response:
    """Adds what users were shown, for training and figures; changes no answer. All are on disk before the response."""
    service = service_of(request)
    shown = changes.impressions(await _body(request, changes.ImpressionsRequest), service.settings)
    added = await changes.write(request, lambda: service.live.add_impressions(shown))
    return Json(Added(added=added).model_dump_json().encode())


async def reload(request: Request) -> Response:
    """Checks at once for another active bundle or canary; a bad one is refused, and the previous ones stay in use.

    The other workers check on their own within a second.
    """
    service = service_of(request)
    refused = await asyncio.wrap_future(service.reload())
    active_bundles = service.active_bundles
    canary = active_bundles.canary
    told = Reloaded(
        active=active_bundles.active.name, canary=None if canary is None else canary.name, refused=dict(refused)
    )
    return Json(told.model_dump_json().encode(), 409 if refused else 200)


async def _body(request: Request, model: type[Body], **most: int) -> Body:
    """The body of a request; `most` is how many values a list in it may hold."""
    refuse_other_media_types(request.scope["headers"])
    body: bytes = (await request.receive())["body"]  # whole: `serving.protocol.limits` has waited for it
    started = perf_counter()
    for field, count in most.items():
        refuse_many(body, field, count)
    parsed = parse(model, body)
    metrics.stage("parse", perf_counter() - started)
    return parsed


def _serialised(serialise: Callable[[T], bytes], answer: T) -> bytes:
    started = perf_counter()
    content = serialise(answer)
    metrics.stage("serialise", perf_counter() - started)
    return content


async def _answered(recalled: Recalled, query: RecallQuery) -> Response:
    if not query.attributes:
        return Json(_serialised(answer_bytes, recalled))
    # In a thread: the first request for an item column waits until all of them are read.
    return Json(await run_in_threadpool(_serialised, partial(answer_bytes, columns=query.attributes), recalled))


async def _put(
    request: Request, items: Sequence[tuple[str, dict[str, Any], dict[str, Any]]], path: str = "items.{}."
) -> Response:
    service = service_of(request)
    seq = await changes.write(request, lambda: service.live.put(service.pick(None).catalogue, items, path))
    return Json(Written(seq=seq).model_dump_json().encode())


def _pick(service: Service, query: RecallQuery) -> Recaller:
    """The recaller for a query. A caller's vector comes from `POST /embed`, and so from the active bundle's towers.

    Raises:
        RequestError: a requested item column does not exist.
    """
    recaller = service.pick(None if query.vector is not None else query.user_id)
    for name in query.attributes:
        refuse_unknown_column(name, recaller.catalogue.kinds, f"{query.path}attributes")
    return recaller


def _is_fast(recaller: Recaller, query: RecallQuery) -> bool:
    """Whether the event loop answers a query in a micro-batch; other queries run in a thread of the pool.

    The search must be cheaper than a thread switch. The tower has its own thread and encodes many queries at a time.
    """
    if query.diversity or query.segment or query.attributes or query.wanted is not EVERYTHING:
        return False
    view = recaller.catalogue.live.view
    # Beside a few buried rows the index finds enough others; of many, a query may find nothing else.
    if len(view.buried) > SMALLEST_K or (view.ids and view.vectors.shape[1] * len(view.living) > INLINE_NUMBERS):
        return False
    bundle = recaller.bundle
    if bundle.item_vectors.size <= INLINE_NUMBERS:
        return True
    if isinstance(recaller.index, ExactIndex):
        return False
    row = None if query.user_id is None else bundle.query_rows.get(query.user_id)
    excluded = len(query.exclude) + len(query.history or ()) + (0 if row is None else len(bundle.seen(row)))
    if excluded > OVERFETCH_LIMIT:
        return False
    items, buried = len(bundle.item_vectors), len(view.buried)
    return not buried or to_fetch(items, items - buried, query.k, excluded) is not None
