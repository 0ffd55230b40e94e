"""`kill -9` while a bundle is published or activated: what is there is whole, and a service starts from it."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

from pipelines.bundles import fold
from serving.bundle.reader import Bundle
from serving.bundle.versions import Versions
from serving.catalogue.sqlite_journal import SqliteJournal
from tests.support.processes.running_service import RunningService
from tests.support.worlds.serving import save_towers, write_world

pytestmark = pytest.mark.long
ROUNDS = 10


def test_a_killed_publish_leaves_a_whole_bundle_or_none(tmp_path: Path) -> None:
    write_world(tmp_path / "bundle", write_towers=save_towers)
    journal = SqliteJournal.open(tmp_path / "state")
    journal.put_items([(f"n{n}", {"group": f"g{n % 4}", "place": 1.0}, {}) for n in range(500)])
    fold.run(tmp_path / "bundle", tmp_path / "state", tmp_path / "whole")
    words = ["bundles", "fold", "--bundle", tmp_path / "bundle", "--state", tmp_path / "state", "--out"]
    moment = random.Random(0)
    cut_off = halves = 0
    for number in range(ROUNDS):
        out = tmp_path / f"out{number}"
        process = subprocess.Popen([sys.executable, "-m", "pipelines", *map(str, words), str(out)])
        # Most of it is the start of Python: the moments that are tried begin with the first file beside `out`.
        while process.poll() is None and not any(tmp_path.glob(f"*{out.name}*")):
            time.sleep(0.001)
        time.sleep(moment.uniform(0, 0.5) * (number > 0))
        process.kill()
        assert process.wait() in (0, -signal.SIGKILL)
        cut_off += not out.exists()
        halves += any(tmp_path.glob(f".{out.name}.*.partial"))
        if out.exists():
            assert Bundle.open(out).manifest.items == Bundle.open(tmp_path / "whole").manifest.items
        fold.run(tmp_path / "bundle", tmp_path / "state", out, overwrite=True)
    assert cut_off > 0 and halves > 0


def test_a_service_killed_while_it_swaps_starts_from_a_whole_bundle(tmp_path: Path) -> None:
    for name in ("one", "two"):
        write_world(tmp_path / "root" / name, model_version=name, write_towers=save_towers)
    versions = Versions(tmp_path / "root")
    versions.activate("one")
    moment = random.Random(1)
    for number in range(ROUNDS):
        with RunningService(tmp_path / "root", tmp_path / "state") as service:
            answer = httpx.post(f"{service.url}/recall", json={"user_id": "u1"}).json()
            assert answer["model_version"] == versions.read().active
            versions.activate("two" if number % 2 == 0 else "one")
            time.sleep(moment.uniform(0, 1))
            os.killpg(service.process.pid, signal.SIGKILL)
