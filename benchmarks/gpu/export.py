"""Writes the compiled train step of every loss and sampler for a machine with a GPU and JAX but without TensorFlow.

Out: one file with, for each cell, the train step as an HLO module that also returns the gradients, the first weights,
    ten batches, and what TensorFlow makes of them on this processor, uncompiled; and the steps that are timed, for each
    batch size. `benchmarks.gpu.run` reads it.

Cells multiply in float32. The timed steps may use a GPU's faster TF32, as TensorFlow does there by default.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from benchmarks.gpu.archive import save
from benchmarks.gpu.cells import SMALL, TIMED, TIMED_BATCHES, Cell, Sizes, cells, timed
from benchmarks.gpu.hlo import entry_of, places_of, state_of
from benchmarks.harness.array_task import ArrayTask
from benchmarks.harness.machine import record
from towers.data.batch import Batch

STEPS, RATE = 10, 0.01
TIMED_STEPS = 4  # batches of a timed step, in turn


def main(path: Path, chosen: Sequence[str], batches: Sequence[int]) -> int:
    every = cells()
    if unknown := set(chosen) - every.keys():
        raise SystemExit(f"--cells: {', '.join(sorted(unknown))}; must be of: {'; '.join(every)}")
    content: dict[str, Any] = {"exported": record(), "cells": {}, "timed": {}}
    with exact_products():
        for name in chosen or every:
            print(name, flush=True)
            content["cells"][name] = cell_of(every[name])
    for name, cell in timed().items():
        for size in batches:
            print(f"{name}, batches of {size:,}", flush=True)
            content["timed"][f"{name}, {size}"] = timed_of(cell, size)
    save(path, content)
    print(f"{path}: {path.stat().st_size / 1e6:.0f} MB")
    return 0


@contextmanager
def exact_products() -> Iterator[None]:
    """Compiles products of float32 as such: a GPU would otherwise multiply 10 of their 23 bits (TF32)."""
    before = tf.config.experimental.tensor_float_32_execution_enabled()
    tf.config.experimental.enable_tensor_float_32_execution(False)
    try:
        yield
    finally:
        tf.config.experimental.enable_tensor_float_32_execution(before)


def cell_of(cell: Cell) -> dict[str, Any]:
    """The compiled step of one cell, its batches, and what TensorFlow comes to without compiling it.

    `compares` are the places in `state` of what a checkpoint would hold of what the step writes.
    """
    task = task_of(cell, SMALL)
    batches = [batch_of(task, SMALL, number) for number in range(STEPS)]
    compiled = tf.function(partial(step, task), autograph=False, jit_compile=True)
    entry = entry_of(compiled, batches)
    uncompiled = tf.function(partial(step, task), autograph=False)
    (loss, *gradients), *others = [uncompiled(batch) for batch in batches]
    state = state_of(compiled, batches[0], [each.dtype for each in entry["state"]])
    # Not the optimizer's scratch: of equal rows another one wins on a GPU.
    kept = places_of(compiled, batches[0], [*task.task.variables, *task.optimizer.variables])
    compares = [place for place in entry["written"] if place in kept]
    return entry | {
        "compares": compares,
        "expected": {
            "losses": np.array([loss, *(first for first, *_ in others)]),
            "gradients": [each.numpy() for each in gradients],
            "state": [state[place] for place in compares],
        },
    }


def step(task: ArrayTask, batch: Batch) -> list[tf.Tensor]:
    """The train step. Returns the loss, then the gradient of each variable that has one."""
    with tf.GradientTape() as tape:
        loss = task.task.compute_loss(batch)
    gradients = tape.gradient(loss, task.optimizer.variables_in_order)
    task.optimizer.apply(gradients)
    return [loss, *(tf.convert_to_tensor(each) for each in gradients if each is not None)]


def timed_of(cell: Cell, batch_size: int) -> dict[str, Any]:
    """The compiled step that is timed, for one batch size."""
    sizes = TIMED._replace(batch=batch_size)
    task = task_of(cell, sizes)
    return entry_of(task.step, [batch_of(task, sizes, number) for number in range(TIMED_STEPS)]) | {
        "precision": task.config.train.precision,
        "batch": batch_size,
        "candidates": (cell.sampler or {}).get("negatives", batch_size),
        "dimension": sizes.dimension,
    }


def task_of(cell: Cell, sizes: Sizes) -> ArrayTask:
    """A new model of a cell, the same one at each call."""
    loss = ({"remove_accidental_hits": True} if cell.sampler else {}) | cell.loss
    more = {"model": {"dimension": sizes.dimension}, "train": {**cell.train, "jit_compile": True, "seed": 1}}
    # Examples of each item, by which batches are drawn, too.
    counts = np.sort(np.random.default_rng(0).zipf(1.3, sizes.items).clip(1, 1_000_000))[::-1].astype(np.int64)
    task = ArrayTask(sizes.users, counts, sizes.dimension, sizes.batch, loss, cell.sampler, more=more)
    task.restart(RATE)
    return task


def batch_of(task: ArrayTask, sizes: Sizes, number: int) -> Batch:
    """Examples with grades 1 to 3, weights, and as many positives as the loss takes, some absent."""
    rng = np.random.default_rng(number)
    shape = (sizes.batch, task.config.loss.positives)
    item = rng.zipf(1.3, shape) % sizes.items
    present = rng.random(shape) < 0.8
    present[:, 0] = True
    weight = rng.uniform(0.5, 1.5, sizes.batch).astype(np.float32)
    batch = task.batch(rng.integers(0, sizes.users, sizes.batch), item[:, 0], (1, number), weight)
    return batch._replace(
        item=tf.constant(item, tf.int64),
        present=tf.constant(present),
        label=tf.constant(rng.integers(1, 4, shape), tf.float32),
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu.export", description=__doc__)
    parser.add_argument("file", type=Path, help="an .npz")
    parser.add_argument("--cells", nargs="*", default=[], metavar="NAME", help="these alone")
    parser.add_argument("--batches", nargs="*", type=int, default=TIMED_BATCHES, help="sizes that are timed")
    given = parser.parse_args()
    sys.exit(main(given.file, given.cells, given.batches))
