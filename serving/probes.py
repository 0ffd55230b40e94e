"""What machines ask of the service: is it alive, can it answer, what does it measure.

In: GET /healthz, /readyz, /metrics. Out: a status, or the metrics as text. None of them waits behind recalls, and none
is refused; the first two need no key. So however many ask, one search and one scrape at a time answer them all.
"""

import asyncio
import logging
import math
import time
import weakref
from collections.abc import Callable
from functools import partial
from typing import Generic, TypeVar

import anyio.to_thread
from anyio import CapacityLimiter
from fastapi import Request, Response

from serving import metrics as measured
from serving.direct import Json
from serving.errors import RequestError
from serving.index import Index
from serving.index_watch import unwatched
from serving.logs import SERVER
from serving.recall import Recaller
from serving.service import Service

# What a search by /readyz has found is told for so long: well below the interval of any prober.
HELD_S = 0.5

T = TypeVar("T")

log = logging.getLogger(f"{SERVER}.serving")
# Threads of their own: full ones are no reason to take a service for dead, and no reason not to see that they are full.
_threads = CapacityLimiter(2)


class Shared(Generic[T]):
    """Work in a thread, one piece at a time, each for all who wait when it begins."""

    def __init__(self) -> None:
        self._next: asyncio.Task[T] | None = None  # made, and not begun
        self._last: asyncio.Task[T] | None = None
        self._made_at = -math.inf

    async def result(self, work: Callable[[], T], held_s: float = 0.0) -> T:
        """What the work gave that began after this call.

        Args:
            work: the same for all who ask; blocking.
            held_s: how many seconds ago it may have ended instead.
        """
        if self._next is None or self._next.done():  # done before it began: its loop was stopped
            self._next = self._last = asyncio.create_task(self._run(work, held_s, self._last))
        # A caller who goes away leaves the others their result.
        return await asyncio.shield(self._next)

    async def _run(self, work: Callable[[], T], held_s: float, before: "asyncio.Task[T] | None") -> T:
        if before is not None and not before.done():
            await asyncio.wait([before])
        self._next = None  # Later callers wait for the next one.
        if time.monotonic() - self._made_at >= held_s:
            self._made = await anyio.to_thread.run_sync(work, limiter=_threads)
            self._made_at = time.monotonic()
        return self._made


# By index, not by bundle: another one is asked at once. Weakly, as one that answers no more must go.
_searches: weakref.WeakKeyDictionary[Index, Shared[str | None]] = weakref.WeakKeyDictionary()
_scrape: Shared[tuple[bytes, str]] = Shared()


async def healthz() -> Response:
    """The process is alive and its event loop turns."""
    return Json(b'{"status":"ok"}')


async def readyz(request: Request) -> Response:
    """Every bundle that answers finds something in a search made just now, and the service is not stopping."""
    service: Service | None = request.app.state.service
    if service is None:
        raise RequestError("no bundle is loaded yet", code="not_ready")
    if request.app.state.drain.begun:
        raise RequestError("the service is stopping", code="stopping")
    for generation in service.generations.answering.values():
        search = _searches.setdefault(generation.opened.index, Shared())
        fault = await search.result(partial(_fault, generation.opened), HELD_S)
        if fault is not None:
            raise RequestError(fault, code="not_ready")
    return Json(b'{"status":"ready"}')


async def metrics() -> Response:
    """What all workers measured, in Prometheus's text format."""
    body, content_type = await _scrape.result(measured.exposition)
    return Response(body, headers={"content-type": content_type})


def _fault(recaller: Recaller) -> str | None:
    """Why a search made now says that a bundle cannot answer, None where it can."""
    try:
        rows, _ = unwatched(recaller.index).search(recaller.bundle.recall_vectors[:1], 1)
    except Exception:
        log.exception("%s: a search failed", recaller.bundle.path)
        return "a search failed; see the log"
    return None if rows[0, 0] >= 0 else "a search finds nothing"
