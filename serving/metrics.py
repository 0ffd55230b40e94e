"""What the service measures of itself, as Prometheus metrics that are right across workers.

In: what happened, from the request path. Out: the text that Prometheus reads; `docs/operations.md` explains it.

With several workers `PROMETHEUS_MULTIPROC_DIR` names a directory that they share, and every worker answers for all of
them. There one observation costs 1 to 3 µs, and a request makes a dozen. So only the count of requests is written at
once; all else is gathered in lists, and written by `flush` several times a second. What a killed worker had not written
is lost: at most that moment's timings, never a request.
"""

import os
from collections import Counter as Tally
from collections.abc import Iterable, Sequence
from functools import cache, partial
from typing import Any, Literal, NamedTuple, get_args

from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Gauge,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.multiprocess import MultiProcessCollector

from serving.gathered import FLUSHING, Gathered, ManyHistogram, count_many

Stage = Literal["parse", "wait", "plan", "encode", "search", "serialise"]
STAGES: tuple[Stage, ...] = get_args(Stage)
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH"})
SECONDS = (1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 1e-2, 2.5e-2, 5e-2, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
QUERIES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
ITEMS = (0, 8, 16, 32, 64, 128, 256, 512, 1_024, 2_048, 4_096, 16_384)

# As prometheus_client does: it chooses where values live when it is loaded.
SHARED = "PROMETHEUS_MULTIPROC_DIR" in os.environ
REGISTRY = CollectorRegistry()
disable_created_metrics()  # type: ignore[no-untyped-call]


class Answering(NamedTuple):
    """One bundle that answers.

    Attributes:
        role: "active" or "canary".
        bundle: the name of its directory.
        version: of its model.
    """

    role: str
    bundle: str
    version: str


def _counter(name: str, text: str, *labels: str) -> Counter:
    return Counter(f"towers_{name}", text, labels, registry=REGISTRY)


def _gauge(name: str, text: str, mode: Literal["livesum", "livemax"], *labels: str) -> Gauge:
    return Gauge(f"towers_{name}", text, labels, registry=REGISTRY, multiprocess_mode=mode)


def _histogram(name: str, text: str, buckets: Sequence[float], *labels: str) -> ManyHistogram:
    return ManyHistogram(f"towers_{name}", text, labels, registry=REGISTRY, buckets=buckets)


_requests = _counter("requests_total", "Requests answered.", "route", "method", "status")
_request_seconds = _histogram(
    "request_seconds", "From when a request is begun to the end of its answer.", SECONDS, "route"
)
_in_flight = _gauge("requests_in_flight", "Requests that are being answered.", "livesum")
_refused = _counter("requests_refused_total", "Requests and connections turned away, by limit.", "reason")
_stage_seconds = _histogram(
    "stage_seconds", "Time in one stage: of a request, or of the queries answered together.", SECONDS, "stage"
)
_batch_queries = _histogram("batch_queries", "Queries answered together.", QUERIES)
_queries = _counter("queries_total", "Queries answered, by what answered them.", "source", "version")
_overfetch = _histogram("index_overfetch_items", "Items asked of the index beyond k, for one query.", ITEMS)
_fallbacks = _counter("fallbacks_total", "Queries answered by popular items, or by an exact scan.", "reason")
_answers = _gauge("bundle_answers", "1 for a bundle that answers, 0 for one that did.", "livemax", *Answering._fields)
_bundles_refused = _gauge("bundles_refused", "Bundles that should answer and do not.", "livemax")
_items_live = _gauge("items_live", "Items added or replaced since the active bundle was made.", "livemax")
_items_buried = _gauge("items_buried", "Items of the active bundle that were deleted or replaced since.", "livemax")
_events_live = _gauge("events_live", "Users' events taken in since the bundle was made.", "livemax")
_workers = _gauge("workers", "Processes that answer.", "livesum")
_worker_starts = _counter("worker_starts_total", "Processes that began to answer.")
_recall_wanted = _counter("index_recall_wanted_total", "Items of sampled queries' exact answers.", "version")
_recall_found = _counter("index_recall_found_total", "Those of them that the index found.", "version")

_STAGES = {name: Gathered(_stage_seconds.labels(name).observe_many) for name in STAGES}
_BATCH = Gathered(_batch_queries.observe_many)
_FETCHED = Gathered(_overfetch.observe_many)
_ANSWERED = Gathered(partial(count_many, _queries))
_FALLBACKS = Gathered(partial(count_many, _fallbacks))
_REFUSED = Gathered(partial(count_many, _refused))
_GATHERED: list[Gathered[Any]] = [*_STAGES.values(), _BATCH, _FETCHED, _ANSWERED, _FALLBACKS, _REFUSED]
_untold: Tally[str] = Tally()  # turned away since the log was last told, by reason
_now_in_flight = 0
_told: set[Answering] = set()


def stage(name: Stage, seconds: float) -> None:
    """One stage is over: `parse` and `serialise` of one request, `wait` of one query until its micro-batch starts,
    `plan`, `encode` and `search` of one micro-batch. Any thread.
    """
    _STAGES[name].add(seconds)


def batch(size: int) -> None:
    """So many queries were answered together."""
    _BATCH.add(size)


def answered(sources: Iterable[str], version: str) -> None:
    """Queries were answered, each from a source (`serving.query.Source`), by a model version."""
    _ANSWERED.add(*[(source, version) for source in sources])


def fetched(further: Iterable[int]) -> None:
    """The index was asked for so many items beyond k, for each query."""
    _FETCHED.add(*further)


def fell_back(reason: Literal["popular", "exact"]) -> None:
    """Popular items, or a masked exact scan where there is an approximate index, answered a query."""
    _FALLBACKS.add((reason,))


def refused(reason: str) -> None:
    """A request or a connection was turned away; the reason is the name of a limit, out of a fixed few.

    In the thread of the event loop, as `refusals`.
    """
    _REFUSED.add((reason,))
    _untold[reason] += 1


def refusals() -> Tally[str]:
    """How many were turned away since this was last asked, by reason, in this worker; for the log."""
    told = _untold.copy()
    _untold.clear()
    return told


def entered() -> None:
    """A request came in. In the thread of the event loop, as `left` and `served`."""
    global _now_in_flight
    _now_in_flight += 1


def left() -> None:
    """A request is over, however it ended."""
    global _now_in_flight
    _now_in_flight -= 1


def served(route: str, method: str, status: int, seconds: float) -> None:
    """A request was answered.

    Args:
        route: the template, `/items/{item_id}`, never a path: a caller chooses those.
        method: its HTTP method.
        status: of the answer.
        seconds: since it was begun.
    """
    # A caller may send any word as a method: such have no metrics of their own.
    _requests_of(route, method if method in METHODS else "other", status).inc()
    _seconds_of(route).add(seconds)


@cache
def _requests_of(route: str, method: str, status: int) -> Counter:
    return _requests.labels(route, method, str(status))


@cache
def _seconds_of(route: str) -> Gathered[float]:
    seconds = Gathered(_request_seconds.labels(route).observe_many)
    _GATHERED.append(seconds)
    return seconds


def started() -> None:
    """This process begins to answer."""
    _workers.set(1)
    _worker_starts.inc()


def stopped() -> None:
    """This process answers no more."""
    flush()
    _workers.set(0)
    answering([])


def answering(bundles: Sequence[Answering]) -> None:
    """Which bundles answer in this process now; those told before read 0."""
    for gone in _told - set(bundles):
        _answers.labels(*gone).set(0)
    for each in set(bundles) - _told:
        _answers.labels(*each).set(1)
    _told.clear()
    _told.update(bundles)


def bundles_refused(count: int) -> None:
    """So many bundles should answer and do not."""
    _bundles_refused.set(count)


def live(items: int, buried: int, events: int) -> None:
    """Live items, rows of the active bundle that they or deletions bury, and events taken in."""
    _items_live.set(items)
    _items_buried.set(buried)
    _events_live.set(events)


def index_sampled(version: str, wanted: int, found: int) -> None:
    """Of a query's `wanted` exact best items the index found `found`."""
    _recall_wanted.labels(version).inc(wanted)
    _recall_found.labels(version).inc(found)


def flush() -> None:
    """Writes what was gathered, so that every worker's answer holds it."""
    with FLUSHING:
        for each in _GATHERED:
            each.write()
        _in_flight.set(_now_in_flight)


def exposition() -> tuple[bytes, str]:
    """All metrics of all workers, in Prometheus's text format.

    Returns:
        The body, and its content type.
    """
    flush()
    registry = REGISTRY
    if SHARED:
        registry = CollectorRegistry()
        MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
    return generate_latest(registry), CONTENT_TYPE_LATEST
