"""Interfaces of the training loop (task, batches, validation), its progress, and its checks for divergence.

`towers.tasks.retrieval` and `towers.tasks.similarity` are tasks, `towers.data.examples` and
`towers.data.similarity_examples` make batches, `towers.evaluation.validation` and `towers.tasks.similarity` validate.
"""

import dataclasses
import json
import math
from collections.abc import Iterable
from typing import Any, NamedTuple, Protocol

import tensorflow as tf

from towers.evaluation.metrics import Measured
from towers.model.two_tower import TwoTower


class Task(Protocol):
    """A `tfrs.Model` to train: `towers.tasks.retrieval.Retrieval` or `towers.tasks.similarity.Similarity`."""

    towers: TwoTower
    trainable_variables: list[tf.Variable]
    variables: list[tf.Variable]

    def create_weights(self, inputs: Any) -> None:
        """Creates the weights of the hidden layers, which the optimizer needs, by a pass of the towers alone."""
        ...

    def compute_loss(self, inputs: Any) -> tf.Tensor:
        """The loss of a batch, a scalar."""
        ...

    def after_epoch(self, epoch: int, batches: Iterable[Any]) -> dict[str, float]:
        """Updates what changes between epochs; returns values for the log."""
        ...


class Batches(Protocol):
    """A source of batches, each a function of epoch and step alone."""

    @property
    def steps(self) -> int:
        """Steps per epoch."""
        ...

    def batch(self, epoch: int, step: int) -> Any:
        """The batch of one step."""
        ...

    def batches(self, epoch: int, steps: range) -> list[Any]:
        """The batches of successive steps; threads call it at the same time."""
        ...


class Validation(Protocol):
    """Measures a model to choose the epoch."""

    @property
    def metric(self) -> str:
        """Name of the metric."""
        ...

    def measure(self, model: TwoTower) -> Measured:
        """The metric, and the criterion that chooses the epoch, often the same."""
        ...


@dataclasses.dataclass(frozen=True)
class Summary:
    """The result of a finished run.

    Attributes:
        epochs: number of epochs trained.
        best_epoch: the epoch whose weights are kept; `epochs` without validation.
        metric: its name; "" without validation.
        best_metric: its value at `best_epoch`; None without validation.
        history: loss, metric and seconds of each epoch.
    """

    epochs: int
    best_epoch: int
    metric: str
    best_metric: float | None
    history: list[dict[str, float]]


@dataclasses.dataclass
class Progress:
    """How far a run is; saved with the weights, in the same checkpoint."""

    epoch: int = 0
    step: int = 0  # of this epoch
    loss_sum: float = 0.0  # over those steps
    losses: int = 0  # in that sum: Ctrl-C may come between a step and its loss
    seconds: float = 0.0  # that those steps took, also in processes that were interrupted
    first_loss: float | None = None  # of the untrained model: the reference for an exploding loss
    best_epoch: int = 0  # epochs trained when the criterion was best
    best_metric: float = -math.inf  # at that epoch
    best_criterion: float = -math.inf  # at that epoch
    finished: bool = False
    history: list[dict[str, float]] = dataclasses.field(default_factory=list)


class SavedProgress(tf.train.experimental.PythonState):
    """Stores the `progress` of a trainer in its checkpoint, as JSON."""

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer

    def serialize(self) -> str:
        """See `PythonState`."""
        return json.dumps(dataclasses.asdict(self._trainer.progress))

    def deserialize(self, string_value: Any) -> None:
        """See `PythonState`."""
        self._trainer.progress = Progress(**json.loads(string_value))


class BadLoss(NamedTuple):
    """The first loss that is NaN, infinite or too high.

    Attributes:
        step: of the epoch, from 0.
        loss: of that step.
        before: the loss of the step before; None if another process did that.
        limit: the highest loss allowed; None if only NaN and infinity are refused.
    """

    step: int
    loss: float
    before: float | None
    limit: float | None


class LossWatch:
    """Collects the losses of the steps since the last look. Reading one waits for its step, so all are read together.

    Args:
        explode_factor: refuses a loss above this multiple of the first step's loss or of 1, whichever is larger. Near
            zero (margin losses, log-ratios) a multiple of a loss means nothing.
    """

    def __init__(self, explode_factor: float | None) -> None:
        self.explode_factor = explode_factor
        self._losses: list[tuple[int, tf.Tensor]] = []
        self._last: float | None = None  # of those that were read

    def add(self, step: int, loss: tf.Tensor) -> None:
        """Adds the loss, a scalar, of a step of this epoch, from 0."""
        self._losses.append((step, loss))

    def look(self, progress: Progress) -> BadLoss | None:
        """Reads the losses, adds them to `progress` and returns the first bad one."""
        if not self._losses:
            return None
        steps = [step for step, _ in self._losses]
        losses = tf.stack([loss for _, loss in self._losses]).numpy().tolist()
        self._losses.clear()
        if progress.first_loss is None:
            progress.first_loss = losses[0]
        factor = self.explode_factor
        limit = None if factor is None else factor * max(1.0, abs(progress.first_loss))
        for step, loss in zip(steps, losses, strict=True):
            progress.loss_sum += loss
            progress.losses += 1
            if not math.isfinite(loss) or (limit is not None and loss > limit):
                return BadLoss(step, loss, self._last, limit)
            self._last = loss
        return None


def not_finite(variables: Iterable[tf.Variable]) -> str | None:
    """Name of the first variable that holds NaN or infinity.

    A sum is finite only if no number in it is NaN or infinite: one pass over memory, and nothing is copied.
    """
    for variable in variables:
        if variable.dtype.is_floating:
            total = tf.reduce_sum(tf.cast(variable.read_value_no_copy(), tf.float32))
            if not math.isfinite(float(total)):
                return str(variable.name)
    return None
