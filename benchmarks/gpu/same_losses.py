"""Whether TensorFlow's own kernels on a device come to what they come to on the CPU: ten steps from the same seed.

In: the cells of `benchmarks.gpu.cells`. Out: for each the largest difference of a loss, as a share of the largest loss.
"""

from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from benchmarks.gpu.cells import SMALL, Cell
from benchmarks.gpu.compare import MOST, share
from benchmarks.gpu.export import STEPS, batch_of, exact_products, step, task_of

CPU = "CPU:0"


def losses(cell: Cell, device: str, *, jit: bool) -> NDArray[np.float32]:
    """The losses [STEPS] of a new model of the cell, whose variables and steps are on `device`.

    Args:
        cell: its weights, batches and draws are the same at each call.
        device: as TensorFlow names it: ``"GPU:0"``.
        jit: compile with XLA.
    """
    with tf.device(device), exact_products():
        task = task_of(cell, SMALL)
        run = tf.function(partial(step, task), autograph=False, jit_compile=jit)
        return np.array([run(batch_of(task, SMALL, number))[0].numpy() for number in range(STEPS)])


def compared(cell: Cell, device: str) -> dict[str, Any]:
    """Distances of the device's losses, by whether XLA compiles the step, and whether each is within `MOST.losses`.

    What is compared with is the CPU's step without XLA; on the CPU only the compiled one is another.
    """
    expected = losses(cell, CPU, jit=False)
    found = {}
    for name, jit in (("step", False), ("jit_compile", True)):
        if jit or device != CPU:
            ours = losses(cell, device, jit=jit)
            found[name] = share(float(np.abs(ours - expected).max()), float(np.abs(expected).max()))
    return {"near": all(each <= MOST.losses for each in found.values())} | found
