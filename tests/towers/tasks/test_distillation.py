"""A model with teachers: its loss by slow loops over their vectors, and what the teachers' gradients do not change."""

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.support.worlds.training import ITEMS, group_world, recipe, task_of, towers_of
from towers.config.recipe import Config
from towers.data.batch import Batch
from towers.model.two_tower import TwoTower
from towers.tasks.retrieval import Retrieval
from towers.training.prefetch import as_tensors

SHARE = 0.25


def config_of(seed: int, **sections: dict[str, Any]) -> Config:
    return recipe(distillation={"models": 2, "share": SHARE}, train={"seed": seed, "batch_size": 16}, **sections)


def tasks(
    wide: dict[str, Any] | None = None, **sections: dict[str, Any]
) -> tuple[Retrieval, Retrieval, list[TwoTower], Batch]:
    """The same model with and without two teachers, the teachers, of another [model] if wide, and a batch."""
    events, tables, _ = group_world()
    towers = towers_of(config_of(1, **sections))
    of_teachers = sections if wide is None else sections | {"model": wide}
    teachers = [towers_of(config_of(seed, **of_teachers)) for seed in (2, 3)]
    plain, examples = task_of(config_of(1, **sections), events, tables, towers)
    taught, _ = task_of(config_of(1, **sections), events, tables, towers, teachers)
    return plain, taught, teachers, as_tensors(examples.batch(0, 0))


def unit(vectors: tf.Tensor) -> np.ndarray:
    array = np.asarray(vectors, np.float64)
    return array / np.linalg.norm(array, axis=1, keepdims=True)


@pytest.mark.parametrize("dimension", [8, 12])
@pytest.mark.parametrize("correction", [0.0, 1.0])
def test_the_loss_is_the_share_of_the_events_and_that_of_the_teachers(correction: float, dimension: int) -> None:
    model = {"dimension": 8, "temperature": 0.5}
    plain, taught, teachers, batch = tasks(
        model | {"dimension": dimension}, loss={"correction": correction}, model=model
    )
    item = batch.item.numpy()[:, 0]
    count = len(item)

    def log_shares(towers: list[TwoTower], i: int) -> np.ndarray:
        """Of the example's own item, then of the items of the other examples that are not the same one."""
        columns = [i, *(j for j in range(count) if item[j] != item[i])]
        cosines = [
            unit(one.query_tower(batch.query)) @ unit(one.candidate_tower(taught.features_of(batch.item[:, 0]))).T
            for one in towers
        ]
        # Every item of this world has as many events as any other.
        logits = np.mean(cosines, axis=0)[i, columns] / 0.5 - correction * np.log(count / ITEMS)
        return np.asarray(logits - np.log(np.sum(np.exp(logits))))

    entropies = []
    for i in range(count):
        log_p, log_t = log_shares([taught.towers], i), log_shares(teachers, i)
        entropies.append(np.sum(np.exp(log_t) * (log_t - log_p)))
    expected = (1 - SHARE) * float(plain.compute_loss(batch)) + SHARE * np.mean(entropies)
    assert float(taught.compute_loss(batch)) == pytest.approx(expected, rel=1e-5)


def test_teachers_are_neither_trained_nor_saved() -> None:
    plain, taught, teachers, batch = tasks()
    assert [v.name for v in taught.trainable_variables] == [v.name for v in plain.trainable_variables]
    with tf.GradientTape() as tape:
        loss = taught.compute_loss(batch)
    tables = [variable for teacher in teachers for variable in teacher.trainable_variables]
    assert all(gradient is None for gradient in tape.gradient(loss, tables))


@pytest.mark.parametrize("loss", ["sampled_softmax", "bsl", "nce", "neg", "gbce"])
@pytest.mark.parametrize("widths", [(), (4,)])
def test_a_teacher_that_is_the_model_itself_adds_nothing(loss: str, widths: tuple[int, ...]) -> None:
    events, tables, _ = group_world()
    config = config_of(1, loss={"name": loss, "matryoshka": widths})
    towers = towers_of(config)
    plain, examples = task_of(config, events, tables, towers)
    taught, _ = task_of(config, events, tables, towers, [towers])
    batch = as_tensors(examples.batch(0, 0))
    for task in (plain, taught):
        task.create_weights(batch)
    widest = (1 - SHARE) * float(plain.compute_loss(batch))
    if widths:
        assert float(taught.compute_loss(batch)) > widest  # a cut vector knows less than a whole one
    else:
        assert float(taught.compute_loss(batch)) == pytest.approx(widest, abs=1e-5)
