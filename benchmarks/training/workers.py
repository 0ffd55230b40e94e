"""Time and bytes of a training step with one and with two workers on this machine, in a small and a large catalogue.

Whole steps as the trainer makes them, in-batch softmax and row-sparse Adam. The batch is the same for all workers
together; its items are distinct, so that both catalogues exchange as many rows. Bytes are what the loopback device
received in a step, of all processes: run it on a quiet machine.

Claim: a step's bytes do not grow with the catalogue (at most 1.1 times). Writes
    benchmarks/training/results/workers.json; exits with 1 where a claim fails. `--dry` prints it instead.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness.machine import ROOT, verdict, write
from pipelines.training.local_workers import free_ports

CATALOGUES, USERS, BATCH, DIMENSION = (10_000, 1_000_000), 100_000, 4_096, 64
STEPS, WARM_UP = 40, 5
MOST = 1.1


def main(*, dry: bool) -> int:
    cases = [{"items": items, "workers": count, **_measure(items, count)} for items in CATALOGUES for count in (1, 2)]
    small, large = (each["bytes_a_step"] for each in cases if each["workers"] == 2)
    claims = {
        f"two workers exchange at most {MOST} times the bytes among {CATALOGUES[1]:,} items that they exchange among "
        f"{CATALOGUES[0]:,}": large <= MOST * small
    }
    sizes = {"users": USERS, "batch": BATCH, "dimension": DIMENSION, "steps": STEPS}
    result = {"claims": claims, "sizes": sizes, "cases": cases}
    print(json.dumps(result, indent=2) if dry else write(__file__, "workers", result))
    return verdict(result)


def _measure(items: int, count: int) -> dict[str, Any]:
    """Median time of a step, and mean bytes, as the first worker finds them."""
    cluster = {"worker": [f"127.0.0.1:{port}" for port in free_ports(count)]}
    command = [sys.executable, "-m", "benchmarks.training.workers", "--items", str(items)]
    workers = []
    for rank in range(count):
        config = json.dumps({"cluster": cluster, "task": {"type": "worker", "index": rank}})
        environment = os.environ | {"TF_CONFIG": config}
        workers.append(subprocess.Popen(command, env=environment, cwd=ROOT, stdout=subprocess.PIPE, text=True))
    told = [each.communicate()[0] for each in workers]
    if any(each.returncode for each in workers):
        raise RuntimeError(f"a worker failed: {told}")
    figures: dict[str, Any] = json.loads(told[0])
    return figures


def _work(items: int) -> None:
    """Trains as one of the workers and prints the figures."""
    from towers.training.workers import connect

    replicas = connect()
    from benchmarks.harness.array_task import ArrayTask

    counts = np.sort(np.random.default_rng(0).zipf(1.3, items).clip(1, 1_000_000))[::-1].astype(np.int64)
    task = ArrayTask(
        USERS, counts, DIMENSION, BATCH, {"name": "sampled_softmax"}, {"name": "in_batch"}, replicas=replicas
    )
    task.restart(0.001)
    rng = np.random.default_rng(1)
    times: list[float] = []
    for number in range(STEPS + WARM_UP):
        user, item = rng.integers(0, USERS, BATCH), rng.choice(items, BATCH, replace=False)
        part = replicas.part(BATCH)
        batch = task.batch(user[part], item[part], (1, number))
        if number == WARM_UP:
            before = _received()
        begin = time.perf_counter()
        task.step(batch).numpy()
        if number >= WARM_UP:
            times.append(time.perf_counter() - begin)
    figures = {"median_ms": round(statistics.median(times) * 1e3, 2), "bytes_a_step": (_received() - before) // STEPS}
    print(json.dumps(figures))


def _received() -> int:
    """Bytes that the loopback device has received."""
    [line] = [each for each in Path("/proc/net/dev").read_text().splitlines() if each.strip().startswith("lo:")]
    return int(line.split()[1])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks.training.workers", description=__doc__)
    parser.add_argument("--dry", action="store_true", help="print the result, keep none")
    parser.add_argument("--items", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.items:
        _work(given.items)
    else:
        sys.exit(main(dry=given.dry))
