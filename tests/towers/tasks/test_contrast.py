"""The contrast of items with their companions: its loss by slow loops, and how companions are drawn."""

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.support.worlds.training import recipe, task_of, towers_of
from towers.data.batch import Batch
from towers.data.events import Events
from towers.data.feature_tables import FeatureTables
from towers.data.item_ranks import ItemRanks
from towers.features.cooccurrence import Companions
from towers.ops.replicas import ALONE
from towers.tasks.contrast import Contrast
from towers.tasks.retrieval import Retrieval
from towers.training.prefetch import as_tensors

WEIGHT, TEMPERATURE = 0.3, 0.5
PAIRS, LONE = 6, 3


def pairs() -> tuple[Events, FeatureTables]:
    """Users take two items that nobody else takes with another one; the last ones take a single item each."""
    lists = [[2 * pair, 2 * pair + 1] for pair in range(PAIRS)] * 2 + [[2 * PAIRS + one] for one in range(LONE)] * 4
    offsets = np.cumsum([0, *map(len, lists)])
    user = np.repeat(np.arange(len(lists), dtype=np.int32), [len(each) for each in lists])
    tables = FeatureTables(
        {"user_id": np.arange(1, len(lists) + 1, dtype=np.int32)},
        {"item_id": np.arange(1, 2 * PAIRS + LONE + 1, dtype=np.int32)},
    )
    return Events(user, np.concatenate(lists).astype(np.int32), offsets), tables


def tasks(**sections: dict[str, Any]) -> tuple[Retrieval, Retrieval, Batch]:
    """The same towers without and with the contrast, and a batch of nearly all events, some items several times."""
    events, tables = pairs()
    model = {"dimension": 8, "temperature": TEMPERATURE} | sections.pop("model", {})
    train = {"batch_size": 32, "seed": 1, "balance": 0.5} | sections.pop("train", {})
    configs = [recipe(model=model, train=train, contrast={"weight": w}, **sections) for w in (0.0, WEIGHT)]
    users, items = (len(each) for each in (tables.users["user_id"], tables.items["item_id"]))
    towers = towers_of(configs[0], users, items)
    plain, contrasted = (task_of(config, events, tables, towers) for config in configs)
    return plain[0], contrasted[0], as_tensors(plain[1].batch(0, 0))


def by_loops(task: Retrieval, batch: Batch, widths: tuple[int, ...] = (8,)) -> float:
    """The mean of the widths' sums, weighted as the examples are; an item's only companion is the other of its pair."""
    item = batch.item.numpy()[:, 0]
    tower = task.towers.candidate_tower
    every = tower(task.features_of(tf.range(2 * PAIRS + LONE, dtype=tf.int64)))
    # Ranks, as the batch has them: to item numbers and back, because pairs are known by those.
    catalogue = ItemRanks.of(pairs()[0].item, 2 * PAIRS + LONE)
    number = catalogue.items[item]
    companion = [int(catalogue.ranks[each ^ 1]) if each < 2 * PAIRS else -1 for each in number]
    assert min(companion) < 0
    total = 0.0
    for width in widths:
        vectors = tower.cut(every, width).numpy().astype(np.float64)
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        scores = vectors @ vectors.T / TEMPERATURE
        for i, own in enumerate(companion):
            if own < 0:
                continue
            others = [c for c in companion if c >= 0 and c not in (own, item[i])]
            logits = np.array([scores[item[i], own]] + [scores[item[i], c] for c in others])
            total += batch.weight.numpy()[i] * (np.log(np.exp(logits).sum()) - logits[0])
    return WEIGHT * total / batch.weight.numpy().sum() / len(widths)


@pytest.mark.parametrize(
    "loss", [{"name": "sampled_softmax"}, {"name": "nce"}, {"name": "full_softmax"}, {"name": "bsl", "correction": 0.3}]
)
def test_a_weighted_softmax_over_the_companions_of_the_batch_is_added(loss: dict[str, Any]) -> None:
    plain, contrasted, batch = tasks(loss=loss)
    expected = float(plain.compute_loss(batch)) + by_loops(contrasted, batch)
    assert float(contrasted.compute_loss(batch)) == pytest.approx(expected, rel=1e-5)


def test_every_width_has_a_contrast_of_its_own() -> None:
    plain, contrasted, batch = tasks(loss={"matryoshka": [3, 5]}, model={"similarity": "cosine"})
    for tower in (plain.towers.query_tower, plain.towers.candidate_tower):
        table = tower.encoders[0].table
        table.assign(table * 30)  # so that no cut is too short to be scaled to length one
    expected = float(plain.compute_loss(batch)) + by_loops(contrasted, batch, (3, 5, 8))
    assert float(contrasted.compute_loss(batch)) == pytest.approx(expected, rel=1e-5)


def test_products_in_bfloat16_stay_close() -> None:
    plain, contrasted, batch = tasks(train={"precision": "bfloat16"})
    added = float(contrasted.compute_loss(batch)) - float(plain.compute_loss(batch))
    assert added == pytest.approx(by_loops(contrasted, batch), rel=1e-2)


def test_it_brings_companions_together_and_leaves_the_queries_alone() -> None:
    plain, contrasted, batch = tasks()
    query, item = (getattr(contrasted.towers, f"{side}_tower").encoders[0].table for side in ("query", "candidate"))

    def cosines() -> np.ndarray:
        vectors = tf.math.l2_normalize(item[1 : 2 * PAIRS + 1], axis=1).numpy()
        return np.asarray(vectors @ vectors.T)

    pair = np.arange(2 * PAIRS) // 2
    same = pair[:, np.newaxis] == pair
    before = cosines()
    for _ in range(200):
        with tf.GradientTape(persistent=True) as tape:
            added = contrasted.compute_loss(batch) - plain.compute_loss(batch)
        np.testing.assert_allclose(tf.convert_to_tensor(tape.gradient(added, query)), 0, atol=1e-6)
        item.assign_sub(30 * tf.convert_to_tensor(tape.gradient(added, item)))
    after = cosines()
    assert after[same].min() > 0.8 > before[same].min()
    assert after[~same].mean() < 0.3


def test_companions_are_drawn_by_closeness_and_never_from_the_padding() -> None:
    found = Companions(
        np.array([[1, 2, 3, -1], [0, -1, -1, -1], [-1, -1, -1, -1], [2, 1, 0, 2]], np.int32),
        np.array([[0.6, 0.3, 0.1, 0], [0.2, 0, 0, 0], [0, 0, 0, 0], [0.25, 0.25, 0.25, 0.25]], np.float32),
    )
    # Ranks 3 - number: item 3 has most examples.
    catalogue = ItemRanks.of(np.repeat(np.arange(4, dtype=np.int32), [1, 2, 3, 4]), 4)
    contrast, draws = Contrast(found, catalogue, 1.0), 40_000
    _, _, batch = tasks()
    batch = batch._replace(item=tf.repeat(tf.constant([[3], [2], [1], [0]], tf.int64), draws, axis=0))
    batch = batch._replace(weight=tf.ones([4 * draws]))
    near = contrast.draw(batch, lambda rank, seed: tf.cast(rank, tf.float32)[:, tf.newaxis], ALONE)
    number = 3 - near.candidates.name.numpy().reshape(4, draws)
    np.testing.assert_array_equal(near.vector.numpy()[:, 0], near.candidates.name.numpy())
    shares = np.stack([np.bincount(row, minlength=4) / draws for row in number])
    deviation = 5 * 0.5 / np.sqrt(draws)
    np.testing.assert_allclose(shares[0], [0, 0.6, 0.3, 0.1], atol=deviation)
    np.testing.assert_array_equal(shares[1], [1, 0, 0, 0])
    np.testing.assert_allclose(shares[3], [0.25, 0.25, 0.5, 0], atol=deviation)
    has = np.repeat([True, True, False, True], draws)
    np.testing.assert_array_equal(near.weight.numpy() > 0, has)
    np.testing.assert_array_equal(near.candidates.mask.numpy(), has)


def test_another_step_draws_others_and_the_same_step_the_same() -> None:
    events, _ = pairs()
    found = Companions(np.tile(np.arange(8, dtype=np.int32), (15, 1)), np.ones((15, 8), np.float32))
    contrast = Contrast(found, ItemRanks.of(events.item, 15), 1.0)
    _, _, batch = tasks()

    def names(seed: list[int]) -> list[int]:
        given = batch._replace(seed=tf.constant(seed, tf.int32))
        encoded = contrast.draw(given, lambda rank, _: tf.ones([rank.shape[0], 2]), ALONE)
        return list(encoded.candidates.name.numpy())

    assert names([1, 5]) == names([1, 5])
    assert names([1, 5]) != names([1, 6]) != names([2, 6])


def test_it_is_neither_trained_nor_saved() -> None:
    plain, contrasted, _ = tasks()
    for kind in ("variables", "trainable_variables"):
        one, other = ([(each.name, each.shape) for each in getattr(task, kind)] for task in (plain, contrasted))
        assert one == other
