"""Trains one trial of the search; stops it when its share is used up, it is pruned, or it proves too slow.

Returns a `Run`, the metric after each epoch and why it ended. Its checkpoints let it resume in a later process or with
a larger share.
"""

import dataclasses
import gc
import json
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import tensorflow as tf

from pipelines.dataset.dataset import Dataset
from pipelines.dataset.popularity import Counting
from pipelines.training.prior import DECIMALS, prior_config
from pipelines.training.stage import Stage, build_trainer
from pipelines.tuning.budget import Clock
from serving.files.staging import staged
from towers.config.recipe import Config
from towers.errors import ConfigError, DivergedError
from towers.training.trainer import Trainer

End = Literal[
    "share", "converged", "pruned", "refused", "diverged", "too slow", "too large", "failed", "budget", "cut off"
]

TRIAL = Stage("trial", ("train",), validated=True)
MEASURED_STEPS = 20  # steps before an epoch's time is predicted
MEASURED_S = 1.0
OVERRUN = 1.05  # an epoch is still trained if it ends within this multiple of the share


@dataclass(frozen=True)
class Epoch:
    """After an epoch: the cost so far, the metric, seconds of its steps and in total, norm exponent and prior."""

    cost: float
    metric: float
    train_seconds: float
    seconds: float
    norm_exponent: float
    prior: dict[str, Any] | None = None


@dataclass(frozen=True)
class Run:
    """A training run so far.

    Attributes:
        epochs: in order.
        end: why it ended.
        reason: details, for the user.
    """

    epochs: tuple[Epoch, ...] = ()
    end: End = "share"
    reason: str = ""

    @property
    def value(self) -> float:
        """The best metric."""
        return max((each.metric for each in self.epochs), default=0.0)

    @property
    def best_epoch(self) -> int:
        """Epochs trained when the metric was best; 0 without an epoch."""
        return max(range(len(self.epochs)), key=lambda place: self.epochs[place].metric, default=-1) + 1

    @property
    def cost(self) -> float:
        """The cost of all epochs."""
        return self.epochs[-1].cost if self.epochs else 0.0

    def at(self, cost: float) -> float | None:
        """Returns the best metric up to this cost; None before the first epoch's end."""
        return max((each.metric for each in self.epochs if each.cost <= cost), default=None)

    def as_json(self) -> dict[str, Any]:
        """Returns what `from_json` reads."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> "Run":
        """Reads what `as_json` returned."""
        return cls(tuple(Epoch(**each) for each in raw["epochs"]), raw["end"], raw["reason"])


class _Ended(Exception):  # noqa: N818 - not an error
    def __init__(self, end: End, reason: str = "") -> None:
        super().__init__(reason)
        self.end, self.reason = end, reason


class Share:
    """What one training run may use.

    Args:
        most: cost of all epochs, in seconds of training and validation; in epochs without a time budget.
        clock: of the whole search; its end stops a training within a step.
        falls_behind: called after each epoch: whether other runs are far enough ahead that this one should stop.
    """

    def __init__(self, most: float, clock: Clock, falls_behind: Callable[[Run], bool] = lambda run: False) -> None:
        self.most, self.clock, self.falls_behind = most, clock, falls_behind

    def refuse(self, run: Run) -> None:
        """Ends a training before an epoch that does not fit, or if it is to be pruned."""
        if not run.epochs:
            return
        epoch = run.cost / len(run.epochs)
        if run.cost + epoch > self.most * OVERRUN:
            raise _Ended("share")
        if self.clock.timed and epoch > self.clock.left():
            raise _Ended("budget", "the budget is used up")
        if self.falls_behind(run):
            raise _Ended("pruned", "others were better by then")

    def refuse_slow(self, epoch_s: float) -> None:
        """Ends a training whose first epoch would not finish in time.

        Args:
            epoch_s: predicted seconds of its steps.
        """
        room = min(self.most * OVERRUN, self.clock.left())
        if self.clock.timed and epoch_s > room:
            raise _Ended("too slow", f"an epoch takes about {epoch_s:,.0f} s, and there are {room:,.0f} s for all")


def train(config: Config, data: Dataset, directory: Path, share: Share) -> Run:
    """Trains until the share is used up or the metric stops improving, resuming from a checkpoint in `directory`.

    Args:
        config: a resolved recipe.
        data: only its training and validation events are read.
        directory: created if missing.
        share: what it may use.

    Returns:
        The run. If it diverged or did not fit into memory, it holds the reason.
    """
    directory.mkdir(parents=True, exist_ok=True)
    history = _History(directory / "epochs.json", config.train.metric, share.clock)
    end: End = "converged"
    reason = ""
    try:
        training, trainer = build_trainer(config, data, TRIAL, directory, directory)
        history.counting = training.counting
        history.restore(trainer)
        _fit(trainer, history, share)
    except _Ended as ended:
        end, reason = ended.end, ended.reason
    except DivergedError as error:
        end, reason = "diverged", str(error).partition(";")[0]
    except ConfigError as error:
        end, reason = "refused", str(error)
    except (tf.errors.ResourceExhaustedError, MemoryError):
        end, reason = "too large", "it does not fit into memory"
    except tf.errors.OpError as error:
        end, reason = "failed", error.message.partition("\n")[0]
    finally:
        # A trainer and its graphs reference each other: without this, each trial would leave its tables in memory.
        gc.collect()
    return dataclasses.replace(history.run, end=end, reason=reason)


class _History:
    """The epochs so far, in a file beside the checkpoints, which lack each epoch's norm exponent and prior."""

    counting: Counting | None = None

    def __init__(self, file: Path, metric: str, clock: Clock) -> None:
        self._file, self._metric, self._clock = file, metric, clock
        self.run = Run()

    def restore(self, trainer: Trainer) -> None:
        """Restores the epochs of the checkpoint that training resumes from; the file may lack the last one."""
        kept = json.loads(self._file.read_text(encoding="utf-8")) if self._file.exists() else []
        for place, record in enumerate(trainer.progress.history):
            self._add(record, kept[place] if place < len(kept) else self._scoring(trainer))

    def add(self, record: dict[str, float], trainer: Trainer) -> None:
        """Adds an epoch."""
        self._add(record, self._scoring(trainer))
        with staged(self._file, overwrite=True) as half:
            kept = [{"norm_exponent": each.norm_exponent, "prior": each.prior} for each in self.run.epochs]
            half.write_text(json.dumps(kept), encoding="utf-8")

    def _scoring(self, trainer: Trainer) -> dict[str, Any]:
        """Returns what validation chose for this epoch's scores."""
        model = trainer.task.towers
        prior = None if self.counting is None else prior_config(model, self.counting)
        return {
            "norm_exponent": round(float(model.candidate_tower.norm_exponent), DECIMALS),
            "prior": None if prior is None else prior.model_dump(exclude_none=True),
        }

    def _add(self, record: dict[str, float], scoring: dict[str, Any]) -> None:
        seconds = record["train_seconds"] + record["validation_seconds"]
        cost = self.run.cost + (seconds if self._clock.timed else 1.0)
        epoch = Epoch(cost, record["criterion"], record["train_seconds"], seconds, **scoring)
        self.run = Run((*self.run.epochs, epoch))


def _fit(trainer: Trainer, history: _History, share: Share) -> None:
    if trainer.progress.finished:
        return
    share.refuse(history.run)
    steps, before = trainer.examples.steps, trainer.done
    first = math.nan

    def on_step(done: int, loss: float) -> None:
        nonlocal first
        share.clock.save()
        if share.clock.left() <= 0:
            raise _Ended("budget", "the budget is used up")
        if done == before + 1:  # the first step traces the graph
            first = time.monotonic()
        elif not history.run.epochs and done - before > MEASURED_STEPS:
            seconds = time.monotonic() - first
            if seconds > MEASURED_S:
                share.refuse_slow(seconds / (done - before - 1) * steps)

    def on_epoch(record: dict[str, float]) -> None:
        history.add(record, trainer)
        share.clock.save(now=True)
        if not trainer.progress.finished:
            share.refuse(history.run)

    trainer.fit(on_step, on_epoch)
