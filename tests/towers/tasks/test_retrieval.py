"""The retrieval task puts towers, sampler, loss and reduction together as the formulas say."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.support.worlds.training import group_world, recipe, task_of, trainer
from towers.config.recipe import parse_config
from towers.data.bags import distinct_bag
from towers.data.batch import Batch
from towers.data.item_ranks import ItemFeatures, ItemRanks
from towers.data.packing import packed
from towers.features.encoder import FeatureSpec
from towers.losses.softmax import AdaptiveMargin, mean_diameter
from towers.model.two_tower import TwoTower
from towers.samplers.registry import build_sampler
from towers.tasks.retrieval import Retrieval
from towers.training.compile_step import compiled
from towers.training.prefetch import as_tensors

DRAWN = {"name": "uniform", "negatives": 7}


def built(**sections: dict[str, Any]) -> tuple[Retrieval, Batch]:
    events, tables, _ = group_world()
    task, examples = task_of(recipe(**sections), events, tables)
    return task, as_tensors(examples.batch(0, 0))


def cosines(task: Retrieval, batch: Batch, items: np.ndarray) -> np.ndarray:
    """[B, n] of the batch's queries and items by rank, from the raw tables."""
    towers = task.towers
    user = towers.query_tower.encoders[0].table.numpy()[batch.query["user_id"].numpy()]
    row = towers.candidate_tower.encoders[0].table.numpy()
    item = row[task.features_of(tf.constant(items))["item_id"].numpy()]
    return (user / np.linalg.norm(user, axis=1, keepdims=True)) @ (item / np.linalg.norm(item, axis=1, keepdims=True)).T


@pytest.mark.parametrize("unit", [1.0, 1e-20])
def test_in_batch_softmax_is_the_loop_over_its_formula(unit: float) -> None:
    task, batch = built(model={"temperature": 0.3}, loss={"correction": 0.7})
    item = batch.item.numpy()[:, 0]
    logits = cosines(task, batch, item) / 0.3
    counts = np.bincount(item_counts(task), minlength=task.count)
    corrected = logits - 0.7 * np.log(len(item) * counts[item] / counts.sum())
    weight = unit * np.linspace(0, 2, len(item))
    losses = []
    for b in range(len(item)):
        total = np.exp(corrected[b, b]) + sum(np.exp(corrected[b, j]) for j in range(len(item)) if item[j] != item[b])
        losses.append(np.log(total) - corrected[b, b])
    got = task.compute_loss(batch._replace(weight=tf.constant(weight, tf.float32)))
    assert float(got) == pytest.approx(np.average(losses, weights=weight), rel=1e-5)


def item_counts(task: Retrieval) -> np.ndarray:
    """The training events' items, by rank."""
    events, tables, _ = group_world()
    order = task_of(recipe(), events, tables)[1].catalogue.ranks
    return order[events.item]


@pytest.mark.parametrize("loss", ["sampled_softmax", "nce", "triplet", "ccl"])
def test_an_example_of_weight_0_teaches_nothing(loss: str) -> None:
    task, batch = built(loss={"name": loss}, sampler=DRAWN)
    half = np.arange(batch.item.shape[0]) % 2
    with tf.GradientTape() as tape:
        value = task.compute_loss(batch._replace(weight=tf.constant(half, tf.float32)))
    users = task.towers.query_tower.encoders[0].table
    gradient = tf.convert_to_tensor(tape.gradient(value, users)).numpy()
    silent = set(batch.query["user_id"].numpy()[half == 0]) - set(batch.query["user_id"].numpy()[half == 1])
    assert silent
    assert not gradient[sorted(silent)].any()
    assert gradient.any()


@pytest.mark.parametrize("remove_hits", [True, False])
@pytest.mark.parametrize("name", ["sampled_softmax", "neg"])
def test_known_positives_are_no_negatives(name: str, remove_hits: bool) -> None:
    """A user's other eight items known: of in-batch negatives those of the other groups are left.

    So are copies of the example's own item, unless accidental hits are removed.
    """
    loss = {"name": name, "known_positives": 8, "remove_accidental_hits": remove_hits}
    plain = {"correction": 0.0} if name == "sampled_softmax" else {}
    task, batch = built(loss=loss | plain, model={"temperature": 0.5})
    item = batch.item.numpy()[:, 0]
    logits = cosines(task, batch, item) / 0.5
    losses = []
    assert len(set(item.tolist())) < len(item)
    for b, own in enumerate(item):
        known = set(batch.known.numpy()[b].tolist())
        assert len(known) == 8 and not {own, -1} & known
        others = [j for j in range(len(item)) if j != b and item[j] not in known]
        left = [j for j in others if item[j] != own] if remove_hits else others
        negatives = np.exp(logits[b, left])
        losses.append(
            np.log1p(negatives.sum() / np.exp(logits[b, b]))
            if name == "sampled_softmax"
            else np.log1p(np.exp(-logits[b, b])) + np.log1p(negatives).sum()
        )
    assert float(task.compute_loss(batch)) == pytest.approx(np.mean(losses), rel=1e-5)


def test_several_positives_share_the_label() -> None:
    task, batch = built(loss={"positives_per_query": 3, "correction": 0.0}, sampler=DRAWN)
    assert batch.item.shape == (64, 3)
    drawn = task.sampler.draw(batch.item, batch.seed).item.numpy()
    positive = np.stack([cosines(task, batch, batch.item.numpy()[:, k]).diagonal() for k in range(3)], axis=1) / 0.2
    negative = cosines(task, batch, drawn) / 0.2
    losses = []
    for b in range(64):
        left = [negative[b, j] for j in range(7) if drawn[j] not in batch.item.numpy()[b]]
        everything = np.concatenate([positive[b], left])
        losses.append(np.log(np.exp(everything).sum()) - positive[b].mean())
    assert float(task.compute_loss(batch)) == pytest.approx(np.mean(losses), rel=1e-5)


@pytest.mark.parametrize("options", [{}, {"hardest_negatives": 6}, {"positives_per_query": 3}], ids=str)
@pytest.mark.parametrize("weight", [1.0, 40.0])
def test_impressions_are_candidates_of_their_own_query(weight: float, options: dict[str, Any]) -> None:
    """Summed block by block or scored one by one: log [sum_k exp l_k + sum_j exp l_j + w sum_i exp s_i] - mean l_k."""
    task, batch = built(
        loss={"impressions": 3, "impression_weight": weight, **options}, sampler=DRAWN, model={"temperature": 0.3}
    )
    shown = batch.shown.numpy().copy()
    assert shown.shape == (64, 3) and shown.min() >= 0
    shown[::2, 1], shown[5] = -1, -1
    batch = batch._replace(shown=tf.constant(shown))
    drawn = task.sampler.draw(batch.item, batch.seed)
    item, names = batch.item.numpy(), drawn.item.numpy()
    positive = np.stack([cosines(task, batch, each).diagonal() for each in item.T], axis=1) / 0.3
    positive = positive - drawn.log_q_positive.numpy()
    negative = cosines(task, batch, names) / 0.3 - drawn.log_q.numpy()
    own = np.stack([cosines(task, batch, np.maximum(each, 0)).diagonal() for each in shown.T], axis=1) / 0.3
    losses = []
    for b in range(64):
        left = sorted(-np.inf if names[j] in item[b] else negative[b, j] for j in range(7))
        terms = [*np.exp(positive[b]), *np.exp(left[-options.get("hardest_negatives", 7) :])]
        terms += [weight * np.exp(own[b, i]) for i in range(3) if shown[b, i] >= 0]
        losses.append(np.log(sum(terms)) - positive[b].mean())
    assert float(task.compute_loss(batch)) == pytest.approx(np.mean(losses), rel=1e-5)


def test_the_bottleneck_costs_the_divergence_and_serves_the_mean() -> None:
    beta = 0.01
    task, batch = built(loss={"bottleneck": beta}, model={"similarity": "dot"})
    tower = task.towers.query_tower
    vectors, cost = tower.sample(batch.query, batch.seed)
    mean = tower(batch.query).numpy()
    # log-variance starts at -6 everywhere: sigma = exp(-3), KL = (sigma^2 + mean^2 - 1 + 6) / 2 in each dimension.
    wanted = 0.5 * (np.exp(-6.0) + mean**2 - 1 + 6).sum(axis=1)
    np.testing.assert_allclose(cost, wanted, rtol=1e-5)
    noise = (vectors.numpy() - mean) / np.exp(-3)
    # 512 standard normals: mean and deviation within four of their own standard errors.
    assert abs(noise.mean()) < 4 / 512**0.5
    assert abs(noise.std() - 1) < 4 / 1024**0.5
    np.testing.assert_array_equal(tower.sample(batch.query, batch.seed)[0], vectors)
    assert np.abs(tower.sample(batch.query, batch.seed + 1)[0] - vectors).max() > 0.01
    np.testing.assert_array_equal(tower(batch.query), mean)
    without, _ = built(model={"similarity": "dot"})
    assert float(task.compute_loss(batch)) > float(without.compute_loss(batch)) + beta * wanted.mean()


def test_a_mean_diameter_is_that_of_the_definition() -> None:
    # Class 0: distances 1 and 3, mean 2; class 4: 0.5, in another block. Twice the mean of 2 and 0.5.
    blocks = [(np.array([0, 0]), np.array([1.0, 3.0])), (np.array([4]), np.array([0.5]))]
    assert mean_diameter(blocks) == pytest.approx(2.5)
    assert mean_diameter([]) == 0


def test_an_adaptive_margin_is_bounded_and_due_now_and_then() -> None:
    margin = AdaptiveMargin(every=2, most=0.5)
    blocks = [(np.array([0, 1]), np.array([0.1, 0.2]))]
    assert margin.update(1, blocks) == {"margin": 0.0}
    assert margin.update(2, blocks) == pytest.approx({"margin": 0.3, "margin_estimate": 0.3, "margin_clamped": 0.0})
    wide = margin.update(4, [(np.array([0]), np.array([0.9]))])
    assert wide == pytest.approx({"margin": 0.5, "margin_estimate": 1.8, "margin_clamped": 1.0})


def test_an_adaptive_margin_is_in_log_and_checkpoint(tmp_path: Path) -> None:
    sections: dict[str, dict[str, Any]] = {
        "loss": {"name": "distance_softmax", "margin": "adaptive", "margin_max": 0.3, "margin_every": 2},
        "train": {"epochs": 3},
    }
    first = trainer(tmp_path, **sections)
    assert float(first.task.margin.value) == 0.0  # type: ignore[attr-defined]
    history = first.fit().history
    # Untrained queries and items are near right angles: d = 1 or so, far above the bound.
    assert [record["margin"] for record in history] == pytest.approx([0.0, 0.3, 0.3])
    assert [record.get("margin_clamped") for record in history] == [None, 1, None]
    again = trainer(tmp_path, **sections)
    again.fit()
    assert float(again.task.margin.value) == pytest.approx(0.3)  # type: ignore[attr-defined]


def test_a_trained_temperature_is_bounded_and_starts_at_the_recipes() -> None:
    towers = built(model={"temperature": 0.3, "temperature_trainable": True})[0].towers
    assert float(towers.scale()) == pytest.approx(1 / 0.3)
    for drift, temperature in ((-50.0, 0.03), (50.0, 3.0)):
        towers.drift.assign(drift)
        assert float(1 / towers.scale()) == pytest.approx(temperature, rel=1e-5)


def test_full_softmax_sees_an_item_as_a_positive_as_it_sees_it_among_the_others() -> None:
    """The bottleneck's noise is the query's alone."""
    with_noise, batch = built(loss={"name": "full_softmax", "bottleneck": 1e-12}, model={"similarity": "dot"})
    without, _ = built(loss={"name": "full_softmax"}, model={"similarity": "dot"})
    query = with_noise.towers.query_tower.sample(batch.query, batch.seed)[0].numpy()
    items = with_noise.towers.candidate_tower(with_noise.features_of(tf.range(30, dtype=tf.int64))).numpy()
    logits = query @ items.T / 0.2
    own = logits[np.arange(64), batch.item.numpy()[:, 0]]
    wanted = np.mean(np.log(np.exp(logits).sum(axis=1)) - own)
    assert float(with_noise.compute_loss(batch)) == pytest.approx(wanted, rel=1e-5)
    assert float(without.compute_loss(batch)) != pytest.approx(wanted, rel=1e-5)


def test_full_softmax_with_a_bottleneck_squeezes_the_items_too() -> None:
    beta = 0.01
    task, batch = built(loss={"name": "full_softmax", "bottleneck": beta}, model={"similarity": "dot"})
    without, _ = built(loss={"name": "full_softmax", "bottleneck": 1e-12}, model={"similarity": "dot"})
    divergence = np.zeros(64)
    for tower, features in (
        (task.towers.query_tower, batch.query),
        (task.towers.candidate_tower, task.features_of(batch.item[:, 0])),
    ):
        # As in the test above: sigma = exp(-3) everywhere.
        divergence += 0.5 * (np.exp(-6.0) + tower(features).numpy() ** 2 - 1 + 6).sum(axis=1)
    wanted = float(without.compute_loss(batch)) + beta * divergence.mean()
    assert float(task.compute_loss(batch)) == pytest.approx(wanted, rel=1e-5)
    with tf.GradientTape() as tape:
        value = task.compute_loss(batch)
    layer = [each for each in task.towers.candidate_tower.trainable_variables if each.shape[-1:] == [8]]
    assert all(gradient is not None for gradient in tape.gradient(value, layer))


def test_labels_are_divided_by_the_largest() -> None:
    """Label l costs softplus(s) - l s. `pipelines.training.check` fills the largest in where the recipe has none."""
    for settings, most in (({"max_label": 3.0}, 3.0), ({"max_label": 6.0}, 6.0)):
        task, batch = built(loss={"name": "bce", **settings})
        score = cosines(task, batch, batch.item.numpy()[:, 0]).diagonal() / 0.2
        wanted = np.mean(np.log1p(np.exp(score)) - batch.label.numpy()[:, 0] / most * score)
        assert float(task.compute_loss(batch)) == pytest.approx(wanted, rel=1e-5)


def test_a_list_is_as_long_as_the_recipe_says() -> None:
    assert [built(loss={"name": "graded_hinge", "list_length": n})[1].item.shape for n in (2, 3)] == [(64, 2), (64, 3)]


@pytest.mark.parametrize("sampler", [{"name": "in_batch"}, DRAWN], ids=lambda section: section["name"])
@pytest.mark.parametrize("hardest", [None, 5])
def test_gbce_counts_a_query_s_negatives_among_the_catalogue(sampler: dict[str, Any], hardest: int | None) -> None:
    """N = 30 items; k is what is left of the batch's candidates without copies of the example's item."""
    loss = {"name": "gbce", "calibration": 0.75, "hardest_negatives": hardest}
    task, batch = built(loss=loss, sampler=sampler, model={"temperature": 0.5})
    item = batch.item.numpy()[:, 0]
    names = item if sampler["name"] == "in_batch" else task.sampler.draw(batch.item, batch.seed).item.numpy()
    own, others = cosines(task, batch, item).diagonal() / 0.5, cosines(task, batch, names) / 0.5
    losses, counts = [], set()
    for b in range(len(item)):
        left = np.sort([others[b, j] for j in range(len(names)) if names[j] != item[b]])[::-1][:hardest]
        rate = len(left) / 29
        beta = rate * (0.75 * (1 - 1 / rate) + 1 / rate)
        losses.append(beta * np.log1p(np.exp(-own[b])) + np.log1p(np.exp(left)).sum())
        counts.add(len(left))
    assert float(task.compute_loss(batch)) == pytest.approx(np.mean(losses), rel=1e-5)
    assert len(counts) > 1 or hardest


@pytest.mark.parametrize("log_z", ["learned", "per_query"])
def test_a_trained_log_z_starts_at_that_of_untrained_scores(log_z: str) -> None:
    task, batch = built(loss={"name": "nce", "log_z": log_z}, sampler=DRAWN)
    query = task.towers.query_tower(batch.query)
    np.testing.assert_allclose(np.broadcast_to(task.log_z(query), 64), np.full(64, np.log(30)), rtol=1e-6)


@pytest.mark.parametrize("shares", ["equal", "weight"])
def test_full_softmax_takes_a_label_distribution_over_the_positives(shares: str) -> None:
    task, batch = built(loss={"name": "full_softmax", "positives_per_query": 3, "label_shares": shares})
    logits = cosines(task, batch, np.arange(30)) / 0.2
    losses = []
    for b in range(64):
        label = np.zeros(30)
        for k in range(3):
            label[batch.item.numpy()[b, k]] += batch.label.numpy()[b, k] if shares == "weight" else 1
        label /= label.sum()
        losses.append(np.log(np.exp(logits[b]).sum()) - label @ logits[b])
    assert float(task.compute_loss(batch)) == pytest.approx(np.mean(losses), rel=1e-5)


@pytest.mark.parametrize("widths", [(), (4,)], ids=["whole", "cut, too"])
def test_of_whole_users_no_item_is_a_negative_of_another(widths: tuple[int, ...]) -> None:
    loss = {"name": "full_softmax", "per_user": True, "matryoshka": widths}
    task, _ = built(loss=loss)
    batch = built(loss={"name": "full_softmax", "positives_per_query": 3})[1]
    losses = []
    for width in (*widths, 8):
        query = task.towers.query_tower.cut(task.towers.query_tower(batch.query), width).numpy()
        items = task.towers.candidate_tower.cut(task.towers.candidate_tower(task.features_of(np.arange(30))), width)
        logits = query @ items.numpy().T / 0.2
        for b, (own, there) in enumerate(zip(batch.item.numpy(), batch.present.numpy(), strict=True)):
            taken = set(own[there].tolist())
            others = sum(np.exp(logits[b, j]) for j in range(30) if j not in taken)
            losses.append(np.mean([np.log(np.exp(logits[b, y]) + others) - logits[b, y] for y in taken]))
    assert float(task.compute_loss(batch)) == pytest.approx(np.mean(losses), rel=1e-5)


def test_of_whole_users_the_temperature_learns() -> None:
    task, _ = built(loss={"name": "full_softmax", "per_user": True}, model={"temperature_trainable": True})
    batch = built(loss={"name": "full_softmax", "positives_per_query": 3})[1]
    drift, ends = task.towers.drift, []
    with tf.GradientTape() as tape:
        value = task.compute_loss(batch)
    slope = float(tape.gradient(value, drift))
    for step in (1e-2, -1e-2):
        drift.assign(step)
        ends.append(float(task.compute_loss(batch)))
    assert slope == pytest.approx((ends[0] - ends[1]) / 2e-2, rel=1e-2)
    assert abs(slope) > 1e-3


@pytest.mark.parametrize("kind", ["history", "sequence"])
@pytest.mark.parametrize("with_id", [False, True])
def test_the_scores_of_a_whole_batch_are_never_in_memory(kind: str, with_id: bool) -> None:
    """Also where the query is a history alone, whose number of rows is unknown while the step is traced."""
    count, size, length, many = 6, 128, 3, 65_536
    query = {"past": {"kind": kind, "max_length": length}} | ({"user_id": {"kind": "id"}} if with_id else {})
    config = parse_config(
        {
            "features": {"query": query, "candidate": {"item_id": {"kind": "id"}}},
            "model": {"dimension": 4},
            "sampler": {"name": "uniform", "negatives": many},
        }
    )
    assert config.features.query is not None and config.features.candidate is not None
    tables = {"past": ("item_id", count), "user_id": ("user", size)}
    specs = [
        FeatureSpec(name, each, size=tables[name][1], table=tables[name][0])
        for name, each in config.features.query.items()
    ]
    items = [FeatureSpec("item_id", config.features.candidate["item_id"], size=count, table="item_id")]
    catalogue = ItemFeatures(
        {"item_id": np.arange(1, count + 1)}, ItemRanks.of(np.arange(count, dtype=np.int32), count)
    )
    sampler = build_sampler(config.negatives, np.ones(count, np.int64), size, size)
    task = Retrieval(TwoTower(specs, items, config), config, catalogue, count, sampler)
    rows = np.tile(np.array([[0, 1, 2], [1, 2, 3]], np.int32), (size // 2, 1))
    past = packed(np.stack([rows, 0 * rows], 2)) if kind == "sequence" else distinct_bag(rows)
    features = {"past": past} | ({"user_id": np.arange(1, size + 1)} if with_id else {})
    nothing = np.zeros((size, 0), np.int64)
    one, own = np.ones((size, 1), np.float32), np.arange(size)[:, None] % count
    batch = as_tensors(
        Batch(features, own, one > 0, one, nothing, nothing, np.arange(size), one[:, 0], np.zeros(2, np.int32))
    )
    task.create_weights(batch)
    step = compiled(task.compute_loss, batch, jit_compile=False)
    shapes = [out.shape for each in step.get_concrete_function(batch).graph.get_operations() for out in each.outputs]
    assert [shape for shape in shapes if shape.rank == 1 and shape[0] == many]
    assert not [shape for shape in shapes if shape.rank == 2 and shape[1] == many]
