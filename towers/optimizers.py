"""Adam, Adagrad and SGD: row-sparse on embedding tables, dense on everything else.

In: gradients as TensorFlow gives them (`IndexedSlices` for gathered tables). Out: variables updated in place. A step
touches only the rows that the batch read, so its cost does not grow with the table; a row that is not touched, and its
moments, stand still, while the step count is global. Where every row is touched, the result is Keras's.
"""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from towers.config import OptimizerConfig

Gradient = Any  # tf.Tensor or tf.IndexedSlices


class Optimizer(tf.Module):
    """Applies one step to each variable; a subclass says how many moments it keeps and how they move."""

    moments: tuple[float, ...] = ()  # start value of each moment

    def __init__(self, variables: Sequence[tf.Variable], learning_rate: float) -> None:
        super().__init__()
        self.variables_in_order = list(variables)
        self.learning_rate = learning_rate
        self.step = tf.Variable(0, dtype=tf.int64, name="step")
        self.slots = [[tf.Variable(tf.fill(v.shape, start)) for start in self.moments] for v in variables]

    def apply(self, gradients: Sequence[Gradient | None]) -> None:
        """One step; `gradients` in the order of the variables, None for a variable that took no part."""
        self.step.assign_add(1)
        for variable, slots, gradient in zip(self.variables_in_order, self.slots, gradients, strict=True):
            if isinstance(gradient, tf.IndexedSlices):
                rows, total = summed_rows(gradient)
                old = [tf.gather(slot, rows) for slot in slots]
                new, change = self.move(old, total)
                for slot, value in zip(slots, new, strict=True):
                    slot.scatter_update(tf.IndexedSlices(value, rows))
                variable.scatter_update(tf.IndexedSlices(tf.gather(variable, rows) - change, rows))
            elif gradient is not None:
                new, change = self.move(list(slots), gradient)
                for slot, value in zip(slots, new, strict=True):
                    slot.assign(value)
                variable.assign_sub(change)

    def move(self, moments: list[tf.Tensor], gradient: tf.Tensor) -> tuple[list[tf.Tensor], tf.Tensor]:
        """The new moments, and what to subtract from the variable."""
        return [], self.learning_rate * gradient


class Sgd(Optimizer):
    """``w -= lr g``."""


class Adagrad(Optimizer):
    """``a += g^2; w -= lr g / sqrt(a + eps)``. Source: Duchi et al., JMLR 2011."""

    moments = (0.1,)
    epsilon = 1e-7

    def move(self, moments: list[tf.Tensor], gradient: tf.Tensor) -> tuple[list[tf.Tensor], tf.Tensor]:
        """See the class."""
        accumulated = moments[0] + tf.square(gradient)
        return [accumulated], self.learning_rate * gradient * tf.math.rsqrt(accumulated + self.epsilon)


class Adam(Optimizer):
    """``m += (1-b1)(g-m); v += (1-b2)(g^2-v); w -= lr_t m / (sqrt v + eps)``. Source: Kingma & Ba, ICLR 2015.

    ``lr_t = lr sqrt(1-b2^t) / (1-b1^t)`` with t the global step, as in Keras.
    """

    moments = (0.0, 0.0)
    beta1, beta2, epsilon = 0.9, 0.999, 1e-7

    def move(self, moments: list[tf.Tensor], gradient: tf.Tensor) -> tuple[list[tf.Tensor], tf.Tensor]:
        """See the class."""
        step = tf.cast(self.step, gradient.dtype)
        first = moments[0] + (1 - self.beta1) * (gradient - moments[0])
        second = moments[1] + (1 - self.beta2) * (tf.square(gradient) - moments[1])
        rate = self.learning_rate * tf.sqrt(1 - tf.pow(self.beta2, step)) / (1 - tf.pow(self.beta1, step))
        return [first, second], rate * first / (tf.sqrt(second) + self.epsilon)


OPTIMIZERS: dict[str, type[Optimizer]] = {"adam": Adam, "adagrad": Adagrad, "sgd": Sgd}


def build_optimizer(config: OptimizerConfig, variables: Sequence[tf.Variable]) -> Optimizer:
    """The optimizer a recipe names."""
    return OPTIMIZERS[config.name](variables, config.learning_rate)


def summed_rows(slices: tf.IndexedSlices) -> tuple[tf.Tensor, tf.Tensor]:
    """Adds up the gradients of equal rows, without `tf.unique`, which has no GPU kernel and a shape known too late.

    Returns:
        rows [n] sorted, with their repeats, and [n, D] the total gradient of each one's row. Repeats hold equal totals:
        what they make of their row is equal too, and writing it twice changes nothing.
    """
    order = tf.argsort(slices.indices, stable=True)
    rows = tf.gather(slices.indices, order)
    # Compared with the row before it (the first with itself), so that no rows at all are fine, too.
    segment = tf.cumsum(tf.cast(rows != tf.concat([rows[:1], rows[:-1]], 0), tf.int32))
    # The count of segments is at most n: with that static bound the shapes stay known.
    total = tf.math.unsorted_segment_sum(tf.gather(slices.values, order), segment, tf.shape(rows)[0])
    return rows, tf.gather(total, segment)
