"""Full softmax over a catalogue, Adam on every row: time of a step and how far its memory rises above the tables'.

Claim: at N = 1 000 000, B = 1024, D = 64 a training step needs at most 512 MB beside the tables, their gradients and
    the moments. The item table also feeds the queries (a shared history): its gradient comes from three places. Each
    size runs in a process of its own, which first takes three small steps (8 queries, 20 000 items), so that
    TensorFlow's own code and threads are not measured. Writes benchmarks/training/results/full_softmax.json; exits with
    1 where the claim fails.
"""

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.harness.machine import ROOT, verdict, write

ITEMS = (10_000, 100_000, 1_000_000)
BATCH, DIMENSION, USERS, HISTORY, STEPS = 1_024, 64, 5_000, 20, 4
MOST_BYTES = 512_000_000


def main(items: tuple[int, ...], batch: int, dry: bool) -> int:
    runs = {}
    for count in items:
        words = [sys.executable, "-m", "benchmarks.training.full_softmax", "--one", str(count), "--batch", str(batch)]
        done = subprocess.run(words, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
        runs[count] = json.loads(done.stdout.splitlines()[-1])
        run = runs[count]
        print(f"{count:>10,} items {run['step_s']:7.2f} s a step, {run['beside_bytes'] / 1e6:6.0f} MB beside")
    largest = runs[max(items)]
    claims = {
        f"at most {MOST_BYTES / 1e6:g} MB beside tables, gradients, moments": largest["beside_bytes"] <= MOST_BYTES
    }
    sizes = {"batch": batch, "dimension": DIMENSION, "users": USERS, "history": HISTORY}
    result = {"claims": claims, "sizes": sizes, "items": runs}
    if not dry:
        print(write(__file__, "full_softmax", result))
    return verdict(result)


def measured(count: int, batch: int) -> dict[str, Any]:
    """Seconds of a step, the median, and how far the peak resident memory rises above what is there before."""
    seconds_of(new_step(20_000), 20_000, 8, steps=3)
    step = new_step(count)
    before = peak_bytes()
    seconds = seconds_of(step, count, batch, STEPS)
    gradients = (count + USERS) * DIMENSION * 4
    rise = peak_bytes() - before
    return {
        "step_s": round(float(np.median(seconds[1:])), 3),
        "first_step_s": round(seconds[0], 3),
        "rise_bytes": rise,
        "gradient_bytes": gradients,
        "beside_bytes": rise - gradients,
    }


def new_step(count: int) -> Callable[..., Any]:
    """Tables of `count` items, their moments, and a step of training as `towers.training.trainer` does it."""
    import towers  # noqa: F401 - asks for Keras 2 before TensorFlow is imported
    import tensorflow as tf  # isort: skip

    from towers.config.sections import OptimizerConfig
    from towers.losses.full_softmax import full_softmax
    from towers.training.optimizers import build_optimizer

    # Zeros: random numbers would need memory of their own, which the step could then use unseen.
    item_table = tf.Variable(tf.zeros([count, DIMENSION]))
    user_table = tf.Variable(tf.random.stateless_uniform([USERS, DIMENSION], [3, 4], -0.1, 0.1))
    log_temperature = tf.Variable(-1.0)
    variables = [item_table, user_table, log_temperature]
    optimizer = build_optimizer(OptimizerConfig(name="adam", learning_rate=0.01), variables)

    @tf.function(autograph=False)
    def step(user: Any, item: Any, history: Any) -> Any:
        with tf.GradientTape() as tape:
            query = tf.gather(user_table, user) + tf.reduce_mean(tf.gather(item_table, history), axis=1)
            scale = tf.exp(-log_temperature)
            positive = tf.reduce_sum(query * tf.gather(item_table, item), axis=1, keepdims=True) * scale
            losses = full_softmax(
                query, lambda rank: tf.gather(item_table, rank), count=count, scale=scale, positive=positive
            )
            loss = tf.reduce_mean(losses)
        optimizer.apply(tape.gradient(loss, variables))
        return loss

    return step


def seconds_of(step: Callable[..., Any], count: int, batch: int, steps: int) -> list[float]:
    """Runs `steps` of them on random examples; the first one traces."""
    import tensorflow as tf

    rng = np.random.default_rng(0)
    seconds = []
    for _ in range(steps):
        batch_of = [
            rng.integers(0, top, size) for top, size in ((USERS, batch), (count, batch), (count, (batch, HISTORY)))
        ]
        tensors = [tf.constant(values) for values in batch_of]
        start = time.perf_counter()
        step(*tensors).numpy()
        seconds.append(time.perf_counter() - start)
    return seconds


def peak_bytes() -> int:
    # Kilobytes on Linux, bytes on macOS.
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks.training.full_softmax", description=__doc__)
    parser.add_argument("--items", type=int, nargs="+", default=ITEMS)
    parser.add_argument("--batch", type=int, default=BATCH)
    parser.add_argument("--dry", action="store_true", help="write no result")
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        print(json.dumps(measured(given.one, given.batch)))
    else:
        sys.exit(main(tuple(given.items), given.batch, given.dry))
