"""What the replicas of a `tf.distribute` strategy exchange in a step, each with a number of its own."""

from abc import abstractmethod
from collections.abc import Callable, Sequence

import tensorflow as tf

from towers.ops.replicas import Replicas

SEED = 0x9E3779B1  # odd, so that the numbers of replicas give different seeds modulo 2^31


class Collectives(Replicas):
    """Replicas whose steps run by a strategy.

    Args:
        strategy: gives a step its collectives.
        count: number of replicas.
    """

    def __init__(self, strategy: tf.distribute.Strategy, count: int) -> None:
        self.strategy, self.count = strategy, count

    @property
    @abstractmethod
    def number(self) -> int:
        """The number of the replica whose step asks."""

    def gather(self, rows: tf.Tensor) -> tf.Tensor:
        """See `Replicas`."""
        shape = rows.shape.as_list()
        full = [None if shape[0] is None else shape[0] * self.count, *shape[1:]]
        if rows.dtype == tf.bool:
            return self.gather(tf.cast(rows, tf.int32)) > 0
        if not rows.dtype.is_floating:
            return tf.ensure_shape(self.gather_uneven(rows), full)

        @tf.custom_gradient
        def gathered(rows: tf.Tensor) -> tuple[tf.Tensor, Callable[[tf.Tensor], tf.Tensor]]:
            # TensorFlow's own gradient of an all-gather exchanges the sizes, too.
            return self.gather_uneven(rows), lambda upstream: self.own(self.sum([upstream])[0])

        return tf.ensure_shape(gathered(rows), full)

    def own(self, gathered: tf.Tensor) -> tf.Tensor:
        """See `Replicas`."""
        rows = gathered.shape[0]
        size = tf.shape(gathered)[0] // self.count if rows is None else rows // self.count
        return gathered[self.number * size : (self.number + 1) * size]

    def begin(self, rows: int) -> int:
        """See `Replicas`."""
        return self.number * rows

    def gather_uneven(self, rows: tf.Tensor) -> tf.Tensor:
        """See `Replicas`."""
        # A copy on the replica's device: an argument of a function names none, and the exchange asks for it.
        return tf.distribute.get_replica_context().all_gather(tf.identity(rows), axis=0)

    def sum(self, values: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """See `Replicas`."""
        placed = [tf.identity(value) for value in values]
        return list(tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, placed))

    def seed(self, seed: tf.Tensor) -> tf.Tensor:
        """See `Replicas`; the first replica keeps the step's own."""
        return seed + tf.constant([self.number * SEED & 0x7FFFFFFF, 0], seed.dtype)
