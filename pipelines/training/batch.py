"""The batch of one step, as a training meets it: for a look at what made the loss explode (docs/model/training.md)."""

from pathlib import Path
from tempfile import TemporaryDirectory

from pipelines.dataset.dataset import Dataset
from pipelines.errors import DataError
from pipelines.training.check import check_recipe
from pipelines.training.stage import build_training, stages
from towers.config.recipe import Config
from towers.config.sections import ContrastConfig, DistillationConfig
from towers.data.batch import Batch
from towers.data.similarity_examples import ClassBatch, RelatedBatch


def run(
    config: Config, dataset: Path, *, epoch: int, step: int, stage: str | None = None
) -> Batch | ClassBatch | RelatedBatch:
    """Builds the batch of a step: a function of data set, recipe, epoch and step, the same in every training.

    Args:
        config: the recipe.
        dataset: what `towers prepare` wrote.
        epoch: from 0.
        step: of that epoch, from 0.
        stage: ``train``, or ``refit`` with `data.refit`; None is the first that trains.

    Raises:
        ConfigError: the recipe does not fit the data set.
        DataError: the data set is damaged, or there is no such stage, epoch or step.
    """
    data = Dataset.open(dataset)
    # What it learns from beside the events is no part of a batch.
    alone = {"contrast": ContrastConfig(), "distillation": DistillationConfig()}
    config = check_recipe(config, data).model_copy(update=alone)
    planned = {each.name: each for each in stages(config, data)}
    name = next(iter(planned)) if stage is None else stage
    if name not in planned:
        raise DataError(f"stage: this recipe trains in {' and '.join(planned)}; got {name!r}")
    if not 0 <= epoch < config.train.epochs:
        raise DataError(f"epoch must be from 0 to {config.train.epochs - 1}, got {epoch}")
    with TemporaryDirectory() as folder:
        batches = build_training(
            config, data, planned[name].splits, Path(folder), Path(folder), validated=False
        ).batches
        if not 0 <= step < batches.steps:
            raise DataError(f"step must be from 0 to {batches.steps - 1}, got {step}")
        batch: Batch | ClassBatch | RelatedBatch = batches.batch(epoch, step)
    return batch
