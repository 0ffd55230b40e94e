"""What the loop works with: a task, its batches, a validation; where a run stands; whether it goes astray.

`towers.retrieval` and `towers.similarity` are tasks, `towers.examples` and `towers.similar_items` make batches,
`towers.validation` and `towers.similarity` validate. In: losses, left on their device, metrics, variables. Out: JSON in
a checkpoint, the first bad step, the first bad variable.
"""

import dataclasses
import json
import math
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple, Protocol

import tensorflow as tf

from towers.model import TwoTower


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


class Measured(NamedTuple):
    """One validation: the metric, and what chooses the epoch, the higher the better."""

    metric: float
    criterion: float


class Validation(Protocol):
    """What chooses the epoch."""

    @property
    def metric(self) -> str:
        """Its name."""
        ...

    def measure(self, model: TwoTower) -> Measured:
        """Its value, and what chooses the epoch, often the same."""
        ...


@dataclasses.dataclass
class Progress:
    """Where a run stands; saved with the weights, in the same checkpoint."""

    epoch: int = 0
    step: int = 0  # of this epoch
    loss_sum: float = 0.0  # over those steps
    first_loss: float | None = None  # of the untrained model: what an exploding loss is compared with
    best_epoch: int = 0  # epochs trained when the criterion was best
    best_metric: float = -math.inf  # at that epoch
    best_criterion: float = -math.inf  # what chose it
    finished: bool = False
    history: list[dict[str, float]] = dataclasses.field(default_factory=list)


class SavedProgress(tf.train.experimental.PythonState):
    """Puts the `progress` of a trainer into its checkpoint, as JSON."""

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer

    def serialize(self) -> str:
        """See `PythonState`."""
        return json.dumps(dataclasses.asdict(self._trainer.progress))

    def deserialize(self, string_value: Any) -> None:
        """See `PythonState`."""
        self._trainer.progress = Progress(**json.loads(string_value))


class BadLoss(NamedTuple):
    """The first loss that is not a number, infinite, or too high.

    Attributes:
        step: of the epoch, from 0.
        loss: its loss.
        before: the loss of the step before, None where that was read earlier.
        limit: what a loss may be, None where only NaN and infinity are refused.
    """

    step: int
    loss: float
    before: float | None
    limit: float | None


class LossWatch:
    """Keeps the losses of the steps since the last look. To read one waits for its step, so they are read together.

    Args:
        explode_factor: a loss above so many times that of the first step, or 1 where that is less, is refused. Near
            zero (margin losses, log-ratios) a multiple of a loss says nothing.
    """

    def __init__(self, explode_factor: float | None) -> None:
        self.explode_factor = explode_factor
        self._losses: list[tuple[int, tf.Tensor]] = []

    def add(self, step: int, loss: tf.Tensor) -> None:
        """The loss of a step of this epoch, from 0; a scalar."""
        self._losses.append((step, loss))

    def look(self, progress: Progress) -> BadLoss | None:
        """Reads the losses; adds them to `progress`."""
        if not self._losses:
            return None
        steps = [step for step, _ in self._losses]
        losses = tf.stack([loss for _, loss in self._losses]).numpy().tolist()
        self._losses.clear()
        if progress.first_loss is None:
            progress.first_loss = losses[0]
        factor = self.explode_factor
        limit = None if factor is None else factor * max(1.0, abs(progress.first_loss))
        for place, loss in enumerate(losses):
            progress.loss_sum += loss
            if not math.isfinite(loss) or (limit is not None and loss > limit):
                return BadLoss(steps[place], loss, losses[place - 1] if place else None, limit)
        return None


def spoilt(variables: Iterable[tf.Variable]) -> str | None:
    """Name of the first variable that holds NaN or infinity.

    A sum is neither only where no number in it is: one pass over memory, and nothing is copied.
    """
    for variable in variables:
        if variable.dtype.is_floating:
            total = tf.reduce_sum(tf.cast(variable.read_value_no_copy(), tf.float32))
            if not math.isfinite(float(total)):
                return str(variable.name)
    return None
