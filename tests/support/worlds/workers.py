"""A small data set with weights and columns, recipes of every kind for it, and workers that train them."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from pipelines.ingest import prepare
from pipelines.training.local_workers import free_ports
from tests.support.paths import PROCESSES, ROOT
from towers.config.recipe import parse_config

USERS, GROUPS, SIZE = 60, 3, 12
Sections = dict[str, Any]


def make_dataset(folder: Path) -> Path:
    """Users of a group take the items of a group, in their own order; weights are grades 1 to 3, types alternate.

    Before every second one, each is shown an item of another group.
    """
    rng = np.random.default_rng(0)
    rows = [
        (
            f"u{user}",
            f"i{GROUPS * item + user % GROUPS}",
            1_000 * user + place,
            1 + (user + item) % 3,
            ("buy", "click")[place % 2],
        )
        for user in range(USERS)
        for place, item in enumerate(rng.permutation(SIZE)[: 8 + user % 4])
    ]
    rows += [
        (f"u{user}", f"i{GROUPS * place + (user + 1) % GROUPS}", 1_000 * user + place, 0, "shown")
        for user in range(USERS)
        for place in range(0, 7, 2)
    ]
    events = pl.DataFrame(rows, schema=["user_id", "item_id", "timestamp", "weight", "type"], orient="row")
    events.write_csv(folder / "events.csv")
    items = [(f"i{item}", f"brand {item % 5}", 0.5 * item) for item in range(GROUPS * SIZE)]
    pl.DataFrame(items, schema=["item_id", "brand", "price"], orient="row").write_csv(folder / "items.csv")
    data = parse_config({"data": {"split": "leave_last_out"}}).data
    prepare.run(data, str(folder / "events.csv"), folder / "dataset", items=str(folder / "items.csv"))
    return folder / "dataset"


def recipe(batch_size: int, **sections: Sections) -> Sections:
    """A recipe for that data set; `sections` replace keys of its own."""
    own: Sections = {
        "model": {"dimension": 8},
        "optimizer": {"name": "adagrad", "learning_rate": 0.05},
        "train": {"batch_size": batch_size, "seed": 1, "metric": "ndcg@5", "recency": 1.0},
        "features": {"query": {"user_id": {"kind": "id"}}, "candidate": {"item_id": {"kind": "id"}}},
    }
    return own | {name: own.get(name, {}) | keys for name, keys in sections.items()}


def train(
    dataset: Path, cells: dict[str, Sections], out: Path, workers: int, steps: int, *, devices: int = 1
) -> dict[str, list[Any]]:
    """Trains each cell with so many workers, or so many devices of one; of each the arrays of each worker or device."""
    out.mkdir()
    job = json.dumps({"dataset": str(dataset), "cells": cells, "out": str(out), "steps": steps, "devices": devices})
    cluster = {"worker": [f"127.0.0.1:{port}" for port in free_ports(workers)]}
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    processes = []
    for rank in range(workers):
        config = json.dumps({"cluster": cluster, "task": {"type": "worker", "index": rank}})
        processes.append(
            subprocess.Popen(
                [sys.executable, str(PROCESSES / "worker_cells.py"), job],
                env=environment | {"TF_CONFIG": config},
                stderr=subprocess.PIPE,
                text=True,
            )
        )
    try:
        for process in processes:
            _, told = process.communicate(timeout=600)
            assert process.returncode == 0, told[-4000:]
    finally:
        for process in processes:
            process.kill()
    return {name: [dict(np.load(out / f"{name}.{rank}.npz")) for rank in range(workers * devices)] for name in cells}
