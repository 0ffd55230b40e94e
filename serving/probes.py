"""What machines ask of the service: is it alive, can it answer, what does it measure.

In: GET /healthz, /readyz, /metrics. Out: a status, or the metrics as text. None of them waits behind recalls.
"""

import logging

import anyio.to_thread
from anyio import CapacityLimiter
from fastapi import Request, Response

from serving import metrics as measured
from serving.errors import RequestError
from serving.logs import SERVER
from serving.recall import Recaller
from serving.service import Service

JSON = "application/json"

log = logging.getLogger(f"{SERVER}.serving")
# Threads of their own: full ones are no reason to take a service for dead, and no reason not to see that they are full.
_threads = CapacityLimiter(2)


async def healthz() -> Response:
    """The process is alive and its event loop turns."""
    return Response(b'{"status":"ok"}', media_type=JSON)


async def readyz(request: Request) -> Response:
    """Every bundle that answers finds something in a search made now, and the service is not stopping."""
    service: Service | None = request.app.state.service
    if service is None:
        raise RequestError("no bundle is loaded yet", code="not_ready")
    if service.draining:
        raise RequestError("the service is stopping", code="stopping")
    generations = service.generations
    for generation in filter(None, (generations.active, generations.canary)):
        try:
            finds = await anyio.to_thread.run_sync(_finds, generation.opened, limiter=_threads)
        except Exception as error:
            log.exception("%s: a search failed", generation.opened.bundle.path)
            raise RequestError("a search failed; see the log", code="not_ready") from error
        if not finds:
            raise RequestError("a search finds nothing", code="not_ready")
    return Response(b'{"status":"ready"}', media_type=JSON)


async def metrics() -> Response:
    """What all workers measured, in Prometheus's text format."""
    body, content_type = await anyio.to_thread.run_sync(measured.exposition, limiter=_threads)
    return Response(body, headers={"content-type": content_type})


def _finds(recaller: Recaller) -> bool:
    rows, _ = recaller.index.search(recaller.bundle.item_vectors[:1], 1)
    return bool(rows[0, 0] >= 0)
