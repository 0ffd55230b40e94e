"""An average of the weights of all steps so far, later ones weighing more; a table row catches up when it moves."""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import tensorflow as tf


class Averages(tf.Module):
    """``sum_i d^(T-i) w_i / sum_i d^(T-i)`` over the weights w_i after steps i = 1..T: Polyak's average, exponential.

    The sum is kept as ``a_T = d a_(T-1) + (1 - d) w_T`` from zero, and divided by its weight ``1 - d^T`` when it is
    read, so that the initial weights are no part of it. A row that did not move for n steps catches up at once:
    ``a = w + d^n (a - w)``, which equals n steps of the recursion.

    Source: Polyak & Juditsky, SIAM J. Control Optim. 1992; the division as in Adam (Kingma & Ba, ICLR 2015).

    Args:
        variables: the averaged variables.
        decay: d.
    """

    def __init__(self, variables: Sequence[tf.Variable], decay: float) -> None:
        super().__init__()
        # A function is not tracked: the weights themselves are in the checkpoint already.
        self._variables: Callable[[], list[tf.Variable]] = lambda: list(variables)
        self.decay = decay
        self.sums = [tf.Variable(tf.zeros(v.shape), trainable=False) for v in variables]
        self.steps = [tf.Variable(tf.zeros(v.shape[:1], tf.int64), trainable=False) for v in variables]
        # A graph works in place; op by op a table was in memory several times more. Each variable has a function of its
        # own, because TensorFlow warns of one that is traced many times.
        puts = [tf.function(partial(self._put), autograph=False) for _ in variables]
        self._puts: Callable[[], list[Any]] = lambda: puts

    def follow_all(self, number: int, new: tf.Tensor, step: tf.Tensor) -> None:
        """Updates the average of a variable whose rows all move in every step.

        Args:
            number: index of the variable.
            new: its values after the step.
            step: int64 scalar T, from 1.
        """
        self.sums[number].assign(self._moved(self.sums[number], new))
        self.steps[number].assign(tf.fill(self.steps[number].shape, step))

    def follow_rows(self, number: int, rows: tf.Tensor, old: tf.Tensor, new: tf.Tensor, step: tf.Tensor) -> None:
        """Updates the averages of some rows of a table.

        Args:
            number: index of the variable.
            rows: int64 [n]; repeats have equal values.
            old, new: [n, D] values before and after the step.
            step: int64 scalar T, from 1.
        """
        steps = self.steps[number]
        before = self._caught_up(tf.gather(self.sums[number], rows), old, step - 1 - tf.gather(steps, rows))
        self.sums[number].scatter_update(tf.IndexedSlices(self._moved(before, new), rows))
        steps.scatter_update(tf.IndexedSlices(tf.fill(tf.shape(rows), step), rows))

    def _caught_up(self, average: tf.Tensor, value: tf.Tensor, gap: tf.Tensor) -> tf.Tensor:
        lost = -tf.math.expm1(tf.cast(gap, tf.float32) * math.log(self.decay))
        lost = tf.reshape(lost, tf.concat([tf.shape(lost), tf.ones([value.shape.rank - gap.shape.rank], tf.int32)], 0))
        return average + lost * (value - average)

    def _moved(self, average: tf.Tensor, new: tf.Tensor) -> tf.Tensor:
        # By 1 - d, not d: near 1 a float32 d has few digits of 1 - d left.
        return average + (1 - self.decay) * (new - average)

    @contextmanager
    def in_place(self, step: int) -> Iterator[None]:
        """Puts the averages after `step` steps into the variables, and the weights back at the end, whatever happens.

        The training state does not change. Meanwhile, memory holds a second copy of the variables.
        """
        weights = [tf.identity(v) for v in self._variables()]
        try:
            self.assign(step)
            yield
        finally:
            try:
                self._put_back(weights)
            except KeyboardInterrupt:  # a training that is stopped saves its state, which must be whole
                self._put_back(weights)
                raise

    def _put_back(self, weights: Sequence[tf.Tensor]) -> None:
        for variable, value in zip(self._variables(), weights, strict=True):
            variable.assign(value)

    def assign(self, step: int) -> None:
        """Puts the averages after `step` steps into the variables, for good; does nothing before the first step."""
        if not step:
            return
        last = tf.constant(step, tf.int64)
        weight = tf.constant(-math.expm1(step * math.log(self.decay)), tf.float32)
        for put, variable, total, steps in zip(self._puts(), self._variables(), self.sums, self.steps, strict=True):
            put(variable, total, steps, last, weight)

    def _put(
        self, variable: tf.Variable, total: tf.Variable, steps: tf.Variable, last: tf.Tensor, weight: tf.Tensor
    ) -> None:
        average = self._caught_up(tf.convert_to_tensor(total), tf.cast(variable, tf.float32), last - steps)
        variable.assign(tf.cast(average / weight, variable.dtype))
