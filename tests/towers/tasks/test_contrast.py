"""The contrast of items with their companions: its loss and gradients by a formula, and how companions are drawn."""

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.support.worlds.training import recipe, task_of, towers_of
from towers.data.batch import Batch
from towers.data.events import Events
from towers.data.feature_tables import FeatureTables
from towers.data.item_ranks import ItemRanks
from towers.errors import ConfigError
from towers.features.cooccurrence import Companions
from towers.ops.replicas import ALONE
from towers.tasks.contrast import Contrast
from towers.tasks.retrieval import Retrieval
from towers.training.prefetch import as_tensors

WEIGHT, TEMPERATURE = 0.3, 0.5
GROUPS, SIZE, LONE = 5, 3, 4
ITEMS = GROUPS * SIZE + LONE


def events_of(lists: list[list[int]]) -> Events:
    user = np.repeat(np.arange(len(lists), dtype=np.int32), [len(each) for each in lists])
    return Events(user, np.concatenate(lists).astype(np.int32), np.cumsum([0, *map(len, lists)]))


def world() -> tuple[Events, FeatureTables]:
    """Users take the three items of a group, which nobody takes with others; the last ones take a single item each."""
    groups = [list(range(SIZE * group, SIZE * (group + 1))) for group in range(GROUPS)] * 2
    events = events_of(groups + [[SIZE * GROUPS + one] for one in range(LONE)] * 2)
    users, items = len(events.offsets), ITEMS + 1
    rows = {"user_id": np.arange(1, users, dtype=np.int32)}, {"item_id": np.arange(1, items, dtype=np.int32)}
    return events, FeatureTables(*rows)


def tasks(**sections: dict[str, Any]) -> tuple[Retrieval, Retrieval, Batch]:
    """The same towers without and with the contrast, and a batch of all events, most items twice."""
    events, tables = world()
    model = {"dimension": 8, "temperature": TEMPERATURE} | sections.pop("model", {})
    train = {"batch_size": 38, "seed": 1, "balance": 0.5} | sections.pop("train", {})
    configs = [recipe(model=model, train=train, contrast={"weight": w}, **sections) for w in (0.0, WEIGHT)]
    towers = towers_of(configs[0], len(tables.users["user_id"]), ITEMS)
    teachers = [towers_of(configs[0], len(tables.users["user_id"]), ITEMS)] if "distillation" in sections else []
    plain, contrasted = (task_of(config, events, tables, towers, teachers) for config in configs)
    return plain[0], contrasted[0], as_tensors(plain[1].batch(0, 0))


def by_formula(task: Retrieval, batch: Batch, widths: tuple[int, ...] = (8,)) -> tf.Tensor:
    """The mean over the widths of the examples' weighted terms, of items that the task draws as companions."""
    item, ranks = batch.item.numpy()[:, 0], ItemRanks.of(world()[0].item, ITEMS)
    number = ranks.items[item]
    drawn = task.contrast.draw(batch, ALONE).every.numpy()
    group = [each // SIZE if each < SIZE * GROUPS else -1 for each in number]
    drawn = [int(each) if g >= 0 else -1 for each, g in zip(drawn, group, strict=True)]
    for own, of, g in zip(number, drawn, group, strict=True):
        assert g < 0 or (ranks.items[of] // SIZE == g and ranks.items[of] != own)
    copies = [{d for d, n in zip(drawn, number, strict=True) if n == own} for own in set(number)]
    assert max(map(len, copies)) == 2 and -1 in drawn, "some copies of an item draw different ones"
    tower, terms = task.towers.candidate_tower, []
    every = tower(task.features_of(tf.range(ITEMS, dtype=tf.int64)))
    for width in widths:
        vectors = tf.math.l2_normalize(every[:, :width], axis=1)
        for i, own in enumerate(drawn):
            if own < 0:
                continue
            others = [c for c in drawn if c >= 0 and ranks.items[c] // SIZE != group[i]]
            logits = tf.linalg.matvec(tf.gather(vectors, [own, *others]), vectors[item[i]]) / TEMPERATURE
            terms.append(batch.weight[i] * (tf.reduce_logsumexp(logits) - logits[0]))
    return WEIGHT * tf.add_n(terms) / tf.reduce_sum(batch.weight) / len(widths)


LOSSES: list[dict[str, Any]] = [
    {"name": "sampled_softmax"},
    {"name": "nce"},
    {"name": "full_softmax"},
    {"name": "bsl", "correction": 0.3, "positives_per_query": 2},
]


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss["name"])
def test_a_weighted_softmax_over_the_companions_of_the_batch_is_added(loss: dict[str, Any]) -> None:
    plain, contrasted, batch = tasks(loss=loss)
    item, query = (getattr(plain.towers, f"{side}_tower").encoders[0].table for side in ("candidate", "query"))
    with tf.GradientTape(persistent=True) as tape:
        added = contrasted.compute_loss(batch) - plain.compute_loss(batch)
        expected = by_formula(contrasted, batch)
    assert float(added) == pytest.approx(float(expected), rel=1e-4)
    gradient, wanted = (tf.convert_to_tensor(tape.gradient(each, item)) for each in (added, expected))
    assert float(tf.reduce_max(tf.abs(wanted))) > 1e-3
    np.testing.assert_allclose(gradient, wanted, atol=1e-5)
    np.testing.assert_allclose(tf.convert_to_tensor(tape.gradient(added, query)), 0, atol=1e-6)


def test_every_width_has_a_contrast_of_its_own() -> None:
    plain, contrasted, batch = tasks(loss={"matryoshka": [3, 5]})
    table = plain.towers.candidate_tower.encoders[0].table
    table.assign(table * 30)  # so that no cut is too short to be scaled to length one
    added = float(contrasted.compute_loss(batch)) - float(plain.compute_loss(batch))
    assert added == pytest.approx(float(by_formula(contrasted, batch, (3, 5, 8))), rel=1e-4)


def test_products_in_bfloat16_stay_close() -> None:
    plain, contrasted, batch = tasks(train={"precision": "bfloat16"})
    added = float(contrasted.compute_loss(batch)) - float(plain.compute_loss(batch))
    exact = float(by_formula(contrasted, batch))
    assert added == pytest.approx(exact, rel=1e-2)
    assert added != pytest.approx(exact, rel=1e-5)


def test_what_teachers_say_does_not_scale_it_and_they_have_it_too() -> None:
    plain, contrasted, batch = tasks(distillation={"models": 1, "share": 0.75})
    added = float(contrasted.compute_loss(batch)) - float(plain.compute_loss(batch))
    assert added == pytest.approx(float(by_formula(contrasted, batch)), rel=1e-4)
    assert recipe(contrast={"weight": WEIGHT}, distillation={"models": 1}).of_teachers.contrast.weight == WEIGHT


def test_a_trained_temperature_learns_from_both_terms() -> None:
    plain, contrasted, batch = tasks(model={"temperature_trainable": True})
    [temperature] = [each for each in plain.towers.trainable_variables if each.shape.rank == 0]
    with tf.GradientTape() as tape:
        added = contrasted.compute_loss(batch) - plain.compute_loss(batch)
    slope = float(tape.gradient(added, temperature))
    values, start = [], temperature.numpy()
    for step in (-0.01, 0.01):
        temperature.assign(start + step)
        values.append(float(contrasted.compute_loss(batch) - plain.compute_loss(batch)))
    assert slope == pytest.approx((values[1] - values[0]) / 0.02, rel=1e-2)


def draws_of(contrast: Contrast, ranks: list[int], draws: int) -> tuple[np.ndarray, np.ndarray]:
    """[ranks, draws] the ranks that each of `ranks` draws, and whether it has one."""
    _, _, batch = tasks()
    item = tf.repeat(tf.constant(ranks, tf.int64)[:, tf.newaxis], draws, axis=0)
    near = contrast.draw(batch._replace(item=item, weight=tf.ones([len(item)])), ALONE)
    np.testing.assert_array_equal(near.rank, near.every)
    return near.every.numpy().reshape(len(ranks), draws), near.has.numpy().reshape(len(ranks), draws)


def test_companions_are_drawn_by_closeness_and_never_from_the_padding() -> None:
    found = Companions(
        np.array([[1, 2, 3, -1], [0, -1, -1, -1], [-1, -1, -1, -1], [2, 1, 0, 2]], np.int32),
        np.array([[0.6, 0.3, 0.1, 0], [0.2, 0, 0, 0], [0, 0, 0, 0], [0.25, 0.25, 0.25, 0.25]], np.float32),
    )
    # Ranks 3 - number: item 3 has most examples.
    catalogue = ItemRanks.of(np.repeat(np.arange(4, dtype=np.int32), [1, 2, 3, 4]), 4)
    draws = 40_000
    rank, has = draws_of(Contrast(found, catalogue, 1.0), [3, 2, 1, 0], draws)
    shares = np.stack([np.bincount(3 - row, minlength=4) / draws for row in rank])
    deviation = 5 * 0.5 / np.sqrt(draws)
    np.testing.assert_allclose(shares[0], [0, 0.6, 0.3, 0.1], atol=deviation)
    np.testing.assert_array_equal(shares[1], [1, 0, 0, 0])
    np.testing.assert_allclose(shares[3], [0.25, 0.25, 0.5, 0], atol=deviation)
    np.testing.assert_array_equal(has, np.repeat([[True], [True], [False], [True]], draws, axis=1))


def drawn_for(lists: list[list[int]], item: int, window: Any) -> set[int]:
    """The items that 3,000 draws of an item give, of 0 to 15 in lists."""
    events = events_of(lists)
    catalogue = ItemRanks.of(events.item, 16)
    rank, _ = draws_of(Contrast.of(events, catalogue, 1.0, window), [int(catalogue.ranks[item])], 3_000)
    return set(catalogue.items[rank[0]].tolist())


@pytest.mark.parametrize(("window", "near"), [("list", {0, 1, 3, 4}), (1, {1, 3})])
def test_companions_are_those_within_the_window(window: Any, near: set[int]) -> None:
    assert drawn_for([[0, 1, 2, 3, 4], [4, 3, 2, 1, 0]], 2, window) == near


def test_the_ten_closest_items_are_drawn() -> None:
    often = [[0, item] for item in range(1, 11)] * 4
    assert drawn_for(often + [[0, item] for item in range(11, 16)], 0, "list") == set(range(1, 11))


def test_another_step_draws_others_and_the_same_step_the_same() -> None:
    _, contrasted, batch = tasks()

    def names(seed: list[int]) -> list[int]:
        given = batch._replace(seed=tf.constant(seed, tf.int32))
        return list(contrasted.contrast.draw(given, ALONE).every.numpy())

    assert names([1, 5]) == names([1, 5])
    assert names([1, 5]) != names([1, 6]) != names([2, 6])


def test_data_without_any_companion_are_refused() -> None:
    events = events_of([[0], [1], [1]])
    with pytest.raises(ConfigError, match=r"contrast\.weight: no user took two items, .*; leave the section out"):
        Contrast.of(events, ItemRanks.of(events.item, 2), 1.0, "list")


def test_it_is_neither_trained_nor_saved() -> None:
    plain, contrasted, _ = tasks()
    for kind in ("variables", "trainable_variables"):
        one, other = ([(each.name, each.shape) for each in getattr(task, kind)] for task in (plain, contrasted))
        assert one == other
