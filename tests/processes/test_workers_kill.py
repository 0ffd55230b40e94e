"""`towers train --workers 2`: the run of one process, and after `kill -9` of any worker that of an undisturbed one."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from tests.support.worlds.interrupted import ENVIRONMENT, history, make_world, same, stages, training, weights

# Masks are drawn by each worker for itself, so one process trains with others.
UNMASKED = ("mask_share = 0.3", "mask_share = 0.0")
CLOSE = 1e-3


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    world = make_world(tmp_path_factory.mktemp("workers"))
    (world / "unmasked.toml").write_text((world / "recipe.toml").read_text().replace(*UNMASKED))
    return world


def command(words: list[str], workers: int) -> list[str]:
    return [sys.executable, "-m", "pipelines", *words, "--workers", str(workers)]


def ended(words: list[str], workers: int) -> str:
    done = subprocess.run(command(words, workers), env=ENVIRONMENT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stderr


@pytest.fixture(scope="module")
def whole(world: Path) -> Path:
    told = ended(training(world, world / "whole"), 2)
    assert told.count("next: ") == 1 and "on validation: " in told
    return world / "whole"


@pytest.mark.long
@pytest.mark.parametrize("recipe", ["unmasked.toml", "graph.toml"])
def test_two_workers_write_the_run_of_one_process(world: Path, recipe: str, tmp_path: Path) -> None:
    for name, workers in (("one", 1), ("two", 2)):
        ended(training(world, tmp_path / name, recipe), workers)
    for one, two in zip(history(tmp_path / "one"), history(tmp_path / "two"), strict=True):
        for epoch, other in zip(one, two, strict=True):
            assert epoch == pytest.approx(other, rel=CLOSE)
    for name, value in weights(tmp_path / "one").items():
        if value.dtype.kind == "f":
            np.testing.assert_allclose(weights(tmp_path / "two")[name], value, rtol=CLOSE, atol=CLOSE, err_msg=name)


@pytest.mark.long
@pytest.mark.parametrize("rank", [0, 1])
def test_a_killed_worker_ends_all_and_they_resume_to_the_same_weights(
    world: Path, whole: Path, rank: int, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    with subprocess.Popen(
        command(training(world, out), 2), env=ENVIRONMENT, stderr=subprocess.PIPE, text=True
    ) as parent:
        latest = tmp_path / ".run.unfinished" / "choose" / "checkpoints" / "latest"
        # After some steps of the first epoch, or of the second one.
        while not (latest.exists() and any(each.name.split("-")[2:3] > ["2"] for each in latest.iterdir())):
            assert parent.poll() is None, parent.communicate()[1][-3000:]
            time.sleep(0.02)
        os.kill(worker_of(parent.pid, rank), signal.SIGKILL)
        _, told = parent.communicate(timeout=120)
    assert parent.returncode == 1
    assert f"error: worker {rank} of 2 was ended by SIGKILL" in told
    assert not out.exists()
    ended(training(world, out), 2)
    same(out, whole)
    assert [stage["epochs"] for stage in stages(out)] == [stage["epochs"] for stage in stages(whole)]


def worker_of(parent: int, rank: int) -> int:
    """The process of a rank among the children of a launcher."""
    for child in Path(f"/proc/{parent}/task/{parent}/children").read_text().split():
        variables = Path(f"/proc/{child}/environ").read_bytes().split(b"\0")
        [config] = [each for each in variables if each.startswith(b"TF_CONFIG=")]
        if json.loads(config.partition(b"=")[2])["task"]["index"] == rank:
            return int(child)
    raise AssertionError(f"no worker {rank}")


@pytest.mark.long
def test_workers_of_another_recipe_are_refused(world: Path, tmp_path: Path) -> None:
    """By the worker itself, not by a model that is a little wrong."""
    from pipelines.training.local_workers import free_ports

    cluster = {"worker": [f"127.0.0.1:{port}" for port in free_ports(2)]}
    processes = []
    for rank in range(2):
        words = [*training(world, tmp_path / "run"), "--set", f"train.epochs={2 + rank}"]
        config = json.dumps({"cluster": cluster, "task": {"type": "worker", "index": rank}})
        processes.append(
            subprocess.Popen(
                [sys.executable, "-m", "pipelines", *words],
                env=ENVIRONMENT | {"TF_CONFIG": config},
                stderr=subprocess.PIPE,
                text=True,
            )
        )
    try:
        _, told = processes[1].communicate(timeout=120)
        assert processes[1].returncode == 2
        assert "worker 1: its recipe or data set is not that of the first worker" in told
    finally:
        for process in processes:
            process.kill()
            process.wait()


@pytest.mark.long
def test_workers_that_cannot_share_a_batch_are_refused(world: Path, tmp_path: Path) -> None:
    words = [*training(world, tmp_path / "run"), "--set", "train.batch_size=63"]
    done = subprocess.run(command(words, 2), env=ENVIRONMENT, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "error: train.batch_size: 2 workers cannot share the 63 examples" in done.stderr
