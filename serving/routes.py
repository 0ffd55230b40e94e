"""The routes: bytes in, bytes out. What is known of recall lies in `serving.recall`, of changes in `serving.live`.

In: HTTP requests. Out: JSON, or a `RequestError` that `serving.app` turns into its status.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Annotated, Any, TypeVar

import anyio.to_thread
from fastapi import Path, Request, Response
from pydantic import BaseModel
from starlette.concurrency import run_in_threadpool

from serving.errors import RequestError
from serving.filtering import OVERFETCH_LIMIT
from serving.index import ExactIndex
from serving.journal import JournalError, UserEvent
from serving.query import EVERYTHING, RecallQuery
from serving.recall import Recaller
from serving.requests import (
    LONGEST_ID,
    ONE_LINE,
    EmbedRequest,
    EventsRequest,
    ItemRequest,
    ItemsRequest,
    RecallBatchRequest,
    RecallRequest,
    SimilarRequest,
    limited,
    parse,
)
from serving.schemas import Added, Reloaded, Written, answer_bytes, answers_bytes, vectors_bytes
from serving.service import Service

JSON = "application/json"
ItemId = Annotated[
    str, Path(min_length=1, max_length=LONGEST_ID, pattern=ONE_LINE, description="the item's id, URL-encoded")
]
# An exact scan of more numbers than this takes longer than a thread switch is worth.
INLINE_NUMBERS = 4_000_000

T = TypeVar("T")
Body = TypeVar("Body", bound=BaseModel)


async def recall(request: Request) -> Response:
    """Answers with the k best items; unknown users, and requests that name nothing known, get the popular ones."""
    service = service_of(request)
    query = limited(await _body(request, RecallRequest), service.settings.max_k)
    recaller = _pick(service, query)
    quick = _is_quick(recaller, query)
    recalled = recaller.recall(query) if quick else await run_in_threadpool(recaller.recall, query)
    return Response(answer_bytes(recalled), media_type=JSON)


async def recall_batch(request: Request) -> Response:
    """Answers several queries, each as `POST /recall` would; one wrong query refuses them all."""
    service = service_of(request)
    body = await _body(request, RecallBatchRequest)
    _at_most(body.queries, service.settings.max_batch, "queries")
    queries = [limited(each, service.settings.max_k, f"queries.{place}.") for place, each in enumerate(body.queries)]
    recallers = [_pick(service, query) for query in queries]

    def answer() -> bytes:
        answers: list[Any] = [None] * len(queries)
        for recaller in dict.fromkeys(recallers):
            places = [place for place, each in enumerate(recallers) if each is recaller]
            for place, recalled in zip(places, recaller.recall_many([queries[p] for p in places]), strict=True):
                answers[place] = recalled
        return answers_bytes(answers)

    return Response(await run_in_threadpool(answer), media_type=JSON)


async def similar(request: Request) -> Response:
    """Answers with the items nearest to the given ones, which do not come back themselves."""
    service = service_of(request)
    query = limited(await _body(request, SimilarRequest), service.settings.max_k)
    return Response(answer_bytes(await run_in_threadpool(service.pick(None).recall, query)), media_type=JSON)


async def embed(request: Request) -> Response:
    """Answers with the vectors that `POST /recall` would search with, of the active bundle."""
    service = service_of(request)
    body = await _body(request, EmbedRequest)
    _at_most(body.queries, service.settings.max_batch, "queries")
    queries = [
        RecallQuery(user_id=each.user_id, features=each.features, history=each.history, path=f"queries.{place}.")
        for place, each in enumerate(body.queries)
    ]
    recaller = service.pick(None)
    embedded = await run_in_threadpool(recaller.embed, queries)
    return Response(vectors_bytes(embedded, recaller.bundle.manifest.model_version), media_type=JSON)


async def put_item(request: Request, item_id: ItemId) -> Response:
    """Adds an item, or replaces all that is known of it. It is on the disk when the answer comes."""
    item = await _body(request, ItemRequest)
    return await _put(request, [(item_id, item.features, item.attributes)], "")


async def put_items(request: Request) -> Response:
    """Adds or replaces items: all of them, or none. They are on the disk when the answer comes."""
    body = await _body(request, ItemsRequest)
    return await _put(request, [(each.id, each.features, each.attributes) for each in body.items])


async def delete_item(request: Request, item_id: ItemId) -> Response:
    """Takes an item out of every answer; an unknown one stays unknown. It is on the disk when the answer comes."""
    service = service_of(request)
    seq = await _writing(service, lambda: service.live.delete([item_id]))
    return Response(Written(seq=seq).model_dump_json(), media_type=JSON)


async def add_events(request: Request) -> Response:
    """Tells what users took: their seen items and histories follow. All are on the disk when the answer comes."""
    service = service_of(request)
    body = await _body(request, EventsRequest)
    events = [UserEvent(each.id, each.user_id, each.item_id, each.time) for each in body.events]
    added = await _writing(service, lambda: service.live.add_events(events))
    return Response(Added(added=added).model_dump_json(), media_type=JSON)


async def healthz() -> Response:
    """The process is alive and its event loop turns."""
    return Response(b'{"status":"ok"}', media_type=JSON)


async def readyz(request: Request) -> Response:
    """A bundle is loaded, and a search in it, made now, gives an item."""
    recaller = service_of(request).pick(None)
    rows, _ = await run_in_threadpool(recaller.index.search, recaller.bundle.item_vectors[:1], 1)
    if rows[0, 0] < 0:
        raise RequestError("a search finds nothing", code="not_ready")
    return Response(b'{"status":"ready"}', media_type=JSON)


async def reload(request: Request) -> Response:
    """Looks for another active bundle or canary now; a bad one is refused, and what answered goes on.

    The other workers look by themselves, within a second.
    """
    service = service_of(request)
    refused = await asyncio.wrap_future(service.reload())
    generations = service.generations
    canary = generations.canary
    told = Reloaded(
        active=generations.active.name, canary=None if canary is None else canary.name, refused=dict(refused)
    )
    return Response(told.model_dump_json(), 409 if refused else 200, media_type=JSON)


def service_of(request: Request) -> Service:
    """The service behind a request.

    Raises:
        RequestError: no bundle is loaded.
    """
    service: Service | None = request.app.state.service
    if service is None:
        raise RequestError("no bundle is loaded yet", code="not_ready")
    return service


async def _body(request: Request, model: type[Body]) -> Body:
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != JSON:
        raise RequestError(f"send Content-Type: {JSON}", code="unsupported_media_type")
    max_bytes = service_of(request).settings.max_body_bytes
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > max_bytes:
            raise RequestError(f"the body is larger than {max_bytes} bytes", code="too_large")
    return parse(model, bytes(body))


async def _put(
    request: Request, items: Sequence[tuple[str, dict[str, Any], dict[str, Any]]], path: str = "items.{}."
) -> Response:
    service = service_of(request)
    _at_most(items, service.settings.max_items, "items")
    seq = await _writing(service, lambda: service.live.put(service.pick(None), items, path))
    return Response(Written(seq=seq).model_dump_json(), media_type=JSON)


async def _writing(service: Service, write: Callable[[], T]) -> T:
    try:
        return await anyio.to_thread.run_sync(write, limiter=service.writers)
    except JournalError as error:
        # The path is the operator's; the caller learns that nothing was kept.
        raise RequestError("the change could not be kept; nothing was changed", code="not_written") from error


def _at_most(values: Sequence[object], most: int, field: str) -> None:
    if len(values) > most:
        raise RequestError(f"{field}: must hold at most {most}, got {len(values)}", field=field)


def _pick(service: Service, query: RecallQuery) -> Recaller:
    """What answers a query. A caller's vector comes from `POST /embed`, and so from the active bundle's towers."""
    return service.pick(None if query.vector is not None else query.user_id)


def _is_quick(recaller: Recaller, query: RecallQuery) -> bool:
    """Whether the answer is cheaper than handing the work to a thread: a stored vector and a fast search."""
    if query.features or query.history or query.diversity or query.segment or query.wanted is not EVERYTHING:
        return False
    view = recaller.catalogue.live.view
    # Buried rows make a filter of the search, and a new order of the popular items.
    if len(view.buried) or view.vectors.shape[1] * len(view.living) > INLINE_NUMBERS:
        return False
    if recaller.planner.users.items(query.user_id):
        return False
    bundle = recaller.bundle
    row = None if query.user_id is None else bundle.query_rows.get(query.user_id)
    excluded = len(query.exclude) + (len(bundle.seen(row)) if row is not None else 0)
    scans = isinstance(recaller.index, ExactIndex) or excluded > OVERFETCH_LIMIT
    return not scans or bundle.item_vectors.size <= INLINE_NUMBERS
