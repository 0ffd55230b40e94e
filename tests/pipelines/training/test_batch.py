"""The batch of one step: that of the training, of either stage, and what there is none of. Which users validate."""

from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from pipelines import batch
from pipelines.dataset.dataset import Dataset
from pipelines.errors import DataError
from pipelines.training import train
from pipelines.training.check import check_recipe
from pipelines.training.stage import build_training
from tests.support.worlds.splits import split_world
from towers.config.recipe import Config, parse_config
from towers.data.batch import Batch
from towers.errors import DivergedError
from towers.evaluation.validation import Validation
from towers.training.trainer import Trainer

SECTIONS: dict[str, Any] = {
    "features": {"query": {"user_id": {"kind": "id"}}, "candidate": {"item_id": {"kind": "id"}}},
    "train": {"batch_size": 32, "epochs": 2},
}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return split_world(tmp_path_factory.mktemp("world"), "global_time")


def recipe(*, refit: bool, **train: Any) -> Config:
    return parse_config(SECTIONS | {"data": {"refit": refit}, "train": SECTIONS["train"] | train})


@pytest.mark.parametrize(
    ("refit", "stage", "splits"),
    [(False, None, ("train",)), (True, "train", ("train",)), (True, "refit", ("train", "valid"))],
)
def test_it_is_the_batch_of_the_training(
    refit: bool, stage: str | None, splits: tuple[str, ...], data: Dataset, tmp_path: Path
) -> None:
    config = recipe(refit=refit)
    found = batch.run(config, data.path, epoch=1, step=2, stage=stage)
    training = build_training(check_recipe(config, data), data, splits, tmp_path, tmp_path, validated=False)
    for part in range(training.batches.steps):
        wanted = training.batches.batch(1, part)
        same = np.array_equal(found.item, wanted.item) and np.array_equal(found.seed, wanted.seed)
        assert same == (part == 2)
    assert isinstance(found, Batch) and found.user.shape == (32,)


@pytest.mark.parametrize(("models", "stage"), [(0, "refit"), (1, "teacher 1 for refit")])
def test_a_training_that_diverges_names_the_stage_of_its_batch(
    models: int, stage: str, data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Trainer, "fit", Mock(side_effect=DivergedError("the loss of step 1")))
    sections = SECTIONS | {"data": {"refit": True}, "train": SECTIONS["train"] | {"choose_epoch": False}}
    with pytest.raises(DivergedError, match=f"^{stage}: the loss of step 1$"):
        train.run(parse_config(sections | {"distillation": {"models": models}}), data.path, tmp_path / "run")


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"epoch": 2, "step": 0}, "epoch must be from 0 to 1, got 2"),
        ({"epoch": -1, "step": 0}, "epoch must be from 0 to 1, got -1"),
        ({"epoch": 0, "step": -1}, r"step must be from 0 to \d, got -1"),
        ({"epoch": 0, "step": 99}, r"step must be from 0 to \d, got 99"),
        ({"epoch": 0, "step": 0, "stage": "refit"}, "stage: this recipe trains in train; got 'refit'"),
    ],
)
def test_what_there_is_none_of_is_refused(asked: dict[str, Any], message: str, data: Dataset) -> None:
    with pytest.raises(DataError, match=f"^{message}$"):
        batch.run(recipe(refit=False), data.path, **asked)


def test_a_seeded_sample_of_users_validates(data: Dataset, tmp_path: Path) -> None:
    def users(**train: int) -> list[int]:
        config = check_recipe(recipe(refit=False, **train), data)
        training = build_training(config, data, ("train",), tmp_path, tmp_path, validated=True)
        assert isinstance(training.validation, Validation) and training.users is not None
        assert len(training.validation.query["user_id"]) == len(training.users)
        return [int(user) for user in training.users]

    everybody, some = users(), users(validation_users=5)
    assert len(some) == 5 < len(everybody) and set(some) < set(everybody)
    assert users(validation_users=5) == some != users(validation_users=5, seed=1)
