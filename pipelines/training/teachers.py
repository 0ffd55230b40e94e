"""The teachers of a distillation: trained before the model, by the same recipe from other seeds.

They lie in the unfinished run until it is done. Like any stage each resumes where an interruption stopped it.
"""

import gc
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pipelines.dataset.dataset import Dataset
from pipelines.training.earlier_run import CHECKPOINTS, FINAL
from pipelines.training.stage import Stage, run_stage
from towers.config.recipe import Config
from towers.ops.replicas import ALONE, Replicas

TEACHERS = "teachers"
SEEDS = 1_000_003  # from one teacher's seed to the next: people count seeds up, and a model is no teacher of its own
MOST_SEED = 2**31


def teachers_of(config: Config, stage: Stage) -> list[Stage]:
    """The stages that train the teachers of a stage."""
    count = config.distillation.models
    return [stage._replace(name=f"teacher {number} for {stage.name}") for number in range(1, count + 1)]


def train_teachers(
    config: Config,
    data: Dataset,
    stage: Stage,
    work: Path,
    chosen: Sequence[int] = (),
    replicas: Replicas = ALONE,
) -> tuple[list[Path], list[dict[str, Any]]]:
    """Trains the teachers of a stage.

    Args:
        config: the resolved recipe of the model.
        data: the data set.
        stage: its splits train.
        work: the unfinished run.
        chosen: epochs of each teacher where validation does not choose them.
        replicas: the devices that share each batch.

    Returns:
        Their checkpoints, and the content of each one's stage.json.
    """
    recipe, checkpoints, contents = config.of_teachers, [], []
    for number, each in enumerate(teachers_of(config, stage), 1):
        train = {"seed": (config.train.seed + number * SEEDS) % MOST_SEED, "keep_state": False}
        if chosen:
            train["epochs"] = chosen[number - 1]
        changed = config.train.model_copy(update=train)
        folder = work / TEACHERS / stage.name / str(number)
        folder.mkdir(parents=True, exist_ok=True)
        checkpoints.append(folder / CHECKPOINTS / FINAL)
        own = recipe.model_copy(update={"train": changed})
        contents.append(run_stage(own, data, each, folder, folder, None, replicas))
        # A trainer and its graphs reference each other: without this, memory would hold each one's tables and moments.
        gc.collect()
    return checkpoints, contents
