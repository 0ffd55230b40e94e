"""What the workers that train one model exchange. A process that trains alone exchanges nothing.

Each worker computes the queries and positives of its own part of the batch. Candidates, sums and gradients are those of
the whole batch, so that every worker takes the same step. `towers.training.workers` has the form for several.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

Step = Callable[[Any], tf.Tensor]


class Replicas:
    """A single worker: all values are its own, and its graph gets no operation.

    Attributes:
        rank: number of this worker, from 0. The first one writes the files of the run.
        count: number of workers.
    """

    rank, count = 0, 1

    def gather(self, rows: tf.Tensor) -> tf.Tensor:
        """The rows [n, ...] of all workers in the order of their ranks, [count n, ...].

        The gradient of a worker's rows is the sum of the gradients that all workers have for them.

        Args:
            rows: n is the same for every worker.
        """
        return rows

    def own(self, gathered: tf.Tensor) -> tf.Tensor:
        """This worker's part of what `gather` returned."""
        return gathered

    def begin(self, rows: int) -> int:
        """The index of this worker's first row among gathered rows, if each worker has `rows` of them."""
        return 0

    def gather_uneven(self, rows: tf.Tensor) -> tf.Tensor:
        """As `gather`, with any number of rows for each worker and without a gradient."""
        return rows

    def sum(self, values: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """The sum over all workers of each of `values`; their gradient is not defined."""
        return list(values)

    def seed(self, seed: tf.Tensor) -> tf.Tensor:
        """The seed [2] for masks and noise of a worker's own examples, from that of the step."""
        return seed

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

    def copy_first(self, variables: Sequence[tf.Variable]) -> None:
        """Assigns the first worker's values to the variables of all workers."""


ALONE = Replicas()


def slices(size: int, count: int) -> list[slice]:
    """Cuts a list of `size` into `count` parts whose sizes differ by at most one."""
    edges = np.linspace(0, size, count + 1).astype(int).tolist()
    return [slice(low, high) for low, high in pairwise(edges)]
