"""The train loop on TensorFlow's device: what is timed and what is not, the claim on losses, the goal of a GPU."""

import json
import subprocess
import sys
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from benchmarks.gpu import loop, rates, same_losses
from benchmarks.gpu.cells import SMALL, Cell, cells
from benchmarks.gpu.compare import share
from benchmarks.gpu.export import STEPS, batch_of, task_of
from tests.support.paths import ROOT

CELL = "sampled_softmax with in_batch"


class Clocked:
    """A trainer on a clock of its own: steps run behind the caller, as on a GPU, and only waiting for them takes time.

    A step takes 1 s, in the loop 1.25 s; of the warm-up each takes 100 s more.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = self.queued = 0.0
        self.done = self.steps = 0
        self.examples = SimpleNamespace(batch=lambda epoch, step: (np.zeros(1),))
        self.optimizer = SimpleNamespace(step=SimpleNamespace(numpy=self.wait))
        monkeypatch.setattr(time, "perf_counter", lambda: self.now)

    def wait(self) -> None:
        self.now, self.queued = self.now + self.queued, 0.0

    def _step(self, _: Any) -> None:
        self.queued += 1.0 + 100.0 * (self.steps % (rates.WARM_UP + 8) < rates.WARM_UP)
        self.steps += 1

    def fit(self, on_step: Callable[[int, float], None]) -> None:
        for place in range(1_000):
            self.queued += 1.25 + 100.0 * (place < rates.WARM_UP)
            self.done += 1
            on_step(self.done, float("nan"))
        pytest.fail("the round did not end")


def test_a_rate_is_of_the_steps_after_the_warm_up_and_waits_for_the_last_one(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer: Any = Clocked(monkeypatch)
    found = rates.measured(trainer, rounds=3, warm_up=rates.WARM_UP, steps=8)
    assert found == {"bare_steps_per_s": 1.0, "loop_steps_per_s": 0.8, "loop_to_bare": 0.8, "rounds": 3, "steps": 8}
    assert trainer.done == trainer.steps == 3 * (rates.WARM_UP + 8)


@pytest.mark.parametrize(("steps", "per_turn", "whole"), [(100, 62, 310), (100, 14, 112), (100, 2, 100), (6, 2, 10)])
def test_what_is_timed_is_a_whole_number_of_the_threads_turns(steps: int, per_turn: int, whole: int) -> None:
    assert rates.whole_turns(steps, per_turn) == whole


def test_losses_are_those_of_steps_without_a_graph() -> None:
    task = task_of(cells()[CELL], SMALL)
    expected = []
    for number in range(STEPS):
        with tf.GradientTape() as tape:
            loss = task.task.compute_loss(batch_of(task, SMALL, number))
        task.optimizer.apply(tape.gradient(loss, task.optimizer.variables_in_order))
        expected.append(loss.numpy())
    assert len(set(expected)) == STEPS
    found = same_losses.losses(cells()[CELL], same_losses.CPU, jit=False)
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_a_cell_is_far_where_one_loss_of_the_device_is(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu = np.array([2.0, 4.0], np.float32)

    def losses(_: Cell, device: str, *, jit: bool) -> Any:
        return cpu if device == same_losses.CPU else cpu + np.array([off if jit else 0.0, 0.0])

    monkeypatch.setattr(same_losses, "losses", losses)
    cell = cells()[CELL]
    for off, near in ((1e-4, True), (1e-3, False), (float("nan"), False)):
        found = same_losses.compared(cell, "GPU:0")
        assert (found["near"], found["step"]) == (near, 0.0)
        assert found["jit_compile"] == pytest.approx(off / 4 if np.isfinite(off) else np.inf)
    assert same_losses.compared(cell, same_losses.CPU) == {"near": True, "jit_compile": 0.0}
    assert (share(0.0, 0.0), share(1.0, 0.0)) == (0.0, np.inf)


def test_the_claim_is_about_every_cell_and_the_goal_about_a_gpu_alone() -> None:
    near, far, failed = {"near": True}, {"near": False}, dict[str, Any](error="no memory")
    for cell, holds in ((near, True), (far, False), (failed, False)):
        assert loop.claims_of({"a": near, "b": cell}) == {f"2 cells: losses of {STEPS} steps are the CPU's": holds}
    found: dict[str, dict[str, Any]] = {
        "a": {"loop_to_bare": 0.8},
        "b": {"loop_to_bare": 0.79},
        "c": {"refused": "sizes"},
        "d": failed,
    }
    assert loop.goals_of(found, "CPU:0") == {}
    assert loop.goals_of(found, "GPU:0") == {
        "a: the loop at least 0.8 of the bare step": True,
        "b: the loop at least 0.8 of the bare step": False,
    }


# As `python -m benchmarks.gpu.loop`, but a task makes one batch, so that a small world has enough of them.
RUN = """
import runpy
from towers.training import prefetch
prefetch.TASK_BYTES = 1
runpy.run_module("benchmarks.gpu.loop", run_name="__main__", alter_sys=True)
"""


@pytest.mark.long
def test_on_this_cpu_it_times_both_recipes_and_says_what_xla_refuses() -> None:
    sizes = ["--users", "300", "--items", "1000", "--events", "14000", "--rounds", "2", "--steps", "6"]
    words = ["--cells", CELL, "--batches", "256", "9000", "--dry", *sizes]
    done = subprocess.run([sys.executable, "-c", RUN, *words], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (line,) = (each for each in done.stdout.splitlines() if each.startswith('{"device"'))
    result = json.loads(line)
    assert result["device"] == {"name": "cpu", "place": "CPU:0"}
    assert result["goals"] == {}
    assert result["claims"] == {f"1 cells: losses of {STEPS} steps are the CPU's": True}
    assert 0 < result["cells"][CELL]["jit_compile"] < 5e-5
    found = result["rates"]
    for name in ("ids, batches of 256", "ids, batches of 256, jit_compile", "default, batches of 256"):
        assert found[name]["rounds"] == 2
        assert found[name]["bare_steps_per_s"] > 0 and found[name]["loop_steps_per_s"] > 0
    assert "changes from batch to batch" in found["default, batches of 256, jit_compile"]["refused"]
    # Four tasks are ahead; what is timed is five turns of the two threads.
    assert found["ids, batches of 9,000"] == {"few": f"an epoch has 1 steps, a round {rates.WARM_UP + 4 + 10}"}
