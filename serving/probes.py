"""What machines ask of the service: is it alive, can it answer, what does it measure.

In: GET /healthz, /readyz, /metrics. Out: a status, or the metrics as text. None of them waits behind recalls, and none
is refused; the first two need no key. So however many ask, one search and one scrape at a time answer them all.
"""

import asyncio
import logging
import time
import weakref
from collections.abc import Callable
from typing import Generic, TypeVar

import anyio.to_thread
from anyio import CapacityLimiter
from fastapi import Request, Response

from serving import metrics as measured
from serving.errors import RequestError
from serving.index import Index
from serving.index_watch import unwatched
from serving.logs import SERVER
from serving.recall import Recaller
from serving.service import Service

JSON = "application/json"
# What a search by /readyz has found is told for so long: well below the interval of any prober.
HELD_S = 0.5

T = TypeVar("T")

log = logging.getLogger(f"{SERVER}.serving")
# Threads of their own: full ones are no reason to take a service for dead, and no reason not to see that they are full.
_threads = CapacityLimiter(2)


class Shared(Generic[T]):
    """Work in a thread, one at a time, each for all who wait when it begins: a result is never older than a request.

    Args:
        work: blocking work.
    """

    def __init__(self, work: Callable[[], T]) -> None:
        self._work = work
        self._next: asyncio.Task[T] | None = None  # made, and not begun
        self._last: asyncio.Task[T] | None = None

    async def result(self) -> T:
        """What the work gave that began after this call."""
        if self._next is None or self._next.done():  # done before it began: its loop was stopped
            self._next = self._last = asyncio.create_task(self._run(self._last))
        # A caller who goes away leaves the others their result.
        return await asyncio.shield(self._next)

    async def _run(self, before: "asyncio.Task[T] | None") -> T:
        if before is not None and not before.done():
            await asyncio.wait([before])
        self._next = None  # Whoever comes from now on waits for the one after.
        return await anyio.to_thread.run_sync(self._work, limiter=_threads)


class _Search:
    """The searches of one index that probes ask for.

    Attributes:
        fault: why the last one says that it cannot answer, None where it can.
        good_until: how long that holds.
        running: the one that is being made.
    """

    def __init__(self) -> None:
        self.fault: str | None = None
        self.good_until = 0.0
        self.running: asyncio.Task[None] | None = None

    async def ask(self, recaller: Recaller) -> str | None:
        """What holds now, by a search where none was made just now."""
        if time.monotonic() >= self.good_until:
            if self.running is None or self.running.done():
                self.running = asyncio.create_task(self._make(recaller))
            await asyncio.shield(self.running)
        return self.fault

    async def _make(self, recaller: Recaller) -> None:
        try:
            finds = await anyio.to_thread.run_sync(_finds, recaller, limiter=_threads)
            self.fault = None if finds else "a search finds nothing"
        except Exception:
            log.exception("%s: a search failed", recaller.bundle.path)
            self.fault = "a search failed; see the log"
        self.good_until = time.monotonic() + HELD_S


# By index, not by bundle: another one is asked at once. Weakly, as one that answers no more must go.
_searches: weakref.WeakKeyDictionary[Index, _Search] = weakref.WeakKeyDictionary()
_scrape = Shared(measured.exposition)


async def healthz() -> Response:
    """The process is alive and its event loop turns."""
    return Response(b'{"status":"ok"}', media_type=JSON)


async def readyz(request: Request) -> Response:
    """Every bundle that answers finds something in a search made just now, and the service is not stopping."""
    service: Service | None = request.app.state.service
    if service is None:
        raise RequestError("no bundle is loaded yet", code="not_ready")
    if request.app.state.drain.begun:
        raise RequestError("the service is stopping", code="stopping")
    generations = service.generations
    for generation in filter(None, (generations.active, generations.canary)):
        search = _searches.setdefault(generation.opened.index, _Search())
        fault = await search.ask(generation.opened)
        if fault is not None:
            raise RequestError(fault, code="not_ready")
    return Response(b'{"status":"ready"}', media_type=JSON)


async def metrics() -> Response:
    """What all workers measured, in Prometheus's text format."""
    body, content_type = await _scrape.result()
    return Response(body, headers={"content-type": content_type})


def _finds(recaller: Recaller) -> bool:
    rows, _ = unwatched(recaller.index).search(recaller.bundle.recall_vectors[:1], 1)
    return bool(rows[0, 0] >= 0)
