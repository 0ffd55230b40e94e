"""Trains recipes for some steps each, alone, as a worker or on several devices: `python worker_cells.py JOB`.

JOB is JSON: `dataset`, `steps`, `devices`, `cells`, sections of a recipe by name, and `out`. Under a `TF_CONFIG` it
trains with the other workers. Writes for each cell `NAME.RANK.npz` with the losses of the steps and the state
afterwards, with several devices one file for the state of each.
"""

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from pipelines.dataset.dataset import Dataset
from pipelines.training.check import check_recipe
from pipelines.training.stage import build_trainer, stages
from towers.config.recipe import parse_config
from towers.ops.replicas import Replicas
from towers.training.devices import local_devices
from towers.training.prefetch import as_tensors
from towers.training.workers import connect


def train(sections: dict[str, Any], data: Dataset, steps: int, replicas: Replicas) -> list[dict[str, Any]]:
    config = check_recipe(parse_config(sections), data)
    with tempfile.TemporaryDirectory() as folder:
        stage = stages(config, data)[0]
        training, trainer = build_trainer(config, data, stage, Path(folder), Path(folder), replicas=replicas)
        places = [divmod(step, trainer.examples.steps) for step in range(steps)]
        losses = [float(trainer._step(as_tensors(trainer.examples.batch(*place)))) for place in places]
        if trainer.task.margin is not None:
            every = (trainer.examples.batch(*place) for place in places)
            batches = (as_tensors(part) for batch in every for part in replicas.batches(batch))
            trainer.task.after_epoch(trainer.task.margin.every, batches)
        state = {f"variable {number} {each.name}": each for number, each in enumerate(trainer.task.variables)}
        state |= {f"optimizer {number}": each for number, each in enumerate(trainer.optimizer.variables)}
        told = {
            "losses": np.array(losses),
            "measure": np.array(trainer.validation.measure(training.task.towers)),
        }
        # A variable of several devices has a copy on each.
        copies = {name: getattr(each, "values", (each,)) for name, each in state.items()}
        return [
            {name: each[device].numpy() for name, each in copies.items()} | told
            for device in range(max(map(len, copies.values())))
        ]


def main() -> None:
    job = json.loads(sys.argv[1])
    replicas = connect() if job["devices"] == 1 else local_devices(job["devices"])
    data = Dataset.open(Path(job["dataset"]))
    for name, sections in job["cells"].items():
        for device, arrays in enumerate(train(sections, data, job["steps"], replicas)):
            np.savez(Path(job["out"]) / f"{name}.{replicas.rank + device}.npz", **arrays)


if __name__ == "__main__":
    main()
