"""Whether a training goes astray: losses read a window at a time, weights before they are saved.

In: the loss of each step, left on its device; variables. Out: the first bad step, the first bad variable.
"""

import math
from collections.abc import Iterable
from typing import NamedTuple

import tensorflow as tf

from towers.progress import Progress


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
