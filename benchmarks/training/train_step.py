"""What sampled negatives cost: a train step with 4,096 of them among a million items, beside the in-batch step with as
many candidates. Whole steps as the trainer makes them: forward, backward, row-sparse Adam.

Claim: at most 1.2 times the in-batch step. Writes benchmarks/training/results/train_step.json; exits with 1 where a
    claim fails. `--dry` prints it instead.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.harness.array_task import ArrayTask
from benchmarks.harness.machine import verdict, write

ITEMS, USERS, BATCH, DIMENSION = 1_000_000, 100_000, 4_096, 64
ROUNDS, WARM_UP = 25, 3
MOST = 1.2
SAMPLERS: dict[str, dict[str, Any]] = {
    name: {"name": name, "negatives": BATCH} for name in ("uniform", "log_uniform", "learned_unigram", "unigram")
} | {"log_uniform, distinct": {"name": "log_uniform", "negatives": BATCH, "distinct": True}}


def main(*, dry: bool) -> int:
    counts = np.sort(np.random.default_rng(0).zipf(1.3, ITEMS).clip(1, 1_000_000))[::-1].astype(np.int64)
    popularity = counts / counts.sum()
    step = {name: _stepper(sampler, counts, popularity) for name, sampler in {"in_batch": None, **SAMPLERS}.items()}
    times: dict[str, list[float]] = {name: [] for name in step}
    for turn in range(ROUNDS + WARM_UP):
        # A tour over all of them in each round: what slows the machine slows them all.
        for name, run in step.items():
            begin = time.perf_counter()
            run(turn)
            if turn >= WARM_UP:
                times[name].append(time.perf_counter() - begin)
    median = {name: statistics.median(values) for name, values in times.items()}
    ratio = {
        name: statistics.median(a / b for a, b in zip(times[name], times["in_batch"], strict=True)) for name in SAMPLERS
    }
    claims = {f"{name}: at most {MOST} times the in-batch step": value <= MOST for name, value in ratio.items()}
    result = {
        "claims": claims,
        "sizes": {"items": ITEMS, "users": USERS, "batch": BATCH, "negatives": BATCH, "dimension": DIMENSION},
        "median_ms": {name: round(value * 1e3, 2) for name, value in median.items()},
        "ratio_to_in_batch": {name: round(value, 3) for name, value in ratio.items()},
        "rounds": ROUNDS,
    }
    print(json.dumps(result, indent=2) if dry else write(__file__, "train_step", result))
    return verdict(result)


def _stepper(sampler: dict[str, Any] | None, counts: Any, popularity: Any) -> Callable[[int], None]:
    """A function that trains one batch and waits for it."""
    task = ArrayTask(USERS, counts, DIMENSION, BATCH, {"name": "sampled_softmax"}, sampler or {"name": "in_batch"})
    task.restart(0.001)
    rng = np.random.default_rng(1)
    batches = [
        task.batch(rng.integers(0, USERS, BATCH), rng.choice(ITEMS, BATCH, p=popularity), (1, number))
        for number in range(ROUNDS + WARM_UP)
    ]

    def run(turn: int) -> None:
        task.step(batches[turn]).numpy()

    return run


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks.training.train_step", description=__doc__)
    parser.add_argument("--dry", action="store_true", help="print the result, keep none")
    sys.exit(main(dry=parser.parse_args().dry))
