"""What a training is made of, as the loop sees it: a task, its batches, a validation.

In and out: nothing, these are protocols. `towers.retrieval` and `towers.similarity` are tasks, `towers.examples` and
`towers.similar_items` make batches, `towers.validation` and `towers.neighbours` validate.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple, Protocol

import tensorflow as tf

from towers.model import TwoTower

OnStep = Callable[[int, float], None]
OnEpoch = Callable[[dict[str, float]], None]


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
