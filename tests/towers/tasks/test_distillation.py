"""A model with teachers: its loss by slow loops over their vectors, and what the teachers' gradients do not change."""

from itertools import product
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.support.worlds.training import ITEMS, USERS, group_world, recipe, task_of, towers_of
from towers.config.recipe import Config
from towers.data.batch import Batch
from towers.model.two_tower import TwoTower
from towers.tasks.retrieval import Retrieval
from towers.tasks.teachers import Factors
from towers.training.prefetch import as_tensors

SHARE = 0.25


def config_of(seed: int, **sections: dict[str, Any]) -> Config:
    return recipe(distillation={"models": 2, "share": SHARE}, train={"seed": seed, "batch_size": 16}, **sections)


def tasks(
    wide: dict[str, Any] | None = None, factors: Factors | None = None, **sections: dict[str, Any]
) -> tuple[Retrieval, Retrieval, list[TwoTower], Batch]:
    """The same model with and without two teachers, the teachers, of another [model] if wide, and a batch."""
    events, tables, _ = group_world()
    towers = towers_of(config_of(1, **sections))
    of_teachers = sections if wide is None else sections | {"model": wide}
    teachers = [towers_of(config_of(seed, **of_teachers)) for seed in (2, 3)]
    plain, examples = task_of(config_of(1, **sections), events, tables, towers)
    taught, _ = task_of(config_of(1, **sections), events, tables, towers, teachers, factors)
    return plain, taught, teachers, as_tensors(examples.batch(0, 0))


def unit(vectors: tf.Tensor) -> np.ndarray:
    array = np.asarray(vectors, np.float64)
    return array / np.linalg.norm(array, axis=1, keepdims=True)


def factors_of(seed: int) -> Factors:
    rng = np.random.default_rng(seed)
    return Factors(rng.normal(size=(USERS, 3)).astype(np.float32), rng.normal(size=(ITEMS, 3)).astype(np.float32))


@pytest.mark.parametrize(("dimension", "factors"), [(8, None), (12, None), (12, factors_of(1))])
@pytest.mark.parametrize("correction", [0.0, 1.0])
@pytest.mark.parametrize("widths", [(), (4,)], ids=["whole", "cut, too"])
def test_the_loss_is_the_share_of_the_events_and_that_of_the_teachers(
    widths: tuple[int, ...], correction: float, dimension: int, factors: Factors | None
) -> None:
    model = {"dimension": 8, "temperature": 0.5}
    loss = {"correction": correction, "matryoshka": widths}
    plain, taught, teachers, batch = tasks(model | {"dimension": dimension}, factors, loss=loss, model=model)
    item = batch.item.numpy()[:, 0]
    count = len(item)

    def log_shares(towers: list[TwoTower], i: int, width: int) -> np.ndarray:
        """Of the example's own item, then of the items of the other examples that are not the same one."""
        columns = [i, *(j for j in range(count) if item[j] != item[i])]
        items = taught.features_of(batch.item[:, 0])
        cosines = [
            unit(one.query_tower(batch.query)[:, :width]) @ unit(one.candidate_tower(items)[:, :width]).T
            for one in towers
        ]
        # Every item of this world has as many events as any other.
        logits = np.mean(cosines, axis=0)[i, columns] / 0.5 - correction * np.log(count / ITEMS)
        if factors is not None and towers is teachers:
            logits += factors.items[item[columns]] @ factors.users[batch.user.numpy()[i]]
        return np.asarray(logits - np.log(np.sum(np.exp(logits))))

    entropies = []
    for i, width in product(range(count), (*widths, 8)):
        log_p, log_t = log_shares([taught.towers], i, width), log_shares(teachers, i, dimension)
        entropies.append(np.sum(np.exp(log_t) * (log_t - log_p)))
    expected = (1 - SHARE) * float(plain.compute_loss(batch)) + SHARE * np.mean(entropies)
    assert float(taught.compute_loss(batch)) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("widths", [(), (4,)], ids=["whole", "cut, too"])
@pytest.mark.parametrize(("models", "linear"), [(2, True), (2, False), (0, True)])
def test_of_whole_users_teachers_tell_what_is_left(models: int, linear: bool, widths: tuple[int, ...]) -> None:
    loss = {"name": "full_softmax", "per_user": True, "matryoshka": widths}
    config = config_of(1, loss=loss, model={"dimension": 8, "temperature": 0.5})
    events, tables, _ = group_world()
    towers, batch = towers_of(config), as_tensors(task_of(recipe(), events, tables)[1].batch(0, 0))
    teachers, factors = [towers_of(config_of(seed)) for seed in range(2, 2 + models)], factors_of(1) if linear else None
    plain, _ = task_of(config, events, tables, towers)
    taught, _ = task_of(config, events, tables, towers, teachers, factors)
    wanted, user = np.zeros((len(batch.user), ITEMS)), batch.user.numpy()
    every = taught.features_of(tf.range(ITEMS, dtype=tf.int64))
    for each in teachers:
        cosines = unit(each.query_tower(batch.query)) @ unit(each.candidate_tower(every)).T
        wanted += cosines / each.temperature / models
    if factors is not None:
        wanted += factors.users[user] @ factors.items.T
    entropies = []
    for width in (*widths, 8):
        query = unit(towers.query_tower.cut(towers.query_tower(batch.query), width))
        scores = query @ unit(towers.candidate_tower.cut(towers.candidate_tower(every), width)).T / 0.5
        for row, own in enumerate(batch.item.numpy()):
            left = [rank for rank in range(ITEMS) if rank not in own]
            t, p = (np.exp(each[row, left]) / np.exp(each[row, left]).sum() for each in (wanted, scores))
            entropies.append(np.sum(t * np.log(t / p)))
    expected = (1 - SHARE) * float(plain.compute_loss(batch)) + SHARE * np.mean(entropies)
    assert float(taught.compute_loss(batch)) == pytest.approx(expected, rel=1e-5)


def test_teachers_are_neither_trained_nor_saved() -> None:
    plain, taught, teachers, batch = tasks(factors=factors_of(1))
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
