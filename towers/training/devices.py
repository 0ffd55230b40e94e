"""Several devices of one process: each holds the whole model and trains a part of each batch, by `MirroredStrategy`.

A step runs once on each device. A variable has a copy on each, which the step of that device reads and updates. All
take the same step, so the copies stay equal; what runs outside of a step reads the first one and writes all.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

import tensorflow as tf

from towers.errors import ConfigError
from towers.ops.replicas import Replicas, Step
from towers.training.collectives import Collectives
from towers.training.protocols import Batches


class Devices(Collectives):
    """The devices of this process.

    Args:
        strategy: mirrors the variables that are created in its scope.
    """

    strategy: tf.distribute.MirroredStrategy

    @property
    def number(self) -> int:
        """See `Collectives`."""
        return int(tf.get_static_value(tf.distribute.get_replica_context().replica_id_in_sync_group))

    def source(self, examples: Any) -> "Together":
        """See `Replicas`."""
        return Together([replace(examples, worker=number) for number in range(self.count)])

    def batches(self, batch: Any) -> Sequence[Any]:
        """See `Replicas`."""
        return tuple(batch)

    def scope(self) -> AbstractContextManager[Any]:
        """See `Replicas`."""
        scope: AbstractContextManager[Any] = self.strategy.scope()
        return scope

    def step(self, function: Step) -> Step:
        """See `Replicas`; the step returns what the first device does."""

        def every(batches: Sequence[Any]) -> tf.Tensor:
            results = self.strategy.run(lambda: function(batches[self.number]))
            return self.strategy.experimental_local_results(results)[0]

        return every


def local_devices(count: int) -> Replicas:
    """The first `count` GPUs of this machine; without GPUs as many virtual devices, which share its processors.

    Must come before any other use of TensorFlow.

    Raises:
        ConfigError: the machine has fewer GPUs.
    """
    gpus = tf.config.list_physical_devices("GPU")
    if gpus and count > len(gpus):
        raise ConfigError(f"--devices: {count} asked for on a machine with {len(gpus)} GPUs; take at most {len(gpus)}")
    if gpus:
        # TensorFlow would reserve the memory of the others, too.
        tf.config.set_visible_devices(gpus[:count], "GPU")
    else:
        [processors] = tf.config.list_physical_devices("CPU")
        tf.config.set_logical_device_configuration(processors, [tf.config.LogicalDeviceConfiguration()] * count)
    kind = "GPU" if gpus else "CPU"
    return Devices(tf.distribute.MirroredStrategy([f"{kind}:{number}" for number in range(count)]), count)


@dataclass(frozen=True)
class Together:
    """The batches of several devices: each step has a tuple of them.

    Attributes:
        parts: of each device, of equally many steps.
    """

    parts: Sequence[Batches]

    @property
    def steps(self) -> int:
        """Steps per epoch."""
        return self.parts[0].steps

    def batch(self, epoch: int, step: int) -> tuple[Any, ...]:
        """The batches of one step."""
        return tuple(part.batch(epoch, step) for part in self.parts)

    def batches(self, epoch: int, steps: range) -> list[tuple[Any, ...]]:
        """The batches of some steps."""
        return list(zip(*(part.batches(epoch, steps) for part in self.parts), strict=True))
