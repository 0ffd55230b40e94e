"""Two workers of Ray, of which one is killed, train the run of two undisturbed workers without Ray."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.pages.programs import LOCAL_RAY, needs, program, running
from tests.support.worlds.interrupted import ENVIRONMENT, make_world, same, training

LIMIT_S = 300


@pytest.mark.long
@needs("ray", "pip install -e '.[ray]'")
def test_workers_of_ray_resume_and_write_the_run_of_local_workers(tmp_path: Path) -> None:
    world = make_world(tmp_path)
    alone = [sys.executable, "-m", "pipelines", *training(world, world / "whole"), "--workers", "2"]
    subprocess.run(alone, env=ENVIRONMENT, check=True)
    text = program("docs/model/workers.md", "TensorflowTrainer", {"/shared/": f"{world}/", '{"CPU": 8}': '{"CPU": 1}'})
    out, end = world / "run", time.monotonic() + LIMIT_S
    latest = world / ".run.unfinished" / "choose" / "checkpoints" / "latest"
    with running(LOCAL_RAY + text, tmp_path) as process:
        while not any(latest.glob("*-step-*-best-*")):
            assert process.poll() is None and time.monotonic() < end, said(world)
            time.sleep(0.02)
        for each in commands(out):
            os.kill(each, signal.SIGKILL)
            break
        else:
            raise AssertionError(f"no process trains {out}")
        assert process.wait(timeout=LIMIT_S) == 0, said(world)
    assert "continuing the unfinished run" in (world / "said").read_text(encoding="utf-8")
    same(out, world / "whole")


def said(folder: Path) -> str:
    return (folder / "said").read_text(encoding="utf-8")[-5_000:]


def commands(out: Path) -> list[int]:
    """The processes of `towers train` that write or help to write a run."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes().decode(errors="replace").split("\0")
        except OSError:  # it has just ended
            continue
        if str(out) in words and "pipelines" in words:
            found.append(int(folder.name))
    return found
