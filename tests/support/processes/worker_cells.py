"""Trains recipes for some steps each, alone or as a worker: `python worker_cells.py JOB`.

JOB is JSON: `dataset`, `steps`, `cells`, sections of a recipe by name, and `out`. Under a `TF_CONFIG` it trains with
the other workers. Writes for each cell `NAME.RANK.npz` with the losses of the steps and the state afterwards.
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
from towers.training.trainer import as_tensors
from towers.training.workers import connect


def train(sections: dict[str, Any], data: Dataset, steps: int, replicas: Replicas) -> dict[str, Any]:
    config = check_recipe(parse_config(sections), data)
    with tempfile.TemporaryDirectory() as folder:
        stage = stages(config, data)[0]
        training, trainer = build_trainer(config, data, stage, Path(folder), Path(folder), replicas=replicas)
        places = [divmod(step, trainer.examples.steps) for step in range(steps)]
        losses = [float(trainer._step(as_tensors(trainer.examples.batch(*place)))) for place in places]
        if trainer.task.margin is not None:
            batches = (as_tensors(trainer.examples.batch(*place)) for place in places)
            trainer.task.after_epoch(trainer.task.margin.every, batches)
        state = {f"variable {number} {each.name}": each for number, each in enumerate(trainer.task.variables)}
        state |= {f"optimizer {number}": each for number, each in enumerate(trainer.optimizer.variables)}
        arrays = {name: each.numpy() for name, each in state.items()}
        return arrays | {
            "losses": np.array(losses),
            "measure": np.array(trainer.validation.measure(training.task.towers)),
        }


def main() -> None:
    replicas = connect()
    job = json.loads(sys.argv[1])
    data = Dataset.open(Path(job["dataset"]))
    for name, sections in job["cells"].items():
        np.savez(Path(job["out"]) / f"{name}.{replicas.rank}.npz", **train(sections, data, job["steps"], replicas))


if __name__ == "__main__":
    main()
