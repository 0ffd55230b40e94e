"""`task = "similarity"`: its loss against slow loops, the known answer for margins, and what a step must keep to."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.support.gpu_kernels import problems
from tests.support.worlds.training import towers_of
from towers.config.features import NumericFeature
from towers.config.recipe import Config, parse_config
from towers.config.sections import OptimizerConfig
from towers.data.item_ranks import ItemFeatures, ItemRanks
from towers.data.item_relations import ByClass, ByPair, Relation
from towers.data.similarity_examples import ClassBatch, RelatedBatch, batches
from towers.errors import ConfigError
from towers.features.encoder import FeatureSpec
from towers.model.two_tower import TwoTower
from towers.tasks.similarity import NeighbourValidation, Similarity
from towers.training.optimizers import Optimizer, build_optimizer
from towers.training.prefetch import as_tensors
from towers.training.trainer import Trainer

ITEMS, CLASSES = 24, 3
# An item may be of two classes: i % 3, and each fifth item of the next one, too.
NAMED = [sorted({i % CLASSES, (i + 1) % CLASSES} if i % 5 == 0 else {i % CLASSES}) for i in range(ITEMS)]


def by_class() -> ByClass:
    return ByClass.of(np.cumsum([0, *map(len, NAMED)]), np.concatenate(NAMED), CLASSES)


def by_pair() -> ByPair:
    return ByPair.of(np.array([[i, (i + CLASSES) % ITEMS] for i in range(ITEMS)]), ITEMS)


def recipe(loss: dict[str, Any], against: str = "centres", **sections: dict[str, Any]) -> Config:
    labels = {"pairs": "p.csv"} if sections.pop("pairs", None) else {"column": "g"}
    own: dict[str, Any] = {
        "task": "similarity",
        "similarity": labels | {"against": against},
        "loss": loss,
        "model": {"dimension": 8},
        "optimizer": {"learning_rate": 0.05},
        "train": {"batch_size": 8, "checkpoint_steps": 1_000, "patience": 99, "seed": 1},
    }
    return parse_config(own | {name: own.get(name, {}) | keys for name, keys in sections.items()})


def task_of(config: Config, relation: Relation) -> tuple[Similarity, Any]:
    towers = towers_of(config, 1, ITEMS)
    everything = np.arange(ITEMS, dtype=np.int32)
    items = ItemFeatures({"item_id": everything + 1}, ItemRanks.of(everything, ITEMS))
    against = config.similarity.against
    task = Similarity(towers, config, items, CLASSES if against == "centres" else 0)
    return task, batches(relation, against, config.train.batch_size, config.train.seed)


def trainer(directory: Path, config: Config, relation: Relation, *, validate: bool = True) -> Trainer:
    task, examples = task_of(config, relation)
    return Trainer(
        task, examples, config.optimizer, config.train, directory, validation(relation) if validate else None
    )


def like(relation: Relation, a: int, b: int) -> bool:
    if isinstance(relation, ByPair):
        return abs(a - b) in (CLASSES, ITEMS - CLASSES)
    return bool(set(NAMED[a]) & set(NAMED[b]))


COLUMN: dict[str, Any] = {"task": "similarity", "loss": {"name": "pair"}, "similarity": {"column": "g"}}
ITEMS_ONLY = {"similarity": {"column": "g", "against": "items"}}
REFUSED = [
    (COLUMN | {"train": {"metric": "recall@20"}}, "train.metric: .* with class labels is measured by precision@k"),
    (
        COLUMN | {"similarity": {"pairs": "p", "against": "items"}, "train": {"metric": "precision@5"}},
        "train.metric: .* with pairs is measured by recall@k; got 'precision@5'",
    ),
    (COLUMN | {"features": {"query": {"a": {"kind": "id"}}}}, "features.query: .* trains the item tower alone"),
    (COLUMN | {"model": {"combine": "concat", "query_layers": [4]}}, "model.query_layers: .* leave it empty"),
    (COLUMN | {"data": {"refit": True}}, "data.refit: .* set it to false"),
    (COLUMN | {"train": {"weighted": True}}, "train.weighted: .* set it to false"),
    (COLUMN | {"loss": {"name": "pair", "correction": 1.0}}, "loss.correction: .* samples nothing"),
    (COLUMN | {"loss": {"name": "pair", "known_positives": 3}}, "loss.known_positives: .* leave it out"),
    (COLUMN | {"loss": {"name": "pair", "impressions": 3}}, "loss.impressions: .* samples nothing"),
    (COLUMN | {"loss": {"name": "full_softmax", "positives_per_query": 2}}, "loss.positives_per_query: .* leave it"),
    (
        COLUMN | ITEMS_ONLY | {"loss": {"name": "distance_softmax", "margin": "adaptive"}},
        "loss.margin: 'adaptive' is the width of classes",
    ),
    (COLUMN | ITEMS_ONLY | {"loss": {"name": "triplet"}}, "train.batch_size: .* at most 400, .*; got 2048"),
    ({"similarity": {"column": "g"}}, "similarity: only task = 'similarity' reads it"),
    ({"train": {"metric": "precision@10"}}, "train.metric: precision@10 is a metric of task = 'similarity'"),
]


@pytest.mark.parametrize(("raw", "message"), REFUSED)
def test_what_makes_no_sense_for_items_is_refused(raw: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_config(raw)


@pytest.mark.parametrize("relation", [by_class(), by_pair()], ids=["classes", "pairs"])
def test_a_relation_says_who_is_like_whom(relation: Relation) -> None:
    rows, columns = np.array([0, 5, 7, 7]), np.arange(ITEMS)
    got = relation.between(rows, columns)
    for place, row in enumerate(rows):
        for column in set(columns.tolist()) - {row}:
            assert got[place, column] == like(relation, row, column)
    first, second = np.array([0, 3, 8, 20]), np.array([3, 4, 11, 0])
    assert relation.alike(first, second).tolist() == [
        like(relation, a, b) for a, b in zip(first.tolist(), second.tolist(), strict=True)
    ]
    some = np.array([2, 5, 6, 9, 20])
    fewer = relation.only(some).between(np.arange(5), np.arange(5))
    assert [[fewer[i, j] for j in range(5) if j != i] for i in range(5)] == [
        [like(relation, some[i], some[j]) for j in range(5) if j != i] for i in range(5)
    ]


@pytest.mark.parametrize("relation", [by_class(), by_pair()], ids=["classes", "pairs"])
def test_every_anchor_has_a_partner_in_its_batch(relation: Relation) -> None:
    order = batches(relation, "items", 8, seed=3)
    seen = []
    for step in range(order.steps):
        batch = order.batch(2, step)
        first, second = np.split(batch.item, 2)
        seen += first.tolist()
        for a, b in zip(first.tolist(), second.tolist(), strict=True):
            assert a != b
            assert like(relation, a, b)
        for i, a in enumerate(batch.item.tolist()):
            for j, b in enumerate(batch.item.tolist()):
                assert batch.positive[i, j] == (a != b and like(relation, a, b))
                assert batch.negative[i, j] == (a != b and not like(relation, a, b))
    assert len(seen) == ITEMS
    if isinstance(relation, ByClass):
        assert sorted(seen) == list(range(ITEMS))


def test_partners_are_drawn_evenly_from_the_own_class_and_alone_means_alone() -> None:
    relation = ByClass.of(np.array([0, 1, 2, 3, 4, 5]), np.array([0, 0, 0, 0, 1]), 2)
    _, partner = relation.partners(np.repeat([1, 4], 6_000), np.random.default_rng(0))
    counts = np.bincount(partner[:6_000], minlength=5)
    assert counts[1] == counts[4] == 0
    # 2,000 expected of each of 0, 2, 3; five standard deviations are 183.
    assert np.abs(counts[[0, 2, 3]] - 2_000).max() < 183
    assert (partner[6_000:] == 4).all()


def test_an_epoch_of_items_has_each_of_them_once_and_all_its_classes() -> None:
    order = batches(by_class(), "centres", 8, seed=3)
    items = np.concatenate([order.batch(1, step).item for step in range(order.steps)])
    assert sorted(items.tolist()) == list(range(ITEMS))
    batch = order.batch(1, 2)
    assert [[c for c in row if c >= 0] for row in batch.classes.tolist()] == [NAMED[i] for i in batch.item.tolist()]
    other = [order.batch(epoch, 0).item.tolist() for epoch in (0, 1)]
    assert other[0] != other[1]


def unit(rows: np.ndarray) -> np.ndarray:
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def slow_loss(name: str, positive: list[float], negative: list[float]) -> float:
    """Of cosines, written from the formulas; g = 10, m = 0.1, distances with the library's 1e-6 under the root."""

    def d(cosine: float) -> float:
        return float(np.sqrt(1 - cosine + 1e-6))

    match name:
        case "full_softmax":  # TensorFlow's num_true: labels of 1 / K each; temperature 0.2
            everything = np.log(sum(np.exp(s / 0.2) for s in positive + negative))
            return float(np.mean([everything - s / 0.2 for s in positive]))
        case "am_softmax":
            return float(np.mean([np.log(1 + sum(np.exp(10 * (n + 0.1 - p)) for n in negative)) for p in positive]))
        case "distance_softmax":
            return float(
                np.mean([np.log(1 + sum(np.exp(10 * (d(p) + 0.1 - d(n))) for n in negative)) for p in positive])
            )
        case "triplet":
            return float(np.mean([[max(0.0, n - p + 0.2) for n in negative] for p in positive])) if negative else 0.0
        case "pair":
            return float(np.log(1 + sum(np.exp(10 * (n - p + 0.1)) for n in negative for p in positive)))
        case _:  # circle, g = 20, m = 0.25
            up = sum(np.exp(20 * max(0.0, n + 0.25) * (n - 0.25)) for n in negative)
            return float(np.log(1 + up * sum(np.exp(-20 * max(0.0, 1.25 - p) * (p - 0.75)) for p in positive)))


LOSSES = ("full_softmax", "am_softmax", "distance_softmax", "triplet", "pair", "circle")
CELLS = [(name, "centres") for name in LOSSES] + [(name, "items") for name in LOSSES[1:]]


@pytest.mark.parametrize(("name", "against"), CELLS)
def test_the_loss_is_the_formula_over_centres_or_items(name: str, against: str) -> None:
    config = recipe({"name": name}, against)
    task, order = task_of(config, by_class())
    batch = order.batch(0, 1)
    vectors = unit(task.towers.candidate_tower.encoders[0].table.numpy()[batch.item + 1])
    losses = []
    for row, item in enumerate(batch.item.tolist()):
        if isinstance(batch, ClassBatch):
            cosines = unit(task.centres.numpy()) @ vectors[row]
            positive = [cosines[c] for c in range(CLASSES) if c in NAMED[item]]
            negative = [cosines[c] for c in range(CLASSES) if c not in NAMED[item]]
        else:
            others = [(vectors[row] @ vectors[j], b) for j, b in enumerate(batch.item.tolist()) if b != item]
            positive = [cosine for cosine, b in others if set(NAMED[b]) & set(NAMED[item])]
            negative = [cosine for cosine, b in others if not set(NAMED[b]) & set(NAMED[item])]
        losses.append(slow_loss(name, positive, negative))
    assert float(task.compute_loss(as_tensors(batch))) == pytest.approx(np.mean(losses), rel=1e-5)


def test_items_without_a_positive_do_not_count() -> None:
    task, _ = task_of(recipe({"name": "pair"}, "items"), by_class())
    item = np.array([0, 3, 1], np.int64)  # 1 is like nobody here but 0
    alike = np.array([[0, 1, 0], [1, 0, 0], [0, 0, 0]], bool)
    seed = np.zeros(2, np.int32)
    unlike = ~alike & ~np.eye(3, dtype=bool)
    vectors = unit(task.towers.candidate_tower.encoders[0].table.numpy()[item + 1])
    cosine = vectors @ vectors.T
    wanted = [slow_loss("pair", [cosine[0, 1]], [cosine[i, 2]]) for i in (0, 1)]
    got = task.compute_loss(as_tensors(RelatedBatch(item, alike, unlike, seed)))
    assert float(got) == pytest.approx(np.mean(wanted), rel=1e-5)
    nobody = np.zeros((3, 3), bool)
    with tf.GradientTape() as tape:
        loss = task.compute_loss(as_tensors(RelatedBatch(item, nobody, ~np.eye(3, dtype=bool), seed)))
    gradient = tf.convert_to_tensor(tape.gradient(loss, task.trainable_variables)[0])
    assert float(loss) == 0
    assert not gradient.numpy().any()


def test_only_the_hardest_negatives_count_where_asked() -> None:
    config = recipe({"name": "am_softmax", "hardest_negatives": 1})
    task, order = task_of(config, by_class())
    batch = order.batch(0, 0)
    vectors = unit(task.towers.candidate_tower.encoders[0].table.numpy()[batch.item + 1])
    losses = []
    for vector, item in zip(vectors, batch.item.tolist(), strict=True):
        cosines = unit(task.centres.numpy()) @ vector
        hardest = max(cosines[c] for c in range(CLASSES) if c not in NAMED[item])
        losses.append(slow_loss("am_softmax", [cosines[c] for c in NAMED[item]], [hardest]))
    assert float(task.compute_loss(as_tensors(batch))) == pytest.approx(np.mean(losses), rel=1e-5)


def test_the_bottleneck_costs_what_the_divergence_says() -> None:
    costs = []
    for beta in (0.5, 1.0):
        task, order = task_of(recipe({"name": "am_softmax", "bottleneck": beta}), by_class())
        batch = as_tensors(order.batch(0, 0))
        task.compute_loss(batch)
        mean = task.towers.candidate_tower.encoders[0].table.numpy()[order.batch(0, 0).item + 1]
        costs.append(float(task.compute_loss(batch)))
    # log sigma^2 starts at -6: KL = (e^-6 + mean^2 - 1 + 6) / 2 summed over the width; its noise is the same in both.
    divergence = 0.5 * (np.exp(-6) + mean**2 - 1 + 6).sum(axis=1).mean()
    assert costs[1] - costs[0] == pytest.approx(0.5 * divergence, rel=1e-4)


def step_of(task: Similarity, optimizer: Optimizer) -> Any:
    def step(batch: Any) -> None:
        with tf.GradientTape() as tape:
            loss = task.compute_loss(batch)
        optimizer.apply(tape.gradient(loss, task.trainable_variables))

    return tf.function(step, autograph=False)


def validation(relation: Relation) -> NeighbourValidation:
    every = np.arange(ITEMS)
    likes = (relation.between(every, every) & ~np.eye(ITEMS, dtype=bool)).sum(axis=1)
    return NeighbourValidation({"item_id": every + 1}, every, relation, likes, "precision@3")


@pytest.mark.parametrize(("name", "against"), CELLS)
def test_each_loss_learns_the_classes_and_its_step_would_stay_on_a_gpu(name: str, against: str) -> None:
    config = recipe({"name": name}, against)
    task, order = task_of(config, by_class())
    check = validation(by_class())
    assert check.measure(task.towers).metric < 0.8  # a random order has 0.42
    step = step_of(task, build_optimizer(config.optimizer, task.trainable_variables))
    assert problems(step.get_concrete_function(as_tensors(order.batch(0, 0))).graph) == []
    for epoch in range(30):
        for place in range(order.steps):
            step(as_tensors(order.batch(epoch, place)))
    # A hinge stops where its triplets are satisfied, which may leave an item beside another class.
    assert check.measure(task.towers).metric >= (0.95 if name == "triplet" else 1.0)


def test_pairs_are_learnt(tmp_path: Path) -> None:
    train = {"epochs": 30, "batch_size": 24}
    config = recipe({"name": "pair"}, "items", pairs={"yes": True}, train=train, optimizer={"learning_rate": 0.1})
    # A ring of 8 items each: both neighbours, and then no other, are what an item is like.
    summary = trainer(tmp_path, config, by_pair()).fit()
    assert summary.best_metric == pytest.approx(2 / 3)


def test_an_adaptive_margin_follows_the_classes(tmp_path: Path) -> None:
    config = recipe({"name": "distance_softmax", "margin": "adaptive", "margin_max": 2.0}, train={"epochs": 3})
    built = trainer(tmp_path, config, by_class(), validate=False)
    assert float(built.task.margin.value) == 0
    summary = built.fit()
    vectors = unit(built.task.towers.candidate_tower.encoders[0].table.numpy()[1:])
    centres = unit(built.task.centres.numpy())
    per_class = [
        np.mean([np.sqrt(1 - vectors[i] @ centres[c] + 1e-6) for i in range(ITEMS) if c in NAMED[i]])
        for c in range(CLASSES)
    ]
    assert float(built.task.margin.value) == pytest.approx(2 * np.mean(per_class), rel=1e-5)
    margins = [record["margin"] for record in summary.history]
    assert margins == pytest.approx([record["margin_estimate"] for record in summary.history])


def weights(built: Trainer) -> list[np.ndarray]:
    slots = [slot for slots in built.optimizer.slots for slot in slots]
    margin = [] if built.task.margin is None else [built.task.margin.value]
    return [np.array(v) for v in [*built.task.trainable_variables, *margin, *slots]]


@pytest.mark.parametrize(
    ("loss", "against", "stop_at"),
    [({"name": "distance_softmax", "margin": "adaptive"}, "centres", 5), ({"name": "pair"}, "items", 9)],
)
def test_a_run_that_was_cut_off_goes_on_bit_for_bit(
    tmp_path: Path, loss: dict[str, Any], against: str, stop_at: int
) -> None:
    config = recipe(loss, against, train={"epochs": 3, "checkpoint_steps": 2})
    whole = trainer(tmp_path / "whole", config, by_class())
    assert whole.examples.steps == (3 if against == "centres" else 6)

    def keep(done: int, loss: float) -> None:
        """What a kill after this step would leave."""
        if done == stop_at:
            shutil.copytree(tmp_path / "whole", tmp_path / "cut")

    whole.fit(keep)
    resumed = trainer(tmp_path / "cut", config, by_class())
    seen: list[int] = []
    resumed.fit(lambda done, loss: seen.append(done))
    assert 1 <= seen[0] <= stop_at + 1
    assert seen[0] > 1
    for one, other in zip(weights(whole), weights(resumed), strict=True):
        np.testing.assert_array_equal(one, other)


# The first and the last cell have both kinds of batches; the long run has all.
ENDS = [pytest.param(*cell, marks=[] if cell in {CELLS[0], CELLS[-1]} else pytest.mark.long) for cell in CELLS]


@pytest.mark.parametrize(("name", "against"), ENDS)
def test_the_train_step_with_a_bottleneck_stays_on_a_gpu(tmp_path: Path, name: str, against: str) -> None:
    built = trainer(tmp_path, recipe({"name": name, "bottleneck": 0.1}, against), by_class())
    assert problems(built._step.get_concrete_function(as_tensors(built.examples.batch(0, 0))).graph) == []


@pytest.mark.parametrize(("name", "against"), ENDS)
def test_the_loss_compiles(name: str, against: str) -> None:
    built, order = task_of(recipe({"name": name, "bottleneck": 0.1}, against), by_class())
    batch = as_tensors(order.batch(0, 0))
    plain = built.compute_loss(batch)
    compiled = tf.function(built.compute_loss, autograph=False, jit_compile=True)(batch)
    assert float(compiled) == pytest.approx(float(plain), rel=1e-4)


@pytest.mark.parametrize(("name", "against"), CELLS)
def test_value_and_gradient_are_finite_at_equal_huge_and_zero_vectors(name: str, against: str) -> None:
    task, order = task_of(recipe({"name": name}, against), by_class())
    batch = as_tensors(order.batch(0, 0))
    table = task.towers.candidate_tower.encoders[0].table
    for rows in (tf.ones_like(table), 1e4 * tf.random.stateless_normal(table.shape, [1, 2]), tf.zeros_like(table)):
        table.assign(rows)
        with tf.GradientTape() as tape:
            loss = task.compute_loss(batch)
        gradients = tape.gradient(loss, task.trainable_variables)
        assert np.isfinite(float(loss))
        assert all(np.isfinite(tf.convert_to_tensor(each)).all() for each in gradients if each is not None)


def nearest(vectors: np.ndarray) -> np.ndarray:
    cosine = vectors @ vectors.T
    np.fill_diagonal(cosine, -2)
    return cosine.argmax(axis=1)


def test_a_margin_mends_neighbours_that_softmax_leaves_in_the_other_class() -> None:
    """Classes differ by the sign of a small coordinate; a large one, the same in both, decides who is near whom.

    A linear map to the circle: softmax is content once each side is right, with a margin the small one must grow.
    """
    small, large, classes = np.array([0.3, 0.3, -0.3, -0.3]), np.array([1.0, -1.0, 1.0, -1.0]), np.array([0, 0, 1, 1])
    assert (classes[nearest(unit(np.stack([small, large], axis=1)))] != classes).all()
    everything, seed = np.arange(4), np.zeros(2, np.int32)
    right, mended = [], []
    # Two classes on the circle: neighbours are right where the cosine gap to the centres is above sqrt(2).
    for margin in (0.0, 1.6):
        config = recipe({"name": "am_softmax", "scale": 20.0, "margin": margin}, model={"dimension": 2})
        values = {"small": small, "large": large}
        specs = [FeatureSpec(name, NumericFeature(kind="numeric"), table=name) for name in values]
        towers = TwoTower([], specs, config)
        for encoder, direction in zip(towers.candidate_tower.encoders, np.eye(2), strict=True):
            encoder.table.assign([direction, [0, 0]])
        columns = {name: np.stack([v, np.zeros(4)], axis=1).astype(np.float32) for name, v in values.items()}
        task = Similarity(towers, config, ItemFeatures(columns, ItemRanks.of(everything.astype(np.int32), 4)), 2)
        task.centres.assign([[1.0, 0.0], [-1.0, 0.0]])
        batch = as_tensors(ClassBatch(everything, classes[:, np.newaxis], seed))
        optimizer = build_optimizer(OptimizerConfig(name="sgd", learning_rate=0.02), task.trainable_variables)
        step = step_of(task, optimizer)
        for _ in range(100):
            step(batch)
        vectors = towers.candidate_tower(task.features_of(tf.constant(everything))).numpy()
        right.append(((vectors @ task.directions().numpy().T).argmax(axis=1) == classes).all())
        mended.append(float((classes[nearest(vectors)] == classes).mean()))
    assert right == [True, True]
    assert mended == [0.0, 1.0]
