"""`/metrics`: what it counts, in one process; tests/processes/test_metrics_of_workers.py has several workers."""

import math
import random
import sys
import threading
from collections.abc import Iterator
from functools import partial
from importlib import metadata
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest

from serving.bundle.reader import Bundle
from serving.bundle.versions import Versions
from serving.http.app import create_app
from serving.recall.recaller import Recaller
from serving.search.exact import ExactIndex
from serving.settings import Settings
from serving.telemetry import metric_buffers, metrics
from serving.telemetry.metric_buffers import FLUSHING, ManyHistogram, MetricBuffer, count_many
from tests.support.exposition import Exposed
from tests.support.releases import allowed
from tests.support.worlds.serving import ArithmeticEncoder, no_towers, write_world


def plain_recaller(path: Path, **_: object) -> Recaller:
    bundle = Bundle.open(path, verify=False)
    return Recaller(bundle, ExactIndex(bundle.item_vectors), ArithmeticEncoder())


@pytest.fixture
def client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TestClient]:
    """Over a root of two bundles, whose towers are plain arithmetic."""
    for name in ("one", "two"):
        write_world(tmp_path / "root" / name, model_version=f"model-{name}", write_towers=no_towers)
    Versions(tmp_path / "root").activate("one")
    monkeypatch.setattr("serving.service.service.open_recaller", plain_recaller)
    with TestClient(create_app(Settings(bundle=tmp_path / "root"))) as client:
        yield client


def exposed(client: TestClient) -> Exposed:
    answer = client.get("/metrics")
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/plain; version=")
    return Exposed(answer.text)


def test_requests_are_counted_by_route_method_and_status(client: TestClient) -> None:
    before = exposed(client)
    for n in range(7):
        assert client.post("/recall", json={"user_id": f"u{n}", "k": 2}).status_code == 200
    assert client.post("/recall", json={"k": 0}).status_code == 422
    assert client.get("/recall").status_code == 405
    assert client.delete("/items/i1").status_code == 409
    assert client.delete("/items/a/b%20c?d=e").status_code == 409
    after = exposed(client)
    for labels, more in (
        ({"route": "/recall", "method": "POST", "status": "200"}, 7),
        ({"route": "/recall", "method": "POST", "status": "422"}, 1),
        ({"route": "/recall", "method": "GET", "status": "405"}, 1),
        ({"route": "/items/{item_id}", "method": "DELETE", "status": "409"}, 2),
        ({"route": "/metrics", "method": "GET", "status": "200"}, 1),
        ({}, 12),
    ):
        assert after.sum("towers_requests_total", **labels) - before.sum("towers_requests_total", **labels) == more
    for route, more in (("/recall", 9), ("/items/{item_id}", 2)):
        name = "towers_request_seconds_count"
        assert after.sum(name, route=route) - before.sum(name, route=route) == more


def test_callers_cannot_make_series(client: TestClient) -> None:
    before = exposed(client)
    for path in ("/nothing", "/recall/", "/admin/x", "/items", "/static/%00", "/%E2%82%AC"):
        client.get(path)
    for method in ("BREW", "X" * 100):
        client.request(method, "/recall")
    after = exposed(client)
    templates = {"/recall", "/recall/batch", "/similar", "/embed", "/items", "/items/{item_id}", "/events"}
    templates |= {"/healthz", "/readyz", "/metrics", "/admin/reload", "/docs", "/openapi.json", "unknown"}
    new = after.labels("towers_requests_total", "route") - before.labels("towers_requests_total", "route")
    assert new <= templates
    assert after.sum("towers_requests_total", route="unknown") >= 5
    assert after.labels("towers_requests_total", "method") <= metrics.METHODS | {"other"}
    assert after.sum("towers_requests_total", method="other") >= 2


def test_the_bundle_before_a_swap_reads_0(client: TestClient) -> None:
    def answering(name: str) -> list[float]:
        return exposed(client).of("towers_bundle_answers", role="active", bundle=name, version=f"model-{name}")

    assert answering("one") == [1] and answering("two") in ([], [0])
    root = client.app.state.settings.bundle
    Versions(root).activate("two")
    assert client.post("/admin/reload").status_code == 200
    client.app.state.service._measure()  # What the service does five times a second.
    assert answering("one") == [0] and answering("two") == [1]
    (root / "one" / "manifest.json").write_text("{}")
    Versions(root).file.write_text(Versions(root).file.read_text().replace('"two"', '"gone"', 1))
    assert client.post("/admin/reload").status_code == 409
    client.app.state.service._measure()
    assert answering("two") == [1]
    assert exposed(client).of("towers_bundles_refused") == [1]


def test_every_request_path_call_reaches_its_metric() -> None:
    before = Exposed(metrics.exposition()[0].decode())
    metrics.stage("search", 0.003)
    metrics.batch(5)
    metrics.answered(["user", "user"], "v-of-this-test")
    metrics.fetched([64])
    metrics.fell_back("exact")
    metrics.refused("concurrency")
    metrics.live(3, 2, 1)
    metrics.index_sampled("v-of-this-test", 100, 97)
    after = Exposed(metrics.exposition()[0].decode())

    def more(name: str, **labels: str) -> float:
        return after.sum(f"towers_{name}", **labels) - before.sum(f"towers_{name}", **labels)

    assert more("stage_seconds_count", stage="search") == 1
    assert math.isclose(more("stage_seconds_sum", stage="search"), 0.003)
    assert [more("stage_seconds_bucket", stage="search", le=le) for le in ("0.0025", "0.005")] == [0, 1]
    assert (more("batch_queries_count"), more("batch_queries_sum")) == (1, 5)
    assert more("queries_total", source="user", version="v-of-this-test") == 2
    assert (more("index_overfetch_items_count"), more("index_overfetch_items_sum")) == (1, 64)
    assert more("fallbacks_total", reason="exact") == 1
    assert more("requests_refused_total", reason="concurrency") == 1
    assert more("index_recall_wanted_total", version="v-of-this-test") == 100
    assert more("index_recall_found_total", version="v-of-this-test") == 97
    assert [after.of(f"towers_{name}") for name in ("items_live", "items_buried", "events_live")] == [[3], [2], [1]]


def test_a_request_is_measured_at_every_stage_and_an_unknown_user_counts_as_popular(client: TestClient) -> None:
    def more(body: dict[str, object]) -> tuple[set[str], float]:
        before = exposed(client)
        assert client.post("/recall", json=body).status_code == 200
        after = exposed(client)
        counts = {
            stage: [each.sum("towers_stage_seconds_count", stage=stage) for each in (before, after)]
            for stage in metrics.STAGES
        }
        popular = [each.sum("towers_fallbacks_total", reason="popular") for each in (before, after)]
        return {stage for stage, (one, other) in counts.items() if other == one + 1}, popular[1] - popular[0]

    always = set(metrics.STAGES) - {"encode"}
    assert more({"user_id": "u1"}) == (always, 0)
    assert more({"user_id": "nobody"}) == (always, 1)
    assert more({"history": ["i1", "i2"]}) == (set(metrics.STAGES), 0)


@pytest.mark.parametrize("size", [1, 5])
def test_a_batch_counts_its_queries(client: TestClient, size: int) -> None:
    before = exposed(client)
    queries = [{"user_id": f"u{n}", "k": 2} for n in range(size)]
    assert client.post("/recall/batch", json={"queries": queries}).status_code == 200
    assert client.post("/recall/batch", json={"queries": [{"k": 0}]}).status_code == 422
    after = exposed(client)
    more = [
        after.sum(f"towers_batch_queries_{of}") - before.sum(f"towers_batch_queries_{of}") for of in ("count", "sum")
    ]
    assert more == [1, size]


def test_in_flight_returns_to_what_it_was(client: TestClient) -> None:
    # A request for the metrics does not count.
    assert exposed(client).of("towers_requests_in_flight") == [0]
    client.post("/recall", content=b"{")
    client.post("/recall", json={"k": 1})
    assert exposed(client).of("towers_requests_in_flight") == [0]


def test_refusals_are_told_once() -> None:
    metrics.refusals()
    for reason in ("key", "concurrency", "key"):
        metrics.refused(reason)
    assert metrics.refusals() == {"key": 2, "concurrency": 1}
    assert metrics.refusals() == {}


def test_many_observations_are_as_single_ones() -> None:
    """Random amounts, those on a bound of a bucket among them, against prometheus-client's own `observe`."""
    random_numbers = random.Random(7)
    amounts = [10 ** random_numbers.uniform(-6, 3) for _ in range(500)] + [0.0, *metrics.SECONDS]
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    ManyHistogram("seconds", "s", ["stage"], registry=ours, buckets=metrics.SECONDS).labels("x").observe_many(amounts)
    single = Histogram("seconds", "s", ["stage"], registry=theirs, buckets=metrics.SECONDS).labels("x")
    for amount in amounts:
        single.observe(amount)
    found, expected = (Exposed(generate_latest(registry).decode()).samples for registry in (ours, theirs))
    assert [(each.name, each.labels) for each in found] == [(each.name, each.labels) for each in expected]
    for one, other in zip(found, expected, strict=True):
        assert math.isclose(one.value, other.value, rel_tol=1e-12)


def test_the_private_attributes_are_known_in_every_release_that_the_project_allows() -> None:
    assert allowed("prometheus-client") == list(metric_buffers.RELEASES), (
        "serving/telemetry/metric_buffers.py names the releases that its attributes were tested in; test them in those "
        "that pyproject.toml allows, and name these"
    )
    assert metadata.version("prometheus-client").rpartition(".")[0] in metric_buffers.RELEASES


def test_searches_before_a_bundle_answers_are_not_counted(client: TestClient) -> None:
    """Two bundles are opened and searched by the service itself; of all that only the caller's query counts."""
    before = exposed(client)
    client.post("/recall", json={"user_id": "u1"})
    Versions(client.app.state.settings.bundle).activate("two")
    assert client.post("/admin/reload").status_code == 200
    after = exposed(client)
    assert after.sum("towers_queries_total", version="model-two") == 0
    assert after.sum("towers_queries_total") - before.sum("towers_queries_total") == 1
    assert after.sum("towers_fallbacks_total") == before.sum("towers_fallbacks_total")


def test_other_threads_are_measured_meanwhile() -> None:
    registry = CollectorRegistry()
    counts = MetricBuffer(partial(count_many, Counter("some", "s", ["which"], registry=registry)))
    with metric_buffers.unmeasured():
        counts.add(("own",))
        other = threading.Thread(target=counts.add, args=(("other",),))
        other.start()
        other.join()
    counts.add(("own",))
    with FLUSHING:
        counts.write()
    found = Exposed(generate_latest(registry).decode())
    assert (found.sum("some_total", which="own"), found.sum("some_total", which="other")) == (1, 1)


def test_nothing_is_lost_between_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metric_buffers, "MOST_GATHERED", 64)
    switch = sys.getswitchinterval()
    registry = CollectorRegistry()
    amounts = MetricBuffer(ManyHistogram("amounts", "a", registry=registry, buckets=(1, 2)).observe_many)
    counts = MetricBuffer(partial(count_many, Counter("counts", "c", ["which"], registry=registry)))
    threads, each = 6, 4_000
    over = threading.Event()

    def add() -> None:
        for n in range(each):
            amounts.add(n % 3)
            counts.add(("even" if n % 2 == 0 else "odd",))

    def write() -> None:
        while not over.is_set():
            with FLUSHING:
                amounts.write()
                counts.write()

    writing = threading.Thread(target=write)
    adding = [threading.Thread(target=add) for _ in range(threads)]
    sys.setswitchinterval(1e-6)  # Threads change places as often as they can.
    try:
        for thread in (writing, *adding):
            thread.start()
        for thread in adding:
            thread.join()
        over.set()
        writing.join()
    finally:
        sys.setswitchinterval(switch)
    with FLUSHING:
        amounts.write()
        counts.write()
    found = Exposed(generate_latest(registry).decode())
    assert found.sum("amounts_count") == threads * each
    assert found.sum("amounts_bucket", le="1.0") == threads * sum(1 for n in range(each) if n % 3 <= 1)
    assert found.sum("counts_total", which="even") == found.sum("counts_total", which="odd") == threads * each / 2


def test_lists_that_nobody_writes_stay_short() -> None:
    histogram = ManyHistogram("short", "s", registry=CollectorRegistry(), buckets=(1,))
    amounts = MetricBuffer(histogram.observe_many)
    for _ in range(metric_buffers.MOST_GATHERED * 3 + 5):
        amounts.add(0.5)
    assert len(amounts._values) == 5
