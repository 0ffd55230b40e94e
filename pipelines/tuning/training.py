"""Trains one recipe of the search; stops it when its share is used up, it falls behind, or it proves too slow.

It resumes from its checkpoints. Without a budget costs are epochs: the same seed gives the same search anywhere.
"""

import gc
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any, Literal

import tensorflow as tf
from pydantic import BaseModel

from pipelines.dataset.dataset import Dataset
from pipelines.training.prior import DECIMALS, prior_config
from pipelines.training.similarity.training import Training
from pipelines.training.stage import EVENT_FILES, Stage, build_trainer
from pipelines.tuning.clock import Clock
from serving.files.disk_full import no_room
from serving.files.staging import remove
from towers.config.recipe import Config
from towers.errors import DivergedError
from towers.training.trainer import Trainer

End = Literal[
    "share", "converged", "pruned", "refused", "diverged", "too slow", "too large", "failed", "budget", "cut off"
]

TRIAL = Stage("trial", ("train",), validated=True)
LEAST_EPOCHS = 2  # so many slow epochs may raise what a training costs
MEASURED_STEPS, MEASURED_S = 20, 1.0  # steps and seconds after which the time of the first epoch is foretold
OVERRUN = 1.05  # an epoch is still trained if it ends within this multiple of the share


class Epoch(BaseModel, frozen=True):
    """An epoch of a training.

    Attributes:
        cost: seconds of training and validation, or 1 without a time budget.
        metric: on validation, with the prior that the recipe serves.
        criterion: what chooses between the epochs of one training; see `towers.evaluation.validation`.
        train_seconds: of its steps.
        seconds: of its steps and its validation.
        norm_exponent: chosen by its validation.
        prior: chosen by its validation; None without one.
    """

    cost: float
    metric: float
    criterion: float
    train_seconds: float
    seconds: float
    norm_exponent: float
    prior: dict[str, Any] | None = None


class Run(BaseModel, frozen=True):
    """A training so far: its epochs, why it ended, and details of that for the user."""

    epochs: tuple[Epoch, ...] = ()
    end: End = "cut off"
    reason: str = "the process died during the trial"

    @property
    def value(self) -> float:
        """The metric after the best epoch; 0 without an epoch."""
        return self.epochs[self.best_epoch - 1].metric if self.epochs else 0.0

    @property
    def best_epoch(self) -> int:
        """Epochs trained when the criterion was best; 0 without an epoch."""
        return max(range(len(self.epochs)), key=lambda place: self.epochs[place].criterion, default=-1) + 1

    @property
    def cost(self) -> float:
        """The cost of all epochs."""
        return sum(each.cost for each in self.epochs)

    @property
    def complete(self) -> bool:
        """Whether its value says how good the recipe is."""
        return bool(self.epochs) and self.end in ("share", "converged", "budget")

    @property
    def promise(self) -> float:
        """What twice the epochs may reach: the value, and once more what the second half of the epochs added."""
        half = Run(epochs=self.epochs[: len(self.epochs) // 2])
        return self.value if self.end == "converged" else 2 * self.value - half.value

    def at(self, cost: float) -> float:
        """Returns its value at this cost; 0 before the first epoch's end."""
        totals = accumulate(each.cost for each in self.epochs)
        reached = sum(total <= cost for total in totals)
        return Run(epochs=self.epochs[:reached]).value


@dataclass(frozen=True)
class Share:
    """What one training may cost: seconds of training and validation, or epochs without a time budget.

    Attributes:
        most: the cost of all epochs.
        clock: of the whole command; its end stops a training within a step.
        behind: called after each epoch with the run so far and the most that it may cost: whether to stop.
        largest: slow epochs raise `most` until two fit, but not above this cost, or one, up to twice it.
        alike: epochs of the best trial of its family; up to them it may train one more than fits.
    """

    most: float
    clock: Clock
    behind: Callable[[Run, float], bool]
    largest: float = 0.0
    alike: int = 0

    def of(self, epoch: float) -> float:
        """Returns the most that a training may cost whose epochs cost `epoch`."""
        wanted = max(LEAST_EPOCHS * epoch, min(self.alike * epoch, self.most + epoch))
        return max(self.most, min(wanted, self.largest), min(epoch, 2 * self.largest))


class _Ended(Exception):  # noqa: N818 - not an error
    def __init__(self, end: End, reason: str = "") -> None:
        super().__init__(reason)
        self.end, self.reason = end, reason


def train(config: Config, data: Dataset, directory: Path, share: Share, before: Run) -> Run:
    """Trains until the share is used up or the metric stops improving.

    Args:
        config: a resolved recipe.
        data: only its training and validation events are read.
        directory: of the checkpoints, from which it resumes; created if missing.
        share: what it may use.
        before: the run that led to the checkpoint; its last epoch may be missing.

    Returns:
        The run, with the reason if it diverged or did not fit into memory.

    Raises:
        ConfigError: the recipe cannot be trained.
        tensorflow.errors.OpError: the disk is full.
    """
    directory.mkdir(parents=True, exist_ok=True)
    watch = _Watch(share, before)
    end: End = "converged"
    reason = ""
    try:
        watch.fit(*build_trainer(config, data, TRIAL, directory, directory))
    except _Ended as ended:
        end, reason = ended.end, ended.reason
    except DivergedError as error:
        end, reason = "diverged", str(error).partition(";")[0]
    except (tf.errors.OpError, MemoryError) as error:
        if no_room(error):  # of the disk, not of the memory: the search ends and is kept
            raise
        if isinstance(error, tf.errors.ResourceExhaustedError | MemoryError):
            end, reason = "too large", "it does not fit into memory"
        else:
            end, reason = "failed", error.message.partition("\n")[0]
    finally:
        # A trainer and its graphs reference each other: without this, each trial would leave its tables in memory.
        gc.collect()
        remove(directory / EVENT_FILES)
    return Run(epochs=watch.epochs, end=end, reason=reason)


class _Watch:
    """Follows a training, and ends it with its share."""

    def __init__(self, share: Share, before: Run) -> None:
        self.epochs, self._share = before.epochs, share

    def fit(self, training: Training, trainer: Trainer) -> None:
        history, clock, begun = trainer.progress.history, self._share.clock, trainer.done
        self.epochs = self.epochs[: len(history)]
        for record in history[len(self.epochs) :]:
            self._add(record, training, trainer.config.metric)
        self._end_if_due(trainer)
        first = 0.0

        def on_step(done: int, loss: float) -> None:
            nonlocal first
            clock.save()
            if clock.left() <= 0:
                raise _Ended("budget", "the budget is used up")
            if done == begun + 1:  # the first step traces the graph
                first = time.monotonic()
            elif clock.timed and not self.epochs and done - begun > MEASURED_STEPS:
                seconds = time.monotonic() - first
                epoch = seconds / (done - begun - 1) * trainer.examples.steps
                room = min(self._share.of(epoch) * OVERRUN, clock.left())
                if seconds > MEASURED_S and epoch > room:
                    raise _Ended(
                        "too slow", f"an epoch takes about {epoch:,.0f} s, and there are {room:,.0f} s for all"
                    )

        def on_epoch(record: dict[str, float]) -> None:
            self._add(record, training, trainer.config.metric)
            clock.save(now=True)
            self._end_if_due(trainer)

        trainer.fit(on_step, on_epoch)

    def _add(self, record: dict[str, float], training: Training, metric: str) -> None:
        """Adds an epoch, with what its validation chose for the scores."""
        model, counting = training.task.towers, training.counting
        seconds = record["train_seconds"] + record["validation_seconds"]
        epoch = Epoch(
            cost=seconds if self._share.clock.timed else 1.0,
            metric=record[metric],
            criterion=record["criterion"],
            train_seconds=record["train_seconds"],
            seconds=seconds,
            norm_exponent=round(float(model.candidate_tower.norm_exponent), DECIMALS),
            prior=None if counting is None else prior_config(model, counting).model_dump(exclude_none=True),
        )
        self.epochs = (*self.epochs, epoch)

    def _end_if_due(self, trainer: Trainer) -> None:
        """Ends a training before an epoch that does not fit, or if it has fallen behind."""
        if not self.epochs or trainer.progress.finished:
            return
        run, share = Run(epochs=self.epochs), self._share
        epoch = run.cost / len(run.epochs)
        most = share.of(epoch)
        behind = share.behind(run, most)
        if run.cost + epoch > most * OVERRUN:
            raise _Ended("share")
        if epoch > share.clock.left():
            raise _Ended("budget", "the budget is used up")
        if behind:
            raise _Ended("pruned", "others were better by then")
