"""A run with teachers: they are trained first, read back whole, resumed after an interruption, and gone at the end."""

import json
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import tensorflow as tf

from pipelines.dataset.dataset import Dataset
from pipelines.ingest import prepare
from pipelines.training import stage, teachers, train
from pipelines.training.check import check_recipe
from pipelines.training.earlier_run import CHOOSE
from pipelines.training.similarity.training import Training
from pipelines.training.stage import Stage, build_trainer
from pipelines.training.teachers import TEACHERS, train_teachers
from tests.support.worlds.interrupted import weights
from towers.config.recipe import Config, parse_config
from towers.config.sections import DataConfig
from towers.data.item_ranks import ItemRanks
from towers.ops.replicas import Replicas
from towers.tasks.retrieval import Retrieval
from towers.tasks.teachers import Teachers
from towers.training.trainer import Trainer

STAGE = Stage("train", ("train",), validated=True)
# Hidden layers get their weights only when they are first asked.
WITH_LAYERS: dict[str, dict[str, Any]] = {
    "features": {"query": {"user_id": {"kind": "id"}, "past": {"kind": "sequence", "max_length": 4}}},
    "model": {"combine": "concat", "query_layers": (6,), "candidate_layers": (5,)},
}


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("teachers")
    rng = np.random.default_rng(0)
    user, hour = np.repeat(np.arange(40), 12), np.tile(np.arange(12), 40)
    item = 3 * rng.integers(0, 8, len(user)) + user % 3
    columns = {"user_id": user, "item_id": item, "timestamp": 3_600 * hour}
    pl.DataFrame(columns).write_csv(folder / "events.csv")
    prepare.run(DataConfig(split="leave_last_out"), folder / "events.csv", folder / "dataset")
    return folder / "dataset"


def recipe(models: int = 2, **sections: dict[str, Any]) -> Config:
    own: dict[str, dict[str, Any]] = {
        "data": {"split": "leave_last_out", "refit": True},
        "features": {"query": {"user_id": {"kind": "id"}}, "candidate": {"item_id": {"kind": "id"}}},
        "model": {"dimension": 4},
        "distillation": {"models": models},
        "optimizer": {"learning_rate": 0.02},
        "train": {"epochs": 2, "batch_size": 64, "metric": "recall@5"},
    }
    return parse_config(own | {name: own.get(name, {}) | keys for name, keys in sections.items()})


@pytest.mark.long
@pytest.mark.parametrize("dimension", [None, 6])
def test_teachers_are_read_back_whole_and_as_wide_as_asked(
    dataset: Path, tmp_path: Path, dimension: int | None
) -> None:
    data = Dataset.open(dataset)
    config = check_recipe(recipe(distillation={"dimension": dimension}, **WITH_LAYERS), data)
    checkpoints, contents = train_teachers(config, data, STAGE, tmp_path)
    assert [each["stage"] for each in contents] == ["teacher 1 for train", "teacher 2 for train"]
    training, _ = build_trainer(config, data, STAGE, tmp_path, tmp_path, teachers=checkpoints)
    for teacher, checkpoint in zip(training.task.teachers.towers(), checkpoints, strict=True):
        reader = tf.train.load_checkpoint(str(checkpoint))
        saved = sorted(
            (tuple(shape), float(np.sum(reader.get_tensor(name))))
            for name, shape in reader.get_variable_to_shape_map().items()
            if name.startswith("model/")
        )
        here = sorted((tuple(v.shape), float(tf.reduce_sum(v))) for v in teacher.variables)
        assert [shape for shape, _ in saved] == [shape for shape, _ in here]
        assert [total for _, total in saved] == pytest.approx([total for _, total in here], abs=1e-5)
    width = dimension or config.model.dimension
    assert {each.candidate_tower.width for each in training.task.teachers.towers()} == {width}
    assert training.task.towers.candidate_tower.width == config.model.dimension
    one, two = (weights(tmp_path / TEACHERS / "train" / number) for number in ("1", "2"))
    assert any(not np.array_equal(one[name], two[name]) for name in one)


@pytest.mark.long
def test_a_run_with_teachers_resumes_to_the_same_weights(
    dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = recipe(model=WITH_LAYERS["model"])
    train.run(config, dataset, tmp_path / "whole")
    trained: list[str] = []
    run_stage = teachers.run_stage

    def stopping(config: Config, data: Dataset, stage: Stage, *rest: Any) -> dict[str, Any]:
        trained.append(stage.name)
        if stage.name == "teacher 2 for refit" and trained.count(stage.name) == 1:
            raise KeyboardInterrupt
        return run_stage(config, data, stage, *rest)

    monkeypatch.setattr(teachers, "run_stage", stopping)
    with pytest.raises(KeyboardInterrupt):
        train.run(config, dataset, tmp_path / "stopped")
    assert (tmp_path / ".stopped.unfinished" / TEACHERS / "refit" / "1" / "stage.json").is_file()
    summary = train.run(config, dataset, tmp_path / "stopped")
    assert [each["stage"] for each in summary["stages"]] == ["train", "refit"]
    whole, stopped = weights(tmp_path / "whole"), weights(tmp_path / "stopped")
    assert whole.keys() == stopped.keys()
    # The graph of objects holds the names of layers, which Keras counts on through a process.
    for name in whole.keys() - {"_CHECKPOINTABLE_OBJECT_GRAPH"}:
        np.testing.assert_array_equal(whole[name], stopped[name], err_msg=name)
    assert not (tmp_path / "whole" / TEACHERS).exists()


@pytest.mark.long
def test_a_resumed_run_took_at_least_the_seconds_of_all_its_epochs(
    dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_stage = train.run_stage

    def stopping(config: Config, data: Dataset, stage: Stage, *rest: Any) -> dict[str, Any]:
        if stage.name == "refit":
            raise KeyboardInterrupt
        return run_stage(config, data, stage, *rest)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(train, "run_stage", stopping)
        train.run(recipe(0), dataset, tmp_path / "run")
    marker = tmp_path / ".run.unfinished" / CHOOSE / "stage.json"
    content = json.loads(marker.read_text())
    content["history"][0] |= {"train_seconds": 400.0, "validation_seconds": 100.0}
    marker.write_text(json.dumps(content))
    assert 500 < train.run(recipe(0), dataset, tmp_path / "run")["seconds"] < 600


@pytest.mark.long
def test_the_teachers_of_the_refit_train_for_the_epochs_that_theirs_chose(
    dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: dict[str, tuple[int, int]] = {}
    run_stage = teachers.run_stage

    def noting(config: Config, data: Dataset, stage: Stage, *rest: Any) -> dict[str, Any]:
        assert config.distillation.models == 0
        asked[stage.name] = config.train.epochs, config.train.seed
        content = run_stage(config, data, stage, *rest)
        return content | ({"best_epoch": int(stage.name.split()[1])} if stage.validated else {})

    monkeypatch.setattr(teachers, "run_stage", noting)
    train.run(recipe(train={"seed": 7}), dataset, tmp_path / "run")
    assert {name: epochs for name, (epochs, _) in asked.items()} == {
        "teacher 1 for train": 2,
        "teacher 2 for train": 2,
        "teacher 1 for refit": 1,
        "teacher 2 for refit": 2,
    }
    seeds = {name: seed for name, (_, seed) in asked.items()}
    assert len({*seeds.values(), 7}) == 3 and seeds["teacher 1 for train"] == seeds["teacher 1 for refit"]


@pytest.mark.parametrize("refit", [pytest.param(True, marks=pytest.mark.long), False])
def test_teachers_share_their_batches_among_the_devices_of_the_model(
    refit: bool, dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    devices, given = Replicas(), list[Replicas]()
    run_stage = teachers.run_stage

    def noting(*arguments: Any) -> dict[str, Any]:
        given.append(arguments[6])
        return run_stage(*arguments)

    monkeypatch.setattr(teachers, "run_stage", noting)
    config = recipe(1, data={"refit": refit}, train={"epochs": 1})
    train.run(config, dataset, tmp_path / "run", replicas=devices)
    assert [each is devices for each in given] == [True] * (1 + refit)


def test_ease_teaches_with_the_scores_of_the_events_that_train(
    dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[Teachers] = []
    retrieval = stage.Retrieval

    def noting(*arguments: Any) -> Retrieval:
        given.append(next(each for each in arguments if isinstance(each, Teachers)))
        return retrieval(*arguments)

    monkeypatch.setattr(stage, "Retrieval", noting)
    taught = {"ease": 2.5, "ease_penalty": 7.0, "share": 0.9}
    train.run(recipe(0, distillation=taught, train={"epochs": 1}), dataset, tmp_path / "run")
    data = Dataset.open(dataset)
    for splits, teacher in zip((("train",), ("train", "valid")), given, strict=True):
        parts = [data.events(name) for name in splits]
        taken = np.zeros((data.manifest.users, data.manifest.items))
        for part in parts:
            taken[part.user, part.item] = 1
        ranks = ItemRanks.of(np.concatenate([part.item for part in parts]), data.manifest.items)
        inverse = np.linalg.inv(taken.T @ taken + 7.0 * np.eye(data.manifest.items))
        weights = -inverse / np.diag(inverse)
        np.fill_diagonal(weights, 0)
        users, items = tf.range(data.manifest.users), tf.range(len(ranks))
        scores = teacher.queries({}, users).numpy() @ teacher.items({}, items).numpy().T
        np.testing.assert_allclose(scores, 2.5 * (taken @ weights)[:, ranks.items], atol=1e-4)


@pytest.mark.long
def test_memory_holds_no_teacher_while_the_next_one_trains(
    dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainers: list[weakref.ref[Trainer]] = []
    build_trainer = stage.build_trainer

    def noting(*given: Any) -> tuple[Training, Trainer]:
        assert not any(each() for each in trainers)
        training, trainer = build_trainer(*given)
        trainers.append(weakref.ref(trainer))
        return training, trainer

    monkeypatch.setattr(stage, "build_trainer", noting)
    train.run(recipe(3, data={"refit": False}), dataset, tmp_path / "run")
    assert len(trainers) == 4


@pytest.mark.long
def test_teachers_change_the_model_and_no_teachers_change_nothing(dataset: Path, tmp_path: Path) -> None:
    for name, config in {"taught": recipe(), "alone": recipe(0), "as ever": recipe(0, distillation={})}.items():
        train.run(config, dataset, tmp_path / name)
    taught, alone, ever = (weights(tmp_path / name) for name in ("taught", "alone", "as ever"))
    assert any(not np.array_equal(taught[name], alone[name]) for name in alone)
    assert all(np.array_equal(ever[name], alone[name]) for name in alone)
    assert json.loads((tmp_path / "alone" / "summary.json").read_text())["stages"][0]["stage"] == "train"
