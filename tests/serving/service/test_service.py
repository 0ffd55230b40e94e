"""Stops, refused bundles in the log, and the setting that limits the calls of the tower."""

import asyncio
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from serving.bundle.reader import Bundle
from serving.bundle.versions import Versions
from serving.catalogue.journal import ItemChange, JournalError
from serving.catalogue.sqlite_journal import SqliteJournal
from serving.recall.query import RecallQuery
from serving.recall.recaller import Recaller
from serving.search.exact import ExactIndex
from serving.service.service import Service
from serving.settings import Settings
from serving.telemetry import metrics
from tests.support.worlds.serving import ArithmeticEncoder, write_world

WAIT_S = 60


def opened(path: Path, **_: object) -> Recaller:
    bundle = Bundle.open(path)
    return Recaller(bundle, ExactIndex(bundle.item_vectors), ArithmeticEncoder())


def test_a_stop_waits_for_no_bundle_that_opens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("one", "two"):
        write_world(tmp_path / name)
    Versions(tmp_path).activate("one")
    opening, go_on = threading.Event(), threading.Event()

    def slow(path: Path, **_: object) -> Recaller:
        if path.name == "two":
            opening.set()
            assert go_on.wait(WAIT_S)
        bundle = Bundle.open(path)
        return Recaller(bundle, ExactIndex(bundle.item_vectors), ArithmeticEncoder())

    monkeypatch.setattr("serving.service.service.open_recaller", slow)
    service = Service(Settings(bundle=tmp_path))
    service.start()
    Versions(tmp_path).activate("two")
    reloading, waiting = service.reload(), service.reload()
    try:
        assert opening.wait(WAIT_S)
        stopping = threading.Thread(target=service.stop)
        stopping.start()
        stopping.join(WAIT_S / 2)
        assert not stopping.is_alive() and not reloading.done() and waiting.cancelled()
    finally:
        go_on.set()
    assert reloading.result(WAIT_S) == {}


def test_a_start_without_the_live_changes_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The journal opens, and is away from then on: deleted items would be recalled."""
    write_world(tmp_path / "bundle")
    service = Service(Settings(bundle=tmp_path / "bundle", state=tmp_path / "state"))

    def away(self: SqliteJournal, seq: int) -> list[ItemChange]:
        raise JournalError("the database is away")

    monkeypatch.setattr("serving.service.service.open_recaller", opened)
    monkeypatch.setattr(service.live, "encoder", lambda bundle: None)
    with monkeypatch.context() as patch:
        patch.setattr(SqliteJournal, "items_since", away)
        with pytest.raises(JournalError, match="the database is away"):
            service.start()
    service.start()
    service.stop()


def test_a_bundle_refused_while_it_runs_is_an_error_in_the_log_and_another_that_answers_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("one", "two", "three"):
        write_world(tmp_path / name)
    versions = Versions(tmp_path)
    versions.activate("one")
    monkeypatch.setattr("serving.service.service.open_recaller", opened)
    service = Service(Settings(bundle=tmp_path))
    service.start()
    try:
        versions.activate("two")
        (tmp_path / "two" / "item_vectors.npy").write_bytes(b"")
        with caplog.at_level("INFO", "uvicorn.error.serving"):
            assert service.reload().result(WAIT_S).keys() == {"two"}
            versions.activate("three")
            assert service.reload().result(WAIT_S) == {}
            versions.set_canary("two", 0.5)
            assert service.reload().result(WAIT_S).keys() == {"two"}
            write_world(tmp_path / "three", overwrite=True, model_version="world-2")  # as `towers forget` does
            service._check()  # a look: only a reload tells a refusal again
            assert service.refused.keys() == {"two"}
    finally:
        service.stop()
    told = [(each.levelname, each.getMessage().split(": ")[0]) for each in caplog.records]
    told = [each for each in told if each[0] != "WARNING"]  # of bundles without an index
    assert told == [
        ("ERROR", "refused"),
        ("INFO", "three answers now, in place of one"),
        ("ERROR", "refused"),
        ("INFO", "three answers now, in place of the earlier bundle of that name"),
    ]


def test_a_reload_tries_a_refused_bundle_again_without_a_change_of_active_json(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("one", "two"):
        write_world(tmp_path / name)
    vectors = tmp_path / "two" / "item_vectors.npy"
    content = vectors.read_bytes()
    monkeypatch.setattr("serving.service.service.open_recaller", opened)
    Versions(tmp_path).activate("one")
    service = Service(Settings(bundle=tmp_path))
    service.start()
    try:
        Versions(tmp_path).activate("two")
        vectors.write_bytes(b"")
        short = f"two/item_vectors.npy: truncated: 0 bytes, the manifest says {len(content)}"
        with caplog.at_level("INFO", "uvicorn.error.serving"):
            for _ in range(2):
                assert service.reload().result(WAIT_S) == {"two": short}
            vectors.write_bytes(content)
            assert service.reload().result(WAIT_S) == {}
        assert service.active_bundles.active.name == "two"
    finally:
        service.stop()
    told = [(each.levelname, each.getMessage()) for each in caplog.records if each.levelname != "WARNING"]
    assert told == [("ERROR", f"refused: {tmp_path}/{short}")] * 2 + [("INFO", "two answers now, in place of one")]


def test_what_was_turned_away_is_in_the_log_with_its_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    write_world(tmp_path / "one")
    monkeypatch.setattr("serving.service.service.open_recaller", opened)
    metrics.refusals()
    for reason in ("key", "concurrency", "key"):
        metrics.refused(reason)
    service = Service(Settings(bundle=tmp_path / "one"))
    service.start()

    def lines() -> list[object]:
        return [each.fields for each in caplog.records if each.getMessage().startswith("turned away")]

    async def main() -> None:
        watching = asyncio.create_task(service.watch())
        async with asyncio.timeout(WAIT_S):
            while not lines():
                await asyncio.sleep(0.01)
        watching.cancel()

    monkeypatch.setattr("serving.service.service.TELL_S", 0.01)
    try:
        with caplog.at_level("WARNING", "uvicorn.error.serving"):
            asyncio.run(main())
    finally:
        service.stop()
    assert lines() == [{"reason": "key", "count": 2}, {"reason": "concurrency", "count": 1}]


def test_a_call_of_the_tower_takes_at_most_so_many_queries_as_the_setting_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []

    class Counting(ArithmeticEncoder):
        def encode(self, requests: Sequence[Mapping[str, Any]]) -> np.ndarray:
            calls.append(len(requests))
            return super().encode(requests)

    def opened(path: Path, **_: object) -> Recaller:
        bundle = Bundle.open(path)
        return Recaller(bundle, ExactIndex(bundle.item_vectors), Counting())

    write_world(tmp_path / "bundle")
    monkeypatch.setattr("serving.service.service.open_recaller", opened)
    service = Service(Settings(bundle=tmp_path / "bundle", max_microbatch=2))
    service.start()
    calls.clear()  # the self-test's

    async def ask() -> list[list[str]]:
        queries = [RecallQuery(features={"country": "g1"}, k=place) for place in range(1, 6)]
        found = await asyncio.gather(*(service.batcher.answer(service.pick(None), query) for query in queries))
        return [each.ids for each in found]

    found = asyncio.run(ask())
    service.stop()
    assert found == [[f"i{1 + 4 * row}" for row in range(k)] for k in range(1, 6)]
    assert calls == [2, 2, 1]
