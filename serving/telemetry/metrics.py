"""The service's Prometheus metrics, correct across workers; `docs/service/operations.md` explains them.

With several workers `PROMETHEUS_MULTIPROC_DIR` names a directory that they share, and each reports for all. There an
observation costs 1 to 3 µs, and a request makes a dozen: so only the request count is written directly, the rest is
buffered, and `flush` writes it several times a second. A killed worker loses the timings since then, never a request.
"""

import os
from collections import Counter as Tally
from collections.abc import Iterable, Sequence
from functools import cache, partial
from pathlib import Path
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

from serving.telemetry.metric_buffers import FLUSHING, ManyHistogram, MetricBuffer, count_many
from serving.telemetry.metric_files import METRICS, reserve

Stage = Literal["parse", "wait", "plan", "encode", "search", "serialise"]
STAGES: tuple[Stage, ...] = get_args(Stage)
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH"})
SECONDS = (1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 1e-2, 2.5e-2, 5e-2, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
QUERIES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
ITEMS = (0, 8, 16, 32, 64, 128, 256, 512, 1_024, 2_048, 4_096, 16_384)

# Read at import, as in prometheus_client, which then chooses where values live.
SHARED = METRICS in os.environ
if SHARED:
    reserve(Path(os.environ[METRICS]))
REGISTRY = CollectorRegistry()
disable_created_metrics()  # type: ignore[no-untyped-call]


class Answering(NamedTuple):
    """One bundle that serves.

    Attributes:
        role: "active" or "canary".
        bundle: the name of its directory.
        version: its model version.
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
    "request_seconds", "From the start of a request to the end of its answer.", SECONDS, "route"
)
_in_flight = _gauge("requests_in_flight", "Requests being processed.", "livesum")
_refused = _counter("requests_refused_total", "Requests and connections rejected, by limit.", "reason")
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
_events_live = _gauge("events_live", "User events added since the bundle was made.", "livemax")
_workers = _gauge("workers", "Processes that answer.", "livesum")
_workers_wanted = _gauge("workers_wanted", "Processes that should answer.", "livemax")
_worker_starts = _counter("worker_starts_total", "Processes that began to answer.")
_recall_wanted = _counter("index_recall_wanted_total", "Items of sampled queries' exact answers.", "version")
_recall_found = _counter("index_recall_found_total", "Those of them that the index found.", "version")

_STAGES = {name: MetricBuffer(_stage_seconds.labels(name).observe_many) for name in STAGES}
_BATCH = MetricBuffer(_batch_queries.observe_many)
_FETCHED = MetricBuffer(_overfetch.observe_many)
_ANSWERED = MetricBuffer(partial(count_many, _queries))
_FALLBACKS = MetricBuffer(partial(count_many, _fallbacks))
_REFUSED = MetricBuffer(partial(count_many, _refused))
_GATHERED: list[MetricBuffer[Any]] = [*_STAGES.values(), _BATCH, _FETCHED, _ANSWERED, _FALLBACKS, _REFUSED]
_untold: Tally[str] = Tally()  # rejections not logged yet, by reason
_now_in_flight = 0
_told: set[Answering] = set()


def stage(name: Stage, seconds: float) -> None:
    """Records a stage of a request, of a query (`wait` until its micro-batch starts) or a micro-batch. Any thread."""
    _STAGES[name].add(seconds)


def batch(size: int) -> None:
    """Records the size of a micro-batch."""
    _BATCH.add(size)


def answered(sources: Iterable[str], version: str) -> None:
    """Counts answered queries by source (`serving.recall.query.Source`) and model version."""
    _ANSWERED.add(*[(source, version) for source in sources])


def fetched(further: Iterable[int]) -> None:
    """Records how many items beyond k the index was asked for, per query."""
    _FETCHED.add(*further)


def fell_back(reason: Literal["popular", "exact"], queries: int = 1) -> None:
    """Counts queries answered by popular items, or by a masked exact scan despite an approximate index."""
    _FALLBACKS.add(*[(reason,)] * queries)


def refused(reason: str) -> None:
    """Counts a rejected request or connection; the reason is one of a few fixed names of limits.

    Call it from the event loop's thread, like `refusals`.
    """
    _REFUSED.add((reason,))
    _untold[reason] += 1


def refusals() -> Tally[str]:
    """Returns this worker's rejections since the previous call, by reason; for the log."""
    told = _untold.copy()
    _untold.clear()
    return told


def entered() -> None:
    """Counts in a request that is being processed. Call it from the event loop's thread, like `left` and `served`."""
    global _now_in_flight
    _now_in_flight += 1


def left() -> None:
    """Counts it out, however it ended."""
    global _now_in_flight
    _now_in_flight -= 1


def served(route: str, method: str, status: int, seconds: float) -> None:
    """Records an answered request.

    Args:
        route: the template, `/items/{item_id}`, never a path: callers choose those.
        method: its HTTP method.
        status: its HTTP status.
        seconds: time since it began.
    """
    # A caller may send any word as a method: unknown ones share a label.
    _requests_of(route, method if method in METHODS else "other", status).inc()
    _seconds_of(route).add(seconds)


@cache
def _requests_of(route: str, method: str, status: int) -> Counter:
    return _requests.labels(route, method, str(status))


@cache
def _seconds_of(route: str) -> MetricBuffer[float]:
    seconds = MetricBuffer(_request_seconds.labels(route).observe_many)
    _GATHERED.append(seconds)
    return seconds


def started() -> None:
    """Marks this process as serving."""
    _workers.set(1)
    _worker_starts.inc()


def workers_wanted(count: int) -> None:
    """Sets how many processes should serve."""
    _workers_wanted.set(count)


def stopped() -> None:
    """Marks this process as stopped."""
    flush()
    _workers.set(0)
    answering([])


def answering(bundles: Sequence[Answering]) -> None:
    """Sets which bundles serve in this process; those set before then read 0."""
    for gone in _told - set(bundles):
        _answers.labels(*gone).set(0)
    for each in set(bundles) - _told:
        _answers.labels(*each).set(1)
    _told.clear()
    _told.update(bundles)


def bundles_refused(count: int) -> None:
    """Sets how many bundles are refused."""
    _bundles_refused.set(count)


def live(items: int, buried: int, events: int) -> None:
    """Sets the counts of live items, of bundle rows buried by changes or deletions, and of live events."""
    _items_live.set(items)
    _items_buried.set(buried)
    _events_live.set(events)


def index_sampled(version: str, wanted: int, found: int) -> None:
    """Counts a sampled query: the index found `found` of its `wanted` exact best items."""
    _recall_wanted.labels(version).inc(wanted)
    _recall_found.labels(version).inc(found)


def flush() -> None:
    """Writes the buffered values, so that every worker reports them."""
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
