"""The whole train loop of TensorFlow on the device that it has: a GPU if there is one, otherwise the CPU.

Claim: in every cell of `benchmarks.gpu.cells` the losses of ten steps on the device, without and with
    `train.jit_compile`, are the CPU's from the same seed, within the tolerance of `benchmarks.gpu.compare`.
Goal, on a GPU alone: at each batch size and for each recipe the loop of `towers train` takes at least 0.80 of the
    steps a second that its bare compiled step takes on a batch that stays where it is.

The data are a synthetic world, the recipes `default` with ids alone and with all features derived from the columns, a
history among them; XLA refuses a step whose sizes change from batch to batch, and the result says so. Writes
benchmarks/gpu/results/loop_DEVICE.json; exits with 1 where the claim fails.
"""

import argparse
import json
import re
import sys
import tempfile
import tomllib
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import tensorflow as tf

from benchmarks.gpu.cells import TIMED_BATCHES, cells
from benchmarks.gpu.compare import MOST
from benchmarks.gpu.export import STEPS
from benchmarks.gpu.rates import rates
from benchmarks.gpu.same_losses import CPU, compared
from benchmarks.harness.machine import ROOT, verdict, write
from benchmarks.harness.stages import Stages
from pipelines.dataset.dataset import Dataset
from towers.config.recipe import Config, parse_config

LEAST = 0.80
MOST_ON_CPU = 4_096  # a batch; the next would take minutes, and the last more memory than there is
# The features of the recipe `default`; none named: all that it derives from the columns.
MODELS: dict[str, dict[str, Any]] = {
    "ids": {"query": {"user_id": {"kind": "id"}}, "candidate": {"item_id": {"kind": "id"}}},
    "default": {},
}
RECIPE = ROOT / "towers" / "recipes" / "default.toml"


def main(given: argparse.Namespace) -> int:
    device, name = device_of()
    every = cells()
    if unknown := set(given.cells or ()) - every.keys():
        raise SystemExit(f"--cells: {', '.join(sorted(unknown))}; must be of: {'; '.join(every)}")
    batches = given.batches or [each for each in TIMED_BATCHES if device != CPU or each <= MOST_ON_CPU]
    print(f"{name} ({device}), TensorFlow {tf.__version__}")
    chosen = every if given.cells is None else given.cells
    found = {each: _told(each, partial(compared, every[each], device)) for each in chosen}
    sizes = {key: getattr(given, key) for key in ("users", "items", "events")}
    result: dict[str, Any] = {
        "device": {"name": name, "place": device},
        "claims": claims_of(found),
        "cells": found,
        "tolerance": MOST.losses,
        "sizes": sizes | {"steps": given.steps},
    }
    with tempfile.TemporaryDirectory() as work:
        result["rates"] = timed(world(sizes, Path(work)), batches, given.rounds, given.steps)
    result["goals"] = goals_of(result["rates"], device)
    if given.dry:
        print(json.dumps(result))
    else:
        print(write(__file__, f"loop_{re.sub(r'[^a-z0-9]+', '_', name.lower())}", result))
    return verdict(result)


def device_of() -> tuple[str, str]:
    """Where TensorFlow runs a step, as it names the place, and what the device is called."""
    gpus = tf.config.list_physical_devices("GPU")
    if not gpus:
        return CPU, "cpu"
    return "GPU:0", str(tf.config.experimental.get_device_details(gpus[0]).get("device_name", "gpu"))


def world(sizes: dict[str, int], work: Path) -> Dataset:
    """A synthetic data set, made by the commands."""
    stages = Stages(work, work)
    options = [word for key, value in sizes.items() for word in (f"--{key}", str(value))]
    stages.run("synth", "--out", str(work / "world"), *options)
    stages.run("prepare", "--events", str(work / "world"), "--out", str(work / "dataset"))
    return Dataset.open(work / "dataset")


def timed(data: Dataset, batches: Sequence[int], rounds: int, steps: int) -> dict[str, dict[str, Any]]:
    """The rates by recipe, batch size and whether XLA compiles the step."""
    found = {}
    for size in batches:
        for model in MODELS:
            for jit in (False, True):
                name = f"{model}, batches of {size:,}{', jit_compile' if jit else ''}"
                config = recipe(model, size, jit=jit)
                found[name] = _told(name, partial(rates, config, data, rounds, steps))
                tf.keras.backend.clear_session()
    return found


def recipe(model: str, batch_size: int, *, jit: bool) -> Config:
    """The recipe `default` with the features of one of `MODELS`."""
    raw = tomllib.loads(RECIPE.read_text(encoding="utf-8"))
    raw["train"] |= {"batch_size": batch_size, "jit_compile": jit}
    return parse_config(raw | ({"features": MODELS[model]} if MODELS[model] else {}))


def claims_of(found: dict[str, dict[str, Any]]) -> dict[str, bool]:
    """What must hold of the cells; one that failed is not near. None are asked for: no claim."""
    if not found:
        return {}
    return {
        f"{len(found)} cells: losses of {STEPS} steps are the CPU's": all(each.get("near") for each in found.values())
    }


def goals_of(found: dict[str, dict[str, Any]], device: str) -> dict[str, bool]:
    """What may be missed, and is judged on a GPU alone: there the batches are made elsewhere than the steps."""
    return {
        f"{name}: the loop at least {LEAST:g} of the bare step": each["loop_to_bare"] >= LEAST
        for name, each in found.items()
        if device != CPU and "loop_to_bare" in each
    }


def _told(name: str, measure: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Measures and prints; `error` if the device cannot run it or has too little memory."""
    try:
        found = measure()
    except tf.errors.OpError as error:
        found = {"error": str(error).strip().splitlines()[0]}
    print(f"{name}: {found}", flush=True)
    return found


def _count(text: str) -> int:
    """A whole number of at least 1, of the command line."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text}: must be a whole number of at least 1")
    return int(text)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu.loop", description=__doc__)
    parser.add_argument("--cells", nargs="*", metavar="NAME", help="losses of these alone; by default of all")
    parser.add_argument(
        "--batches",
        nargs="+",
        type=_count,
        help=f"sizes that are timed; by default 1k to 64k, on a CPU to {MOST_ON_CPU}",
    )
    parser.add_argument("--users", type=_count, default=40_000, help="of the world")
    parser.add_argument("--items", type=_count, default=100_000)
    parser.add_argument("--events", type=_count, default=20_000_000, help="fewer for a trial")
    parser.add_argument("--rounds", type=_count, default=7)
    parser.add_argument("--steps", type=_count, default=100, help="of a round")
    parser.add_argument("--dry", action="store_true", help="write no result, print it")
    sys.exit(main(parser.parse_args()))
