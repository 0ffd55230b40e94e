"""SIGTERM, which a machine sends that is about to be taken away: a checkpoint, exit code 130, and no step is lost."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.support.paths import PROCESSES
from tests.support.worlds.interrupted import ENVIRONMENT, make_world, stages, stopped, training, weights


@pytest.mark.slow
def test_sigterm_saves_the_step_it_came_in(tmp_path: Path) -> None:
    world = make_world(tmp_path)
    # Of 9 steps an epoch, a checkpoint is made after 2 and 4.
    job = {"words": training(world, world / "run"), "points": [("step", "", 5)], "by": "term", "disk": str(world)}
    command = [sys.executable, str(PROCESSES / "interrupted_run.py"), json.dumps(job)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=ENVIRONMENT)
    first, second = json.loads(done.stdout)
    assert (first["ended"], second["ended"]) == ("130", "0")
    assert "interrupted; the last checkpoint is kept, and the same command resumes from there" in first["told"]
    assert "-step-5-best-0/" in first["left"]
    assert "going on with the unfinished run" in second["told"]


@pytest.mark.long
def test_a_run_stopped_by_sigterm_again_and_again_ends_with_the_same_weights(tmp_path: Path) -> None:
    world = make_world(tmp_path)
    stopped(training(world, world / "whole"), [])
    points = [("open", "features.json", 1), ("step", "", 3), ("write", "latest", 2), ("validation", "", 1)]
    points += [("write", "best", 1), ("step", "", 12), ("write", "final", 1), ("step", "", 7)]
    *ends, _ = stopped(training(world, world / "run"), points, by="term")
    assert [each["ended"] for each in ends] == ["130"] * len(points)
    assert [stage["best_epoch"] for stage in stages(world / "run")] == [3, 3]
    one, other = weights(world / "run"), weights(world / "whole")
    assert one.keys() == other.keys()
    for name, value in one.items():
        np.testing.assert_array_equal(value, other[name], err_msg=name)
