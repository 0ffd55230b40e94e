"""Adam, Adagrad and SGD: row-sparse on embedding tables, dense on everything else.

A step touches only the rows that the batch read, so its cost does not grow with the table. All other rows and their
moments stay as they are, while the step count is global. If every row is touched, the result is Keras's. A gradient of
all rows goes through TensorFlow's fused kernels, in one pass.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import tensorflow as tf

from towers.config.sections import OptimizerConfig
from towers.ops.replicas import ALONE, Replicas
from towers.ops.row_gradients import Gradient, RowGradient, clipped, stochastic_round, sum_rows, sum_workers
from towers.training.weight_averaging import Averages

Moments = list[tf.Tensor]


class Optimizer(tf.Module):
    """Applies one step to each variable; a subclass defines its moments and how they change.

    With weight decay d, a step first subtracts ``rate * d * w`` from each row that it moves (Loshchilov & Hutter,
    Decoupled weight decay regularization, ICLR 2019): in tables and kernels, not in biases and scalars, which have
    fewer than two axes.

    With coupled L2 of strength l, the gradient of these rows becomes ``g + l w`` before it enters the moments, as with
    `weight_decay` of PyTorch's `Adam` and `SGD`. It is added after clipping, so ``l w`` itself is never clipped.

    Args:
        variables: the trained variables.
        settings: rate, schedule, decay or L2, clipping, averaging.
        steps: of the whole run, for the schedule.
        replicas: the workers whose gradients are summed.
    """

    moments: tuple[float, ...] = ()  # initial value of each moment, float32 for any type of variable

    def __init__(
        self, variables: Sequence[tf.Variable], settings: OptimizerConfig, steps: int, replicas: Replicas = ALONE
    ) -> None:
        super().__init__()
        self.variables_in_order = list(variables)
        self.learning_rate = settings.learning_rate
        self.earlier_steps = 0  # behind the moments of a warm start (`towers.training.warm_start`)
        self.step = tf.Variable(0, dtype=tf.int64, name="step")
        self.slots = [[tf.Variable(tf.fill(v.shape, start)) for start in self.moments] for v in variables]
        self.averages = Averages(variables, settings.average) if settings.average else None
        self._settings, self._steps, self._replicas = settings, steps, replicas
        places = [tf.Variable(tf.zeros(v.shape[:1], tf.int64), trainable=False) for v in variables]
        # A function is not tracked: what `summed_rows` leaves in these is of no later use, so no checkpoint holds it.
        self._places: Callable[[], list[tf.Variable]] = lambda: places

    def apply(self, gradients: Sequence[Gradient | None]) -> None:
        """Takes one step; `gradients` are in the order of the variables, None for an unused variable.

        A variable must get a dense gradient (or `towers.ops.row_gradients.every_row`) in each step or in none.
        """
        rate = self.learning_rate * rate_share(self._settings, self._steps, self.step.read_value())
        self.step.assign_add(1)
        parts = [
            None if gradient is None else sum_rows(gradient, variable, place)
            for variable, place, gradient in zip(self.variables_in_order, self._places(), gradients, strict=True)
        ]
        parts = sum_workers(parts, self._places(), self._replicas)
        if self._settings.clip_norm is not None:
            parts = clipped(parts, self._settings.clip_norm)
        for number, part in enumerate(parts):
            if part is not None:
                self._apply(number, part, rate)

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """Swaps in the averaged weights, if there are any; training goes on from the original ones."""
        if self.averages is None:
            yield
        else:
            with self.averages.in_place(int(self.step.numpy())):
                yield

    def finish(self) -> None:
        """Puts the averaged weights, if there are any, into the variables for good, at the end of training."""
        if self.averages is not None:
            self.averages.assign(int(self.step.numpy()))

    def _apply(self, number: int, part: RowGradient, rate: tf.Tensor) -> None:
        """Updates one variable; reads everything before it writes, so that repeats of a row agree on its new value."""
        variable, slots = self.variables_in_order[number], self.slots[number]
        step = self.step.read_value()
        shrinks = variable.shape.rank > 1
        decay = self._settings.weight_decay * rate if self._settings.weight_decay and shrinks else None
        l2 = self._settings.l2 if shrinks else 0.0
        if part.rows is None and variable.dtype == tf.float32:
            if decay is not None:
                variable.assign(variable * (1 - decay))
            self.move_all(variable, slots, part.values + l2 * variable if l2 else part.values, rate)
            if self.averages is not None:
                self.averages.follow_all(number, variable.read_value(), step)
            return
        rows = part.rows
        stored = tf.convert_to_tensor(variable) if rows is None else tf.gather(variable, rows)
        old = tf.cast(stored, tf.float32)
        kept = [tf.convert_to_tensor(slot) if rows is None else tf.gather(slot, rows) for slot in slots]
        moments, change = self.move(kept, part.values + l2 * old if l2 else part.values, rate)
        new = (old if decay is None else old * (1 - decay)) - change
        if variable.dtype != tf.float32:
            # A separate stream for each variable and step; equal rows take the noise of one of them.
            noise = tf.random.stateless_uniform(tf.shape(new), tf.stack([step, tf.constant(number, tf.int64)]))
            new = stochastic_round(new, part.agreed(noise), variable.dtype)
        for target, value in [*zip(slots, moments, strict=True), (variable, new)]:
            if rows is None:
                target.assign(value)
            else:
                target.scatter_update(tf.IndexedSlices(value, rows))
        if self.averages is not None and rows is None:
            self.averages.follow_all(number, tf.cast(new, tf.float32), step)
        elif self.averages is not None:
            self.averages.follow_rows(number, rows, old, tf.cast(new, tf.float32), step)

    def move(self, moments: Moments, gradient: tf.Tensor, rate: tf.Tensor) -> tuple[Moments, tf.Tensor]:
        """Returns the new moments, and what to subtract from the variable."""
        return [], rate * gradient

    def move_all(self, variable: tf.Variable, slots: list[tf.Variable], gradient: tf.Tensor, rate: tf.Tensor) -> None:
        """The same for a whole variable, by the kernel that works in place."""
        tf.raw_ops.ResourceApplyGradientDescent(var=variable.handle, alpha=rate, delta=gradient)


class Sgd(Optimizer):
    """``w -= lr g``."""


class Adagrad(Optimizer):
    """``a += g^2; w -= lr g / (sqrt a + eps)``. Source: Duchi et al., JMLR 2011."""

    moments = (0.1,)
    epsilon = 1e-7

    def move(self, moments: Moments, gradient: tf.Tensor, rate: tf.Tensor) -> tuple[Moments, tf.Tensor]:
        """See the class."""
        accumulated = moments[0] + tf.square(gradient)
        return [accumulated], rate * gradient / (tf.sqrt(accumulated) + self.epsilon)

    def move_all(self, variable: tf.Variable, slots: list[tf.Variable], gradient: tf.Tensor, rate: tf.Tensor) -> None:
        """See the class."""
        tf.raw_ops.ResourceApplyAdagradV2(
            var=variable.handle, accum=slots[0].handle, lr=rate, epsilon=self.epsilon, grad=gradient
        )


class Adam(Optimizer):
    """``m += (1-b1)(g-m); v += (1-b2)(g^2-v); w -= lr_t m / (sqrt v + eps)``. Source: Kingma & Ba, ICLR 2015.

    ``lr_t = lr sqrt(1-b2^t) / (1-b1^t)`` with t the global step, as in Keras; after a warm start, t counts the steps
    behind the earlier moments, too.
    """

    moments = (0.0, 0.0)
    beta1, beta2, epsilon = 0.9, 0.999, 1e-7

    def move(self, moments: Moments, gradient: tf.Tensor, rate: tf.Tensor) -> tuple[Moments, tf.Tensor]:
        """See the class."""
        first = moments[0] + (1 - self.beta1) * (gradient - moments[0])
        second = moments[1] + (1 - self.beta2) * (tf.square(gradient) - moments[1])
        power1, power2 = self._powers()
        corrected = rate * tf.sqrt(1 - power2) / (1 - power1)
        return [first, second], corrected * first / (tf.sqrt(second) + self.epsilon)

    def move_all(self, variable: tf.Variable, slots: list[tf.Variable], gradient: tf.Tensor, rate: tf.Tensor) -> None:
        """See the class."""
        power1, power2 = self._powers()
        tf.raw_ops.ResourceApplyAdam(
            var=variable.handle,
            m=slots[0].handle,
            v=slots[1].handle,
            beta1_power=power1,
            beta2_power=power2,
            lr=rate,
            beta1=self.beta1,
            beta2=self.beta2,
            epsilon=self.epsilon,
            grad=gradient,
        )

    def _powers(self) -> tuple[tf.Tensor, tf.Tensor]:
        t = tf.cast(self.step.read_value(), tf.float32) + self.earlier_steps
        return tf.pow(self.beta1, t), tf.pow(self.beta2, t)


OPTIMIZERS: dict[str, type[Optimizer]] = {"adam": Adam, "adagrad": Adagrad, "sgd": Sgd}


def build_optimizer(
    config: OptimizerConfig, variables: Sequence[tf.Variable], steps: int = 0, replicas: Replicas = ALONE
) -> Optimizer:
    """Builds the optimizer of a recipe; `steps`, those of the whole run, are for a schedule that ends with it."""
    return OPTIMIZERS[config.name](variables, config, steps, replicas)


def rate_share(settings: OptimizerConfig, steps: int, done: tf.Tensor) -> tf.Tensor:
    """The share of `learning_rate` that a step uses.

    With t steps done and W warm-up steps: ``t / W`` while t < W, so the first step only fills the moments. Then, with
    ``p = (t - W) / (steps - W)`` and the final share f: constant 1; linear ``f + (1 - f)(1 - p)``; cosine
    ``f + (1 - f)(1 + cos pi p) / 2``. These are Keras's `PolynomialDecay` and `CosineDecay`.

    Args:
        settings: schedule, warmup_steps, final_share.
        steps: of all epochs of the run, even if it stops early.
        done: int64 scalar, steps done before this one.

    Returns:
        float32 scalar.

    Source: Loshchilov & Hutter, SGDR, ICLR 2017 (cosine).
    """
    warmup, final = settings.warmup_steps, settings.final_share
    at = tf.cast(done, tf.float32)
    passed = tf.clip_by_value((at - warmup) / max(1, steps - warmup), 0.0, 1.0)
    match settings.schedule:
        case "linear":
            share = final + (1 - final) * (1 - passed)
        case "cosine":
            share = final + (1 - final) * (1 + tf.cos(math.pi * passed)) / 2
        case _:
            share = tf.ones_like(at)
    return tf.where(at < warmup, at / warmup, share) if warmup else share
