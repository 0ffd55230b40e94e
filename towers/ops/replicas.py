"""What the replicas of a model that is trained exchange. A process that trains alone on one device exchanges nothing.

Each replica computes the queries and positives of its own part of the batch. Candidates, sums and gradients are those
of the whole batch, so that every replica takes the same step. `towers.training.workers` has the form for several
processes, `towers.training.devices` that for several devices of one.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import pairwise
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

Step = Callable[[Any], tf.Tensor]


class Replicas:
    """A single replica: all values are its own, and its graph gets no operation.

    A step calls the methods up to `seed`, a process the others.

    Attributes:
        count: number of replicas, and so of the equal parts of each batch.
        workers: number of processes.
        rank: number of this process, from 0. The first one writes the files of the run.
    """

    count = workers = 1
    rank = 0

    def gather(self, rows: tf.Tensor) -> tf.Tensor:
        """The rows [n, ...] of all replicas in their order, [count n, ...].

        The gradient of a replica's rows is the sum of the gradients that all replicas have for them.

        Args:
            rows: n is the same for every replica.
        """
        return rows

    def own(self, gathered: tf.Tensor) -> tf.Tensor:
        """This replica's part of what `gather` returned."""
        return gathered

    def begin(self, rows: int) -> int:
        """The index of this replica's first row among gathered rows, if each replica has `rows` of them."""
        return 0

    def gather_uneven(self, rows: tf.Tensor) -> tf.Tensor:
        """As `gather`, with any number of rows for each replica and without a gradient."""
        return rows

    def sum(self, values: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """The sum over all replicas of each of `values`; their gradient is not defined."""
        return list(values)

    def seed(self, seed: tf.Tensor) -> tf.Tensor:
        """The seed [2] for masks and noise of a replica's own examples, from that of the step."""
        return seed

    def source(self, examples: Any) -> Any:
        """The batches that this process trains, from those of one part, the one with the number `rank`."""
        return examples

    def batches(self, batch: Any) -> Sequence[Any]:
        """The batches of single parts in what a step takes."""
        return [batch]

    def scope(self) -> AbstractContextManager[Any]:
        """Where the variables of the model and its training are created."""
        return nullcontext()

    def step(self, function: Step) -> Step:
        """`function` in a form that may call the methods above; each worker must call it equally often."""
        return function

    def part(self, size: int) -> slice:
        """This worker's part of a list of any size; the parts of all workers in order are the list."""
        return slice(0, size)

    def gather_array(self, rows: NDArray[Any]) -> NDArray[Any]:
        """As `gather_uneven`, for an array of float32, float64 or integers, outside of a step."""
        return rows

    def from_first(self, text: str) -> str:
        """The text that the first worker gives."""
        return text

    def published(self) -> None:
        """Lets the others, which wait by `from_first`, end; the first worker needs none of them any more."""

    def copy_first(self, variables: Sequence[tf.Variable]) -> None:
        """Assigns the first worker's values to the variables of all workers."""


ALONE = Replicas()


def slices(size: int, count: int) -> list[slice]:
    """Cuts a list of `size` into `count` parts whose sizes differ by at most one."""
    edges = np.linspace(0, size, count + 1).astype(int).tolist()
    return [slice(low, high) for low, high in pairwise(edges)]
