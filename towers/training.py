"""The loop: step, validation, early stop, checkpoint, resume. The only file that composes the others.

In: a task, its examples, a validation. Out: the model at its best epoch, checkpoints on the way, a `Summary`. A run
that was stopped goes on from its last checkpoint with the same batches, moments and masks.
"""

import dataclasses
import json
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

import tensorflow as tf

from towers.batch import Batch
from towers.config import OptimizerConfig, TrainConfig
from towers.errors import ConfigError
from towers.model import TwoTower
from towers.optimizers import build_optimizer

OnStep = Callable[[int, float], None]
OnEpoch = Callable[[dict[str, float]], None]


def _ignore(*_: Any) -> None:
    """Nobody watches."""


class DivergedError(Exception):
    """The loss is no longer a finite number. The message names epoch, step and loss; the last checkpoint is kept."""


LOOK_STEPS = 50  # steps between two looks at the loss
LOOK_BATCHES = 100  # of an epoch, that a task may look at when it has ended


class Task(Protocol):
    """What is trained: `towers.retrieval.Retrieval`, `towers.similarity.Similarity`; a `tfrs.Model`."""

    towers: TwoTower
    trainable_variables: list[tf.Variable]

    def compute_loss(self, inputs: Any) -> tf.Tensor:
        """The loss of a batch, a scalar."""
        ...

    def after_epoch(self, epoch: int, batches: Iterable[Any]) -> dict[str, float]:
        """What changes between two epochs, and what the log shows of it."""
        ...


class Batches(Protocol):
    """Where batches come from: a function of epoch and step alone."""

    @property
    def steps(self) -> int:
        """Steps of one epoch."""
        ...

    def batch(self, epoch: int, step: int) -> Any:
        """The batch of one step."""
        ...

    def epoch(self, epoch: int, first_step: int = 0) -> Iterator[tuple[int, Any]]:
        """The steps of one epoch."""
        ...


class Validation(Protocol):
    """What chooses the epoch: a metric, the higher the better."""

    @property
    def metric(self) -> str:
        """Its name."""
        ...

    def measure(self, model: TwoTower) -> float:
        """Its value."""
        ...


@dataclasses.dataclass
class Progress:
    """Where a run stands; saved with the weights, in the same checkpoint."""

    epoch: int = 0
    step: int = 0  # of this epoch
    loss_sum: float = 0.0  # over those steps
    best_epoch: int = 0  # epochs trained when the metric was best
    best_metric: float = -math.inf
    finished: bool = False
    history: list[dict[str, float]] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True)
class Summary:
    """What a finished run says of itself.

    Attributes:
        epochs: trained.
        best_epoch: whose weights are kept; `epochs` where there was no validation.
        metric: its name, "" without validation.
        best_metric: its value at `best_epoch`, None without validation.
        history: loss, metric and seconds of each epoch.
    """

    epochs: int
    best_epoch: int
    metric: str
    best_metric: float | None
    history: list[dict[str, float]]


class Trainer:
    """Trains a model.

    Args:
        task: the towers with their loss and its sampler.
        examples: the batches.
        optimizer: its settings.
        config: epochs, patience, checkpoints.
        directory: where checkpoints and TensorBoard logs go; one that holds an unfinished run is resumed.
        validation: None trains all epochs and keeps the last.

    Raises:
        ConfigError: the checkpoint in `directory` is one of another version of the program.
    """

    def __init__(
        self,
        task: Task,
        examples: Batches,
        optimizer: OptimizerConfig,
        config: TrainConfig,
        directory: Path,
        validation: Validation | None = None,
    ) -> None:
        self.task, self.examples, self.config, self.validation = task, examples, config, validation
        # The first forward pass creates the weights of the hidden layers, which the optimizer must know. A graph that
        # nobody runs: a sampler that learns must not count this batch.
        first = as_tensors(examples.batch(0, 0))
        tf.function(task.compute_loss, autograph=False).get_concrete_function(first)
        self.optimizer = build_optimizer(optimizer, task.trainable_variables)
        self.progress = Progress()
        self._loss_sum = tf.constant(0.0)
        self._state = tf.train.Checkpoint(task=task, optimizer=self.optimizer, progress=_Saved(self))
        self._latest = tf.train.CheckpointManager(self._state, str(directory / "checkpoints" / "latest"), max_to_keep=2)
        self._best = tf.train.CheckpointManager(
            tf.train.Checkpoint(model=task.towers), str(directory / "checkpoints" / "best"), max_to_keep=1
        )
        self._board = tf.summary.create_file_writer(str(directory / "tensorboard"))
        self._step = tf.function(self._train_step, reduce_retracing=True, autograph=False)
        self._restore()

    @property
    def done(self) -> int:
        """Steps done in all, those of the run that this one goes on with included."""
        return self.progress.epoch * self.examples.steps + self.progress.step

    def fit(self, on_step: OnStep = _ignore, on_epoch: OnEpoch = _ignore) -> Summary:
        """Trains to the end, from the last checkpoint where there is one.

        Args:
            on_step: called after each step with the steps done in all, and every now and then the loss (else NaN).
            on_epoch: called after each epoch with its loss, metric and seconds.

        Raises:
            DivergedError: the loss became NaN or infinite.
        """
        try:
            while not self.progress.finished:
                on_epoch(self._epoch(on_step))
        except KeyboardInterrupt:
            # It may have come after a step and before its count: the optimizer knows how many there were.
            self.progress.step = int(self.optimizer.step) - self.progress.epoch * self.examples.steps
            self.progress.loss_sum = float(self._loss_sum)
            self._latest.save()
            raise
        if self._best.latest_checkpoint:
            tf.train.Checkpoint(model=self.task.towers).restore(self._best.latest_checkpoint).expect_partial()
        progress = self.progress
        return Summary(
            epochs=progress.epoch,
            best_epoch=progress.best_epoch or progress.epoch,
            metric=self.validation.metric if self.validation else "",
            best_metric=progress.best_metric if self.validation else None,
            history=progress.history,
        )

    def _restore(self) -> None:
        """Goes back to the last checkpoint, where there is one."""
        if not self._latest.latest_checkpoint:
            return
        try:
            self._state.restore(self._latest.latest_checkpoint).assert_existing_objects_matched()
        except (AssertionError, ValueError) as error:
            raise ConfigError(
                "the unfinished run does not fit: another version of this program made it; discard it with --fresh "
                f"({str(error).splitlines()[0][:200]})"
            ) from None

    def _epoch(self, on_step: OnStep) -> dict[str, float]:
        progress, steps = self.progress, self.examples.steps
        begin = time.monotonic()
        self._loss_sum = tf.constant(progress.loss_sum)
        for step, batch in self.examples.epoch(progress.epoch, progress.step):
            self._loss_sum += self._step(as_tensors(batch))
            progress.step = step + 1
            done = progress.epoch * steps + progress.step
            # Reading the loss waits for the step, so it is looked at now and then, and before anything is saved.
            save = done % self.config.checkpoint_steps == 0 and progress.step < steps
            looked = progress.step % LOOK_STEPS == 0 or save or progress.step == steps
            if looked:
                self._look()
            if save:
                self._latest.save()
            on_step(done, progress.loss_sum / progress.step if looked else math.nan)
        record = {
            "epoch": float(progress.epoch + 1),
            "loss": progress.loss_sum / steps,
            "train_seconds": time.monotonic() - begin,
        }
        batches = (as_tensors(batch) for _, batch in islice(self.examples.epoch(progress.epoch), LOOK_BATCHES))
        record |= self.task.after_epoch(progress.epoch + 1, batches)
        # All of it at once, after the validation: a run that is stopped in between validates again.
        self.progress = self._after(record)
        self._log(record)
        self._latest.save()
        return record

    def _look(self) -> None:
        progress = self.progress
        progress.loss_sum = float(self._loss_sum)
        if not math.isfinite(progress.loss_sum):
            raise DivergedError(
                f"the loss became {progress.loss_sum} within the {LOOK_STEPS} steps before step {progress.step} of "
                f"epoch {progress.epoch + 1}; a smaller optimizer.learning_rate or a larger model.temperature "
                "helps (with --fresh: the unfinished run has the settings that failed)"
            )

    def _after(self, record: dict[str, float]) -> Progress:
        """Where the run stands after this epoch; measures the metric, adds it to `record`, keeps the best weights."""
        progress, epoch = self.progress, self.progress.epoch + 1
        after = Progress(
            epoch=epoch,
            best_epoch=progress.best_epoch,
            best_metric=progress.best_metric,
            finished=epoch >= self.config.epochs,
            history=[*progress.history, record],
        )
        if self.validation is None:
            return after
        begin = time.monotonic()
        metric = self.validation.measure(self.task.towers)
        record |= {self.validation.metric: metric, "validation_seconds": time.monotonic() - begin}
        if metric > after.best_metric:
            after.best_metric, after.best_epoch = metric, epoch
            self._best.save()
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
        return loss


class _Saved(tf.train.experimental.PythonState):
    """Puts a trainer's progress into its checkpoint, as JSON."""

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer

    def serialize(self) -> str:
        return json.dumps(dataclasses.asdict(self._trainer.progress))

    def deserialize(self, string_value: Any) -> None:
        self._trainer.progress = Progress(**json.loads(string_value))


def as_tensors(batch: Batch) -> Batch:
    """The same batch, as tensors."""
    tensors: Batch = tf.nest.map_structure(tf.convert_to_tensor, batch)
    return tensors
