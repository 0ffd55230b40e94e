"""Bytes that a training holds for each row of an embedding table, by optimizer and by the type of the table.

Of each optimizer two trainings, equal but for the users of an id table, take a few steps, each in a process of its own;
the difference between them, divided by the rows, is what a row costs: all variables of the process, its anonymous
memory after a step, and its peak, which lies at the start or, with `optimizer.average`, in validation, when the
averaged weights are swapped in. Other work on the machine changes none of it.

Claims: the variables are those of `held`, to a byte; with float32 tables the memory after a step is at most 1.1 times
    as much. Writes benchmarks/training/results/table_rows.json; exits with 1 where a claim fails. `--dry` prints it
    instead.
"""

import argparse
import gc
import json
import sys

import numpy as np

from benchmarks.harness.machine import verdict, write
from benchmarks.harness.process_memory import alone, memory

ROWS, ITEMS, DIMENSION, BATCH, STEPS = (200_000, 1_200_000), 1_000, 64, 1_024, 3
MOMENTS = {"sgd": 0, "adagrad": 1, "adam": 2}
BYTES = {"float32": 4, "bfloat16": 2}
AVERAGE = 0.999
MOST = 1.1
OPTIMIZERS = [("sgd", False), ("adagrad", False), ("adam", False), ("adam", True)]
KINDS = [(*each, dtype) for dtype in BYTES for each in OPTIMIZERS]


def main(*, dry: bool) -> int:
    cells = {}
    for name, average, dtype in KINDS:
        small, large = (alone(_measured, rows, name, average, dtype) for rows in ROWS)
        each = {what: round((large[what] - small[what]) / (ROWS[1] - ROWS[0]), 1) for what in large}
        cells[label(name, average, dtype)] = each
        print(label(name, average, dtype), each, file=sys.stderr)
    wanted = [held(name, DIMENSION, average=average, dtype=dtype) for name, average, dtype in KINDS]
    claims = {
        "the variables are those of the formula": [each["variables"] for each in cells.values()] == wanted,
        f"float32: after a step at most {MOST} times as many bytes are resident": all(
            each["resident"] <= MOST * each["variables"] for name, each in cells.items() if name.endswith("float32")
        ),
    }
    sizes = {"rows": ROWS, "items": ITEMS, "dimension": DIMENSION, "batch": BATCH, "steps": STEPS}
    result = {"claims": claims, "sizes": sizes, "bytes_a_row": cells}
    print(json.dumps(result, indent=2) if dry else write(__file__, "table_rows", result))
    return verdict(result)


def label(name: str, average: bool, dtype: str) -> str:
    """The name of a cell in the result."""
    return f"{name}{', average' if average else ''}, {dtype}"


def held(name: str, dimension: int, *, average: bool = False, dtype: str = "float32") -> int:
    """Bytes of a row: weights, float32 moments and sums of the average, an int64 by which gradients are summed (`place`
    in `towers.ops.row_gradients`), and an int64 for the last step in the average.
    """
    return dimension * (BYTES[dtype] + 4 * (MOMENTS[name] + average)) + 8 * (1 + average)


def _measured(rows: int, name: str, average: bool, dtype: str) -> dict[str, int]:
    # Only in the process that measures.
    import tensorflow as tf

    from benchmarks.harness.array_task import ArrayTask

    optimizer = {"name": name} | ({"average": AVERAGE} if average else {})
    model = {"dimension": DIMENSION, "similarity": "dot", "temperature": 1.0, "table_dtype": dtype}
    loss, sampler = {"name": "sampled_softmax"}, {"name": "in_batch"}
    counts = np.arange(ITEMS, 0, -1)
    task = ArrayTask(rows, counts, DIMENSION, BATCH, loss, sampler, more={"model": model, "optimizer": optimizer})
    task.optimizer.learning_rate = 0.001
    rng = np.random.default_rng(0)
    for number in range(STEPS):
        task.step(task.batch(rng.integers(0, rows, BATCH), rng.integers(0, ITEMS, BATCH), (1, number))).numpy()
    gc.collect()
    variables = {id(each): each for each in gc.get_objects() if isinstance(each, tf.Variable)}.values()
    held_bytes = sum(each.shape.num_elements() * each.dtype.size for each in variables)
    resident = memory()["RssAnon"]
    with task.optimizer.averaged():
        pass
    return {"variables": held_bytes, "resident": resident, "peak": memory()["VmHWM"]}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks.training.table_rows", description=__doc__)
    parser.add_argument("--dry", action="store_true", help="print the result, keep none")
    sys.exit(main(dry=parser.parse_args().dry))
