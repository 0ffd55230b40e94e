"""Steps a second of a training, bare and in the whole loop, in rounds that take turns.

In: a recipe and a data set. Out: medians. Bare is the compiled step on one batch that stays on the device; the loop is
the one of `towers train`, whose threads prepare the batches, which then go to the device, and which looks at the losses
now and then. Both wait for the device before and after what is timed.
"""

import statistics
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from pipelines.dataset.dataset import Dataset
from pipelines.training.check import check_recipe
from pipelines.training.stage import Stage, build_trainer
from towers.config.recipe import Config
from towers.errors import ConfigError
from towers.training.prefetch import TASKS, THREADS, as_tensors
from towers.training.trainer import Trainer

WARM_UP = 5
TURNS = 5  # of the threads that are timed at least: if they end their tasks together, those of a turn come at once


class RoundEndedError(Exception):
    """Ends a training after its round."""


def rates(config: Config, data: Dataset, rounds: int, steps: int) -> dict[str, Any]:
    """Both rates, and the loop's as a share of the bare one.

    Args:
        config: a recipe, whose features may be derived.
        data: its training events; an epoch holds at least one round.
        rounds: at most; as many as an epoch holds.
        steps: of a round, at least.

    Returns:
        The figures, or why there are none: ``refused`` says what XLA cannot compile, ``few`` that there are too few
        events for the size of the batches.
    """
    with tempfile.TemporaryDirectory() as folder:
        try:
            stage = Stage("train", ("train",), validated=False)
            _, trainer = build_trainer(check_recipe(config, data), data, stage, Path(folder), Path(folder))
        except ConfigError as error:
            return {"refused": str(error)}
        warm_up = WARM_UP + TASKS * trainer.steps_per_task
        steps = whole_turns(steps, THREADS * trainer.steps_per_task)
        rounds = min(rounds, trainer.examples.steps // (warm_up + steps))
        if not rounds:
            return {"few": f"an epoch has {trainer.examples.steps} steps, a round {warm_up + steps}"}
        return measured(trainer, rounds, warm_up, steps)


def whole_turns(steps: int, per_turn: int) -> int:
    """At least `steps`: a whole number of the turns in which each thread ends one task."""
    return max(TURNS, -(-steps // per_turn)) * per_turn


def measured(trainer: Trainer, rounds: int, warm_up: int, steps: int) -> dict[str, Any]:
    """Medians of the rounds; the ratio is that of each round.

    Args:
        warm_up: steps before those that are timed: more than batches are made ahead, so that none that is timed was
            made while nothing trained.
    """
    batch = as_tensors(trainer.examples.batch(0, 0))
    pairs = [(bare_rate(trainer, batch, steps), loop_rate(trainer, warm_up, steps)) for _ in range(rounds)]
    return {
        "bare_steps_per_s": round(statistics.median(bare for bare, _ in pairs), 3),
        "loop_steps_per_s": round(statistics.median(loop for _, loop in pairs), 3),
        "loop_to_bare": round(statistics.median(loop / bare for bare, loop in pairs), 3),
        "rounds": rounds,
        "steps": steps,
    }


def bare_rate(trainer: Trainer, batch: Any, steps: int) -> float:
    """Steps a second of the compiled step, on one batch."""
    for _ in range(WARM_UP):
        trainer._step(batch)
    _wait(trainer)
    begin = time.perf_counter()
    for _ in range(steps):
        trainer._step(batch)
    _wait(trainer)
    return steps / (time.perf_counter() - begin)


def loop_rate(trainer: Trainer, warm_up: int, steps: int) -> float:
    """Steps a second of the next `steps` of the loop, after a warm-up; all in one epoch."""
    first = trainer.done + warm_up
    begin = end = 0.0

    def on_step(done: int, _: float) -> None:
        nonlocal begin, end
        if done == first:
            _wait(trainer)
            begin = time.perf_counter()
        elif done == first + steps:
            _wait(trainer)
            end = time.perf_counter()
            raise RoundEndedError

    with suppress(RoundEndedError):
        trainer.fit(on_step)
    return steps / (end - begin)


def _wait(trainer: Trainer) -> None:
    """Waits for the last step: reading what it writes needs it."""
    trainer.optimizer.step.numpy()
