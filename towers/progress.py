"""Where a run stands: saved with its weights, and told when it is finished.

In: epochs, steps, losses, metrics. Out: JSON in a checkpoint, a `Summary`.
"""

import dataclasses
import json
import math
from typing import Any, Protocol

import tensorflow as tf


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


class Progressing(Protocol):
    """Whose progress is saved: the trainer."""

    progress: Progress


class SavedProgress(tf.train.experimental.PythonState):
    """Puts a trainer's progress into its checkpoint, as JSON."""

    def __init__(self, trainer: Progressing) -> None:
        self._trainer = trainer

    def serialize(self) -> str:
        """See `PythonState`."""
        return json.dumps(dataclasses.asdict(self._trainer.progress))

    def deserialize(self, string_value: Any) -> None:
        """See `PythonState`."""
        self._trainer.progress = Progress(**json.loads(string_value))
