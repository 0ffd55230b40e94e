"""`kill -9` and SIGTERM, wherever they strike: the run that goes on has the same weights as an undisturbed one."""

import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from tests.support.paths import PROCESSES, ROOT
from tests.support.worlds.interrupted import ENVIRONMENT, Point, make_world, same, stages, stopped, training, weights


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_world(tmp_path_factory.mktemp("kill"))


@pytest.fixture(scope="module")
def whole(world: Path) -> Path:
    """The run without an interruption."""
    stopped(training(world, world / "whole"), [])
    # Each epoch is the best one so far: its weights are saved, those of the one before removed.
    assert [stage["best_epoch"] for stage in stages(world / "whole")] == [3, 3]
    return world / "whole"


# Each process goes on from what the one before left.
CHAINS = {
    "steps, validations and checkpoints": [
        ("open", "features.json", 1),
        ("step", "", 1),
        ("step", "", 4),  # of 9, saved after 2, 4, 6, 8
        ("write", "latest", 2),
        ("os.rename", "latest", 1),  # written, not yet in its place
        ("validation", "", 1),
        ("write", "best", 1),
        ("shutil.rmtree", "latest", 1),  # in its place, the one it replaces not yet removed
        ("os.rename", "latest", 3),
    ],
    "best, final, two stages and the end": [
        ("write", "latest", 5),  # the first epoch's end: its best weights are newer than the latest state
        ("shutil.rmtree", "best", 1),
        ("write", "final", 1),
        ("os.rename", "stage.json", 1),
        ("os.rename", "tensorboard", 1),  # between the two stages
        ("step", "", 7),
        ("write", "final", 1),
        ("shutil.rmtree", "latest", 1),  # the second stage is done, the clean-up has begun
        ("os.rename", "summary.json", 1),
        ("os.rmdir", "choose", 1),  # nothing is left of the first stage but the directory
        ("os.rename", "unfinished", 1),  # all that is left is to publish it
    ],
}


@pytest.mark.long
@pytest.mark.parametrize("points", CHAINS.values(), ids=CHAINS.keys())
def test_a_run_killed_at_every_turn_ends_with_the_same_weights(
    world: Path, whole: Path, points: list[Point], tmp_path: Path
) -> None:
    *ends, _ = stopped(training(world, tmp_path / "run"), points)
    assert [each["ended"] for each in ends] == ["SIGXFSZ" if what == "write" else "SIGKILL" for what, *_ in points]
    same(tmp_path / "run", whole)


@pytest.mark.long
def test_a_killed_run_over_the_graph_ends_with_the_same_weights(world: Path, tmp_path: Path) -> None:
    """Neighbours, co-occurrence, known positives and the exponent that each validation chooses."""
    stopped(training(world, tmp_path / "whole", "graph.toml"), [])
    points: list[Point] = [
        ("step", "", 4),
        ("write", "latest", 2),
        ("validation", "", 2),
        ("step", "", 25),
        ("write", "final", 1),
    ]
    *ends, _ = stopped(training(world, tmp_path / "run", "graph.toml"), points)
    assert [each["ended"] for each in ends] == ["SIGXFSZ" if what == "write" else "SIGKILL" for what, *_ in points]
    same(tmp_path / "run", tmp_path / "whole")


@pytest.mark.long
def test_a_run_killed_at_random_moments_ends_with_the_same_weights(world: Path, whole: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    seed = time.time_ns()
    moment = random.Random(seed)
    kills = 0
    while not out.exists():
        process = subprocess.Popen(
            [sys.executable, "-m", "pipelines", *training(world, out)],
            cwd=ROOT,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert process.stderr is not None
        # Most of a short run is the start of Python; the training begins with its first checkpoint.
        latest = tmp_path / ".run.unfinished" / "checkpoints" / "latest"
        while process.poll() is None and not latest.exists():
            time.sleep(0.01)
        if kills < 3:
            time.sleep(moment.uniform(0, 1.5) * (kills > 0))
            process.kill()
        told = process.communicate()[1]
        assert process.returncode in (0, -signal.SIGKILL), f"seed {seed}: {told}"
        kills += process.returncode != 0
    assert kills > 0
    same(out, whole)


@pytest.mark.long
def test_sigterm_saves_the_step_it_came_in(world: Path, tmp_path: Path) -> None:
    # Of 9 steps an epoch, a checkpoint is made after 2 and 4.
    job = {"words": training(world, tmp_path / "run"), "points": [("step", "", 5)], "by": "term", "disk": str(tmp_path)}
    command = [sys.executable, str(PROCESSES / "interrupted_run.py"), json.dumps(job)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=ENVIRONMENT)
    first, second = json.loads(done.stdout)
    assert (first["ended"], second["ended"]) == ("130", "0")
    assert "interrupted; the last checkpoint is kept, and the same command resumes from there" in first["told"]
    assert "-step-5-best-0/" in first["left"]
    assert "continuing the unfinished run" in second["told"]


@pytest.mark.long
def test_a_run_stopped_by_sigterm_again_and_again_ends_with_the_same_weights(
    world: Path, whole: Path, tmp_path: Path
) -> None:
    points = [("open", "features.json", 1), ("step", "", 3), ("write", "latest", 2), ("validation", "", 1)]
    points += [("write", "best", 1), ("step", "", 12), ("write", "final", 1), ("step", "", 7)]
    *ends, _ = stopped(training(world, tmp_path / "run"), points, by="term")
    assert [each["ended"] for each in ends] == ["130"] * len(points)
    assert [stage["best_epoch"] for stage in stages(tmp_path / "run")] == [3, 3]
    # Not the history: a signal may come between a step and its loss.
    one, other = weights(tmp_path / "run"), weights(whole)
    assert one.keys() == other.keys()
    for name, value in one.items():
        np.testing.assert_array_equal(value, other[name], err_msg=name)
