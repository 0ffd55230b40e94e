"""Adam, Adagrad and SGD: row-sparse on embedding tables, dense on everything else.

In: gradients as TensorFlow gives them (`IndexedSlices` for gathered tables). Out: variables updated in place. A step
touches only the rows that the batch read, so its cost does not grow with the table; a row that is not touched, and its
moments, stand still, while the step count is global. Where every row is touched, the result is Keras's. A gradient of
all rows moves them in blocks, so that what a step makes on the way is small beside the table.
"""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from towers.config import OptimizerConfig
from towers.rows import added_rows, dense_part, summed_rows

Gradient = Any  # tf.Tensor or tf.IndexedSlices
BLOCK = 1 << 20  # numbers of a table that move at once: 4 MB


class Optimizer(tf.Module):
    """Applies one step to each variable; a subclass says how many moments it keeps and how they move."""

    moments: tuple[float, ...] = ()  # start value of each moment

    def __init__(self, variables: Sequence[tf.Variable], learning_rate: float) -> None:
        super().__init__()
        self.variables_in_order = list(variables)
        self.learning_rate = learning_rate
        self.step = tf.Variable(0, dtype=tf.int64, name="step")
        self.slots = [[tf.Variable(tf.fill(v.shape, start)) for start in self.moments] for v in variables]
        places = [tf.Variable(tf.zeros(v.shape[:1], tf.int64), trainable=False) for v in variables]
        # A function is not tracked: what `summed_rows` leaves in these is worth nothing later, so no checkpoint has it.
        self._places: Callable[[], list[tf.Variable]] = lambda: places

    def apply(self, gradients: Sequence[Gradient | None]) -> None:
        """One step; `gradients` in the order of the variables, None for a variable that took no part."""
        self.step.assign_add(1)
        everything = zip(self.variables_in_order, self.slots, self._places(), gradients, strict=True)
        for variable, slots, place, gradient in everything:
            if isinstance(gradient, tf.IndexedSlices):
                self._apply_slices(variable, slots, place, gradient)
            elif gradient is not None and variable.shape.num_elements() > BLOCK:
                self._move_all(variable, slots, gradient, None)
            elif gradient is not None:
                new, change = self.move(list(slots), gradient)
                for slot, value in zip(slots, new, strict=True):
                    slot.assign(value)
                variable.assign_sub(change)

    def _apply_slices(
        self, variable: tf.Variable, slots: list[tf.Variable], place: tf.Variable, gradient: tf.IndexedSlices
    ) -> None:
        count, rows = gradient.indices.shape[0], variable.shape[0]
        total, others = dense_part(gradient, rows)
        if total is not None:
            for other in others:
                total = added_rows(total, other)
            self._move_all(variable, slots, total, None)
        elif count is not None and rows <= count:
            total = tf.math.unsorted_segment_sum(gradient.values, gradient.indices, rows)
            touched = tf.math.unsorted_segment_sum(tf.ones([count]), gradient.indices, rows) > 0
            self._move_all(variable, slots, total, touched)
        else:
            chosen = tf.cast(gradient.indices, tf.int64)
            self._move_rows(variable, slots, chosen, summed_rows(gradient.values, chosen, place))

    def _move_all(
        self, variable: tf.Variable, slots: list[tf.Variable], gradient: tf.Tensor, touched: tf.Tensor | None
    ) -> None:
        """Moves all rows, or those that are `touched`, a block of them at a time."""
        rows, width = variable.shape[0], variable.shape[1:].num_elements()
        size = min(rows, max(1, BLOCK // width))

        def block(first: tf.Tensor, count: int) -> None:
            chosen = tf.cast(first, tf.int64) + tf.range(count, dtype=tf.int64)
            part = _part(gradient, first, count)
            self._move_rows(variable, slots, chosen, part, None if touched is None else _part(touched, first, count))

        def step(i: tf.Tensor) -> tuple[tf.Tensor]:
            block(i * size, size)
            return (i + 1,)

        # Where a block starts is int32 on purpose: it stays in host memory, where loops and slices want it.
        tf.while_loop(lambda i: i < rows // size, step, (tf.constant(0),), parallel_iterations=1)
        if rows % size:
            block(tf.constant(rows - rows % size), rows % size)

    def _move_rows(
        self,
        variable: tf.Variable,
        slots: list[tf.Variable],
        rows: tf.Tensor,
        gradient: tf.Tensor,
        touched: tf.Tensor | None = None,
    ) -> None:
        """Moves `rows` [n], by gathering and scattering: a variable that is read whole is copied whole.

        Everything is read before anything is written, so that repeats of a row agree on its new value.
        """
        old = [tf.gather(slot, rows) for slot in slots]
        new, change = self.move(old, gradient)
        if touched is not None:
            touched = tf.reshape(touched, [-1] + [1] * (gradient.shape.rank - 1))
            new = [tf.where(touched, *pair) for pair in zip(new, old, strict=True)]
            change = tf.where(touched, change, 0)
        value = tf.gather(variable, rows) - change
        for slot, moment in zip(slots, new, strict=True):
            slot.scatter_update(tf.IndexedSlices(moment, rows))
        variable.scatter_update(tf.IndexedSlices(value, rows))

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


def _part(values: tf.Tensor, first: tf.Tensor, count: int) -> tf.Tensor:
    rest = values.shape.as_list()[1:]
    return tf.slice(values, tf.stack([first, *([0] * len(rest))]), [count, *rest])
