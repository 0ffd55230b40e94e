"""`kill -9` while operators activate, roll back and set canaries: `active.json` is whole, what was done stays done."""

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from serving.bundle.versions import Versions
from tests.serving.bundle.test_versions import Model
from tests.support.paths import PROCESSES, ROOT
from tests.support.worlds.serving import write_world

ROUNDS = 100


@pytest.mark.long
def test_a_killed_operator_leaves_active_json_as_it_was_or_as_it_was_to_become(tmp_path: Path) -> None:
    root = tmp_path / "root"
    write_world(root / "a")
    for name in ("b", "c", "d"):
        shutil.copytree(root / "a", root / name)
    Versions(root).activate("a")
    model = Model()
    model.activate("a")
    seed = time.time_ns() % 2**32
    command = [sys.executable, str(PROCESSES / "killed_operator.py"), str(root), str(ROUNDS), str(seed)]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, f"seed {seed}: {done.stderr[-2000:]}"
    rounds = [json.loads(line) for line in done.stdout.splitlines()]
    cut_off = 0
    for each in rounds:
        before = model.as_json()
        for what, *arguments in each["said"]:
            if what == "begin":
                before = json.loads(json.dumps(model.as_json()))
                assert getattr(model, arguments[0])(*arguments[1:]), f"seed {seed}"
        found = json.loads(each["active"])
        finished = each["said"][-1] == ["done"]
        assert found == model.as_json() or (not finished and found == before), f"seed {seed}: {each}"
        if found != model.as_json():
            model = Model()
            model.active, model.previous = found["active"], found["previous"]
            model.canary = found["canary"] and (found["canary"]["bundle"], found["canary"]["share"])
        cut_off += not finished
    assert [each["killed"] for each in rounds] == [9] * ROUNDS
    # Else nothing was tested: some were killed within a change, and some changes were made.
    assert cut_off > 0 and sum(line == ["done"] for each in rounds for line in each["said"]) > ROUNDS / 4
    # The next change takes away what the killed ones left.
    Versions(root).activate("a")
    assert {path.name for path in root.iterdir()} == {"a", "b", "c", "d", "active.json", ".lock"}
