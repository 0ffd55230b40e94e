"""Liveness, readiness and metrics: GET /healthz, /readyz and /metrics.

They never wait behind recalls and are never rejected by a limit; the first two need no key. So that many callers cost
little, one search and one scrape at a time answer them all.
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

from serving.errors import RequestError
from serving.http.fast_routes import Json
from serving.http.responses import Ready
from serving.recall.recaller import Recaller
from serving.search.index import Index
from serving.service.recall_monitor import unsampled
from serving.service.service import service_of
from serving.telemetry import metrics as measured
from serving.telemetry.logs import SERVICE

# How long /readyz reuses the result of a search: well below the interval of any prober.
HELD_S = 0.5

T = TypeVar("T")

log = logging.getLogger(SERVICE)
# Separate threads: a busy service must not look dead, and its metrics must stay readable.
_threads = CapacityLimiter(2)


class Shared(Generic[T]):
    """Runs work in a thread, one run at a time; each run serves all callers waiting when it begins."""

    def __init__(self) -> None:
        self._next: asyncio.Task[T] | None = None  # created, but not begun
        self._last: asyncio.Task[T] | None = None
        self._made_at = -math.inf

    async def result(self, work: Callable[[], T], held_s: float = 0.0) -> T:
        """The result of a run that begins after this call, or of a recent one.

        Args:
            work: the blocking work, the same for all callers.
            held_s: how many seconds ago a run may have ended for its result to be reused.
        """
        if self._next is None or self._next.done():  # done before it began: its loop was stopped
            self._next = self._last = asyncio.create_task(self._run(work, held_s, self._last))
        # A caller who disconnects must not cancel the work of the others.
        return await asyncio.shield(self._next)

    async def _run(self, work: Callable[[], T], held_s: float, before: "asyncio.Task[T] | None") -> T:
        if before is not None and not before.done():
            await asyncio.wait([before])
        self._next = None  # Later callers wait for the next one.
        if time.monotonic() - self._made_at >= held_s:
            self._made = await anyio.to_thread.run_sync(work, limiter=_threads)
            self._made_at = time.monotonic()
        return self._made


# By index, not by bundle: a new one is searched at once. Weak, so that a retired index is freed.
_searches: weakref.WeakKeyDictionary[Index, Shared[str | None]] = weakref.WeakKeyDictionary()
_scrape: Shared[tuple[bytes, str]] = Shared()


async def healthz() -> Response:
    """The process is alive and its event loop runs."""
    return Json(b'{"status":"ok"}')


async def readyz(request: Request) -> Response:
    """Ready: a search in every bundle in use finds something, and the service is not stopping.

    If a bundle that should answer was refused, the answer names it and the one that answers instead.
    """
    service = service_of(request)
    if request.app.state.drain.begun:
        raise RequestError("the service is stopping", code="stopping")
    for active in service.active_bundles.answering.values():
        search = _searches.setdefault(active.opened.index, Shared())
        fault = await search.result(partial(_fault, active.opened), HELD_S)
        if fault is not None:
            raise RequestError(fault, code="not_ready")
    if refused := list(service.refused):
        ready = Ready(status="ready", active=service.active_bundles.active.name, refused=refused)
        return Json(ready.model_dump_json().encode())
    return Json(b'{"status":"ready"}')


async def metrics() -> Response:
    """The metrics of all workers, in Prometheus's text format."""
    body, content_type = await _scrape.result(measured.exposition)
    return Response(body, headers={"content-type": content_type})


def _fault(recaller: Recaller) -> str | None:
    """Why a bundle cannot answer, according to a search made now; None if it can."""
    try:
        rows, _ = unsampled(recaller.index).search(recaller.bundle.recall_vectors[:1], 1)
    except Exception:
        log.exception("%s: a search failed", recaller.bundle.path)
        return "a search failed; see the log"
    if rows[0, 0] >= 0:
        return None
    log.error("%s: a search finds nothing", recaller.bundle.path)
    return "a search finds nothing"
