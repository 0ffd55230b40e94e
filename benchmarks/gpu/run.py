"""Runs the export of `benchmarks.gpu.export` by JAX on whatever device it has. Needs numpy and jax, no TensorFlow.

Claim: in every cell the losses of ten steps, the gradients of the first and all that a checkpoint would hold are
    TensorFlow's on a CPU, within the tolerances of `benchmarks.gpu.compare`. Then it times batches of 1k to 64k (on a
    CPU to 4k) beside the device's own matrix products. Writes benchmarks/gpu/results/jax_DEVICE.json; exits with 1
    where the claim fails.
"""

import argparse
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np

from benchmarks.gpu.archive import load
from benchmarks.gpu.compare import MOST, Outcome, distance, near
from benchmarks.gpu.jax_step import Step
from benchmarks.gpu.timing import times
from benchmarks.harness.machine import verdict, write

MOST_ON_CPU = 4_096  # a batch; the next would take minutes


def main(path: Path, most: int | None, dry: bool) -> int:
    content = load(path)
    device = jax.devices()[0]
    most = most or (MOST_ON_CPU if device.platform == "cpu" else sys.maxsize)
    exported = content["exported"]
    print(f"{device.device_kind} ({device.platform}), JAX {jax.__version__}; exported from {exported['commit']}")
    cells = {name: _told(name, _compared, entry) for name, entry in content["cells"].items()}
    timed = {name: _told(name, times, entry) for name, entry in content["timed"].items() if entry["batch"] <= most}
    far = [name for name, each in cells.items() if not each.get("near")]
    claims = {f"{len(cells)} cells: losses, gradients and state are TensorFlow's": bool(cells) and not far}
    result = {
        # The code that was measured is the exported one.
        "commit": exported["commit"],
        "dirty": exported["dirty"],
        "exported": exported,
        "device": {"name": device.device_kind, "platform": device.platform, "version": device.client.platform_version},
        "claims": claims,
        "tolerances": MOST._asdict(),
        "cells": cells,
        "times": timed,
    }
    if far:
        print(f"not near: {'; '.join(far)}")
    if not dry:
        print(write(__file__, f"jax_{re.sub(r'[^a-z0-9]+', '_', device.device_kind.lower())}", result))
    return verdict(result)


def _told(name: str, measure: Callable[[dict[str, Any]], dict[str, Any]], entry: dict[str, Any]) -> dict[str, Any]:
    """Measures and prints; `error` if the device cannot run it or has too little memory."""
    try:
        found = measure(entry)
    except jax.errors.JaxRuntimeError as error:
        found = {"error": str(error)}
    print(f"{name}: {found}", flush=True)
    return found


def _outcome(entry: dict[str, Any]) -> Outcome:
    """Takes the steps of a cell on JAX's device."""
    step, state = Step(entry), entry["state"]
    results = []
    for batch in entry["batches"]:
        found, state = step(state, batch)
        results.append([np.asarray(each) for each in found])
    losses = np.array([loss for loss, *_ in results])
    return Outcome(losses, results[0][1:], [np.asarray(state[place]) for place in entry["compares"]])


def _compared(entry: dict[str, Any]) -> dict[str, Any]:
    start = [entry["state"][place] for place in entry["compares"]]
    found = distance(_outcome(entry), Outcome(**entry["expected"]), start)
    return {"near": near(found)} | found._asdict()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu.run", description=__doc__)
    parser.add_argument("file", type=Path, help="what benchmarks.gpu.export wrote")
    parser.add_argument(
        "--most", type=int, help=f"largest batch that is timed; by default all, on a CPU {MOST_ON_CPU:,}"
    )
    parser.add_argument("--dry", action="store_true", help="write no result")
    given = parser.parse_args()
    sys.exit(main(given.file, given.most, given.dry))
