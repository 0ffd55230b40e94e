"""Threads that make batches, as tensors, while the model trains."""

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import tensorflow as tf

from towers.training.protocols import Batches

THREADS = 2
TASKS = 2 * THREADS  # under way or waiting
TASK_BYTES = 1 << 20  # of batches that one task makes: one by one, small ones take longer to make and hand over


def prefetch(
    examples: Batches, epoch: int, first_step: int = 0, *, per_task: int = 1, host: bool = False
) -> Iterator[tuple[int, Any]]:
    """The steps of one epoch from `first_step` on, each with its batch as tensors.

    An error of a batch is raised in place of the first batch of its task.

    Args:
        per_task: steps whose batches a task makes, see `steps_per_task`.
        host: leave the tensors in host memory: a step that XLA compiled takes them to the GPU itself, sooner than
            TensorFlow copies them one by one. A step without XLA would copy them late and wait.
    """

    def make(first: int) -> list[Any]:
        steps = range(first, min(first + per_task, examples.steps))
        with tf.device("CPU:0" if host else None):
            return [as_tensors(batch) for batch in examples.batches(epoch, steps)]

    tasks: deque[Future[list[Any]]] = deque()
    firsts = range(first_step, examples.steps, per_task)
    pool = ThreadPoolExecutor(THREADS)
    try:
        for number, first in enumerate(firsts):
            tasks.extend(pool.submit(make, later) for later in firsts[number + len(tasks) : number + TASKS])
            yield from enumerate(tasks.popleft().result(), first)
    finally:
        pool.shutdown(cancel_futures=True)


def steps_per_task(batch: Any) -> int:
    """How many batches like this one, tensors, make up `TASK_BYTES`; at least one."""
    size = sum(each.shape.num_elements() * each.dtype.size for each in tf.nest.flatten(batch))
    return int(max(1, TASK_BYTES // size))


def as_tensors(batch: Any) -> Any:
    """The same batch, as tensors: on the GPU, where there is one, unless a device is named around the call."""
    return tf.nest.map_structure(tf.convert_to_tensor, batch)
