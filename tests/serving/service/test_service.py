"""A stop waits for running work, but not for a bundle that opens."""

import threading
from pathlib import Path

import pytest

from serving.bundle.reader import Bundle
from serving.bundle.versions import Versions
from serving.recall.recaller import Recaller
from serving.search.exact import ExactIndex
from serving.service.service import Service
from serving.settings import Settings
from tests.support.worlds.serving import ArithmeticEncoder, write_world

WAIT_S = 60


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
