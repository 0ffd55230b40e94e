"""The training loop: step, validation, early stop, checkpoint, resume. The only file that composes the others.

It ends with the model of the best epoch. A stopped run resumes from its last checkpoint with the same batches, moments
and masks; a run that diverged stops.
"""

import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import tensorflow as tf

from towers.config.sections import OptimizerConfig, TrainConfig
from towers.data.batch import Batch
from towers.errors import DivergedError
from towers.model.prior import choice_of_validation
from towers.ops.replicas import ALONE, Replicas
from towers.training.agreement import agreed_measure, agreed_state
from towers.training.checkpoints import Checkpoints
from towers.training.compile_step import compiled
from towers.training.optimizers import build_optimizer
from towers.training.prefetch import as_tensors, prefetch, steps_per_task
from towers.training.protocols import Batches, LossWatch, Progress, SavedProgress, Summary, Task, Validation, not_finite
from towers.training.stop_request import ASK_STEPS, stop_of_any
from towers.training.warm_start import WarmStart

OnStep = Callable[[int, float], None]
OnEpoch = Callable[[dict[str, float]], None]
LOOK_STEPS = 50  # steps between two looks at the loss
LOOK_BATCHES = 100  # batches that a task may read after an epoch
REMEDY = (
    "a smaller optimizer.learning_rate or a larger model.temperature helps, with --fresh: an unfinished run goes on "
    "with the settings that failed"
)


def _ignore(*_: Any) -> None:
    """The default callback, which does nothing."""


class Trainer:
    """Trains a model.

    Args:
        task: the towers with their loss and sampler.
        examples: the batches.
        optimizer: its settings.
        config: epochs, patience, checkpoints.
        directory: for checkpoints and TensorBoard logs; an unfinished run in it is resumed.
        validation: None trains all epochs and keeps the last.
        warm: sets the first weights and moments by those of an earlier run.
        replicas: what shares each batch; of several workers only the first one writes checkpoints and reads them.

    Raises:
        ConfigError: another version of the program made the checkpoint in `directory`, or it cannot be read;
            `train.jit_compile` is set and XLA cannot compile the step; or the earlier run does not fit.
    """

    def __init__(
        self,
        task: Task,
        examples: Batches,
        optimizer: OptimizerConfig,
        config: TrainConfig,
        directory: Path,
        validation: Validation | None = None,
        warm: WarmStart | None = None,
        replicas: Replicas = ALONE,
    ) -> None:
        self.task, self.examples, self.config, self.validation = task, examples, config, validation
        self._replicas = replicas
        first = as_tensors(examples.batch(0, 0))
        self.steps_per_task = steps_per_task(first)
        task.create_weights(replicas.batches(first)[0])
        self.optimizer = build_optimizer(optimizer, task.trainable_variables, config.epochs * examples.steps, replicas)
        if warm is not None:
            warm.apply(task, self.optimizer)
        self.progress = Progress()
        self._watch = LossWatch(None if config.explode_factor == "off" else config.explode_factor)
        self._checkpoints = Checkpoints(
            directory / "checkpoints",
            tf.train.Checkpoint(task=task, optimizer=self.optimizer, progress=SavedProgress(self)),
            tf.train.Checkpoint(model=task.towers),
        )
        self._board = tf.summary.create_file_writer(str(directory / "tensorboard"))
        self._step = compiled(replicas.step(self._train_step), first, jit_compile=config.jit_compile)
        if not replicas.rank:
            self._checkpoints.restore()
        self.progress = agreed_state(replicas, self.progress, [*task.variables, *self.optimizer.variables])

    @property
    def done(self) -> int:
        """Total steps done, including those before this run was resumed."""
        return self.progress.epoch * self.examples.steps + self.progress.step

    def fit(self, on_step: OnStep = _ignore, on_epoch: OnEpoch = _ignore) -> Summary:
        """Trains to the end, from the last checkpoint if there is one.

        Args:
            on_step: called after each step with the total steps done, and now and then the loss (else NaN).
            on_epoch: called after each epoch with its loss, metric and seconds.

        Raises:
            DivergedError: the loss or a weight became NaN or infinite, or the loss exploded.
        """
        try:
            with stop_of_any(self._replicas) as stop:
                while not self.progress.finished:
                    on_epoch(self._epoch(on_step, stop))
        except KeyboardInterrupt:
            # It may have come between a step and its count: the optimizer knows how many steps there were.
            self.progress.step = int(self.optimizer.step.numpy()) - self.progress.epoch * self.examples.steps
            self._look()
            self._save()
            raise
        finally:
            self._board.close()
        progress = self.progress
        if not progress.best_epoch:
            self.optimizer.finish()
        elif not self._replicas.rank:
            self._checkpoints.restore_best(progress.best_epoch)
        self._replicas.copy_first(self.task.towers.variables)
        return Summary(
            epochs=progress.epoch,
            best_epoch=progress.best_epoch or progress.epoch,
            metric=self.validation.metric if self.validation else "",
            best_metric=progress.best_metric if self.validation else None,
            history=progress.history,
        )

    def _epoch(self, on_step: OnStep, stop: Callable[[], None]) -> dict[str, float]:
        progress, steps = self.progress, self.examples.steps
        begin = time.monotonic() - progress.seconds
        for step, batch in self._batches(progress.step):
            self._watch.add(step, self._step(batch))
            progress.step = step + 1
            # Reading the loss waits for the step, so it is read only now and then, and before anything is saved.
            save = self.done % self.config.checkpoint_steps == 0 and progress.step < steps
            looked = progress.step % LOOK_STEPS == 0 or save or progress.step == steps
            if looked:
                self._look()
            progress.seconds = time.monotonic() - begin
            if save:
                self._save()
            on_step(self.done, progress.loss_sum / progress.losses if looked else math.nan)
            if self.done % ASK_STEPS == 0:
                stop()
        self._refuse_not_finite()
        record = {"epoch": float(progress.epoch + 1), "loss": progress.loss_sum / max(1, progress.losses)}
        record["train_seconds"] = progress.seconds
        steps_again = islice(self._batches(), LOOK_BATCHES)
        batches = (part for _, batch in steps_again for part in self._replicas.batches(batch))
        record |= self.task.after_epoch(progress.epoch + 1, batches)
        # All at once, after the validation: a run that is stopped in between validates again.
        self.progress = self._after(record)
        self._log(record)
        self._save()
        return record

    def _batches(self, first_step: int = 0) -> Iterator[tuple[int, Any]]:
        """The steps of this epoch."""
        epoch, host = self.progress.epoch, self.config.jit_compile
        return prefetch(self.examples, epoch, first_step, per_task=self.steps_per_task, host=host)

    def _look(self) -> None:
        """Reads the losses since the last look; raises on a bad one."""
        bad = self._watch.look(self.progress)
        if bad is None:
            return
        epoch = self.progress.epoch
        before = "" if bad.before is None else f", {bad.before:.4g} the step before"
        above = bad.limit is not None and math.isfinite(bad.loss)
        limit = f", above train.explode_factor's {bad.limit:.4g}" if above else ""
        raise DivergedError(
            f"the loss of step {bad.step + 1} of epoch {epoch + 1} is {bad.loss:.4g}{limit}{before}; its batch, "
            f"batch(epoch={epoch}, step={bad.step}), is the same in every run of this recipe; "
            f"{self._kept(epoch * self.examples.steps + bad.step)}; {REMEDY}"
        )

    def _save(self) -> None:
        self._refuse_not_finite()
        if not self._replicas.rank:
            self._checkpoints.save(self.done, self.progress.best_epoch)

    def _refuse_not_finite(self) -> None:
        """Refuses non-finite weights: a step with a finite loss may spoil them, and the next loss comes too late."""
        name = not_finite(self.optimizer.variables)
        if name is not None:
            progress = self.progress
            raise DivergedError(
                f"{name} is no longer finite after step {progress.step} of epoch {progress.epoch + 1}, whose loss was; "
                f"{self._kept(self.done)}; {REMEDY}"
            )

    def _kept(self, step: int) -> str:
        """Drops the checkpoints of the diverged state, of `step` or more steps, and says which one is left."""
        kept = self._checkpoints.drop(step)
        if kept is None:
            return "no checkpoint was made before"
        return f"the checkpoint of step {kept} in all, the last good one, is kept"

    def _after(self, record: dict[str, float]) -> Progress:
        """The progress after this epoch; measures the metric, adds it to `record`, keeps the best weights."""
        progress, epoch = self.progress, self.progress.epoch + 1
        after = replace(
            progress,
            epoch=epoch,
            step=0,
            loss_sum=0.0,
            losses=0,
            seconds=0.0,
            finished=epoch >= self.config.epochs,
            history=[*progress.history, record],
        )
        if self.validation is None:
            return after
        begin = time.monotonic()
        with choice_of_validation(self.task.towers), self.optimizer.averaged():
            metric, criterion = agreed_measure(self._replicas, self.validation, self.task.towers)
            record |= {self.validation.metric: metric, "criterion": criterion}
            record["validation_seconds"] = time.monotonic() - begin
            if criterion > after.best_criterion:
                after.best_metric, after.best_criterion, after.best_epoch = metric, criterion, epoch
                if not self._replicas.rank:
                    self._checkpoints.save_best(epoch)
        after.finished |= epoch - after.best_epoch >= self.config.patience
        return after

    def _log(self, record: Mapping[str, float]) -> None:
        with self._board.as_default(step=self.progress.epoch):
            for name, value in record.items():
                tf.summary.scalar(name, value)
        self._board.flush()

    def _train_step(self, batch: Batch) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = self.task.compute_loss(batch)
        self.optimizer.apply(tape.gradient(loss, self.task.trainable_variables))
        [total] = self._replicas.sum([loss])
        return total
