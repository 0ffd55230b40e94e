"""The input pipeline alone, from memory-mapped files, against the training step that it feeds; and the memory held.

The same 40,000 users and 100,000 items with 2 and with 20 million events (`towers synth`, `prepare`), the features that
are derived from their columns: ids, histories, attributes of users and items, the device of each event. Histories are
of 10, which most examples have at both sizes: longer ones would be fuller with more events a user, and so would every
batch. Each size trains in a process of its own, as `towers train` does: batches are made alone, then steps run
on ready batches.
Claims: batches come at least 5 times as fast as steps use them; anonymous memory, which no file backs, is at 20 million
events at most 128 MB above that at 2 million, while training and at its peak. What rises is the sample of validation
users, as many with ten times the history. Memory is read after a whole epoch of batches. Medians of rounds that take
turns. Writes benchmarks/training/results/input.json; exits with 1 where a claim fails.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness.machine import ROOT, verdict, write
from benchmarks.harness.process_memory import MeasuredProcess, memory

EVENTS, USERS, ITEMS = (2_000_000, 20_000_000), 40_000, 100_000
LEAST_TIMES, MOST_RISE = 5.0, 128_000_000
HISTORY = 10  # items
STEPS = 20  # of a round


def main(work: Path, sizes: tuple[int, ...], rounds: int, dry: bool) -> int:
    runs: dict[str, Any] = {}
    for events in sizes:
        folder = work / str(events)
        options = ["--users", str(USERS), "--items", str(ITEMS), "--events", str(events)]
        towers("synth", "--out", str(folder / "world"), *options)
        towers("prepare", "--events", str(folder / "world"), "--out", str(folder / "dataset"))
        words = [
            sys.executable,
            "-m",
            "benchmarks.training.input_pipeline",
            "--one",
            str(folder),
            "--rounds",
            str(rounds),
        ]
        child = MeasuredProcess(words, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        said = child.process.stdout.read() if child.process.stdout else ""
        peaks = child.wait()
        if peaks.pop("code"):
            sys.exit(f"error: training on {events:,} events failed")
        runs[str(events)] = {**json.loads(said.splitlines()[-1]), **peaks}
        print(f"{events:,} events: {runs[str(events)]}")
    few, many = (runs[str(events)] for events in (sizes[0], sizes[-1]))
    claims = {
        f"{int(events):,} events: at least {LEAST_TIMES:g} times as fast as training": run["times_training"]
        >= LEAST_TIMES
        for events, run in runs.items()
    }
    for name in ("training_anonymous_bytes", "peak_anonymous_bytes"):
        claims[f"{name}: at most {MOST_RISE / 1e6:g} MB more at {sizes[-1]:,} events"] = (
            many[name] <= few[name] + MOST_RISE
        )
    sizes_of = {"users": USERS, "items": ITEMS, "history": HISTORY, "rounds": rounds, "steps": STEPS}
    result = {"claims": claims, "sizes": sizes_of, "events": runs}
    if not dry:
        print(write(__file__, "input", result))
    return verdict(result)


def measured(folder: Path, rounds: int) -> dict[str, Any]:
    """Builds a training as `towers train` does; examples a second of its batches and of its steps."""
    from pipelines.dataset.dataset import Dataset
    from pipelines.dataset.leaks import refuse_leaks
    from pipelines.training.check import check_recipe
    from pipelines.training.stage import build_training
    from towers.config.recipe import load_config
    from towers.training.prefetch import as_tensors, prefetch
    from towers.training.trainer import Trainer

    data = Dataset.open(folder / "dataset")
    config = check_recipe(load_config("default"), data)
    query = config.features.query or {}
    query["history"] = query["history"].model_copy(update={"max_length": HISTORY})
    refuse_leaks(data)
    (folder / "run").mkdir()
    training = build_training(config, data, ("train",), folder / "run", folder / "run", validated=True)
    trainer = Trainer(training.task, training.batches, config.optimizer, config.train, folder / "run", None)
    batches, size = training.batches, config.train.batch_size
    together = min(trainer.steps_per_task, STEPS)
    seconds: dict[str, list[float]] = {"batches": [], "steps": []}
    for turn in range(rounds + 1):
        begin = time.perf_counter()
        for first in range(0, STEPS, together):
            batches.batches(turn, range(first, min(first + together, STEPS)))
        between = time.perf_counter()
        tensors = [as_tensors(batch) for batch in batches.batches(turn, range(together))]
        ready = time.perf_counter()
        for step in range(STEPS):
            trainer._step(tensors[step % together])
        trainer.optimizer.step.numpy()  # waits for the last one
        if turn:  # the first one compiles
            seconds["batches"].append(between - begin)
            seconds["steps"].append(time.perf_counter() - ready)
    for _ in prefetch(batches, 0, per_task=trainer.steps_per_task):
        pass
    rate = {name: STEPS * size / float(np.median(taken)) for name, taken in seconds.items()}
    return {
        "features": list(config.features.query or {}) + list(config.features.candidate or {}),
        "batch_size": size,
        "batches_examples_per_s": round(rate["batches"]),
        "steps_examples_per_s": round(rate["steps"]),
        "times_training": round(rate["batches"] / rate["steps"], 2),
        "training_resident_bytes": memory()["VmRSS"],
        "training_anonymous_bytes": memory()["RssAnon"],
    }


def towers(*words: str) -> None:
    """Runs a command; a failure ends the benchmark with its own message."""
    done = subprocess.run([sys.executable, "-m", "pipelines", *words], cwd=ROOT, stdout=sys.stderr, check=False)
    if done.returncode:
        sys.exit(f"error: towers {words[0]} ended with code {done.returncode}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks.training.input_pipeline", description=__doc__)
    parser.add_argument("--events", type=int, nargs="+", default=EVENTS, help="fewer for a trial")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--dry", action="store_true", help="print only")
    parser.add_argument("--one", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one is not None:
        print(json.dumps(measured(given.one, given.rounds)))
        sys.exit(0)
    with tempfile.TemporaryDirectory() as directory:
        sys.exit(main(Path(directory), tuple(given.events), given.rounds, given.dry))
