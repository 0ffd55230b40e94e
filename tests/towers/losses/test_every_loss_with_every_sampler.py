"""Every loss with every sampler: it trains on a world with a known answer and could run on a GPU, or is refused."""

import re
from dataclasses import replace
from itertools import product
from typing import Any, get_args

import numpy as np
import pytest
import tensorflow as tf

from tests.support.gpu_kernels import largest, problems
from tests.support.paths import ROOT
from tests.support.worlds.training import ITEMS, USERS, group_world, recipe, task_of, trainer
from towers.config.features import CategoricalFeature, HistoryFeature, IdFeature, MultiFeature, NumericFeature
from towers.config.losses import LOSSES
from towers.config.samplers import SAMPLERS
from towers.data.batch import Batch
from towers.data.events import Events
from towers.data.feature_tables import FeatureTables, HistoryTable
from towers.errors import ConfigError
from towers.features.encoder import FeatureSpec
from towers.model.two_tower import TwoTower
from towers.training.checkpoints import Checkpoints
from towers.training.prefetch import as_tensors
from towers.training.trainer import Trainer


def names(choices: tuple[type[Any], ...]) -> list[str]:
    return [get_args(each.model_fields["name"].annotation)[0] for each in choices]


ALONE = ("full_softmax", "bce", "graded_hinge")  # they take no sampler
SAMPLED = [name for name in names(LOSSES) if name not in ALONE]
DRAWN: dict[str, dict[str, Any]] = {
    name: {"name": name, **({} if name == "in_batch" else {"negatives": 16})}
    for name in names(SAMPLERS)
    if name != "mixed"
} | {"mixed": {"name": "mixed", "parts": [{"name": "in_batch"}, {"name": "uniform", "negatives": 16}]}}
# The group world is small and every one of its items common: some losses want another scale than on real data.
OPTIONS: dict[str, dict[str, Any]] = {"ccl": {"negative_weight": 5.0, "margin": 0.2}, "bce": {"max_label": 3.0}}
SELDOM = {"checkpoint_steps": 10_000}
DROPOUT = {"query_dropout": 0.1, "candidate_dropout": 0.1}
EVERY_OPTION: dict[str, Any] = {
    "name": "sampled_softmax",
    "positives_per_query": 3,
    "known_positives": 5,
    "hardest_negatives": 9,
    "label_smoothing": 0.05,
    "bottleneck": 1e-4,
}
VARIANTS: dict[str, dict[str, Any]] = {
    "softmax, excluded": {"loss": {"name": "sampled_softmax", "positive": "excluded"}},
    "softmax, all options": {"loss": EVERY_OPTION, "sampler": DRAWN["mixed"]},
    "softmax, distinct": {"sampler": {"name": "log_uniform", "negatives": 16, "distinct": True}},
    "softmax, distinct in-batch": {"sampler": {"name": "in_batch", "distinct": True, "frequencies": "learned"}},
    "nce, learned log Z": {"loss": {"name": "nce", "log_z": "learned"}, "sampler": DRAWN["uniform"]},
    "nce, log Z per query": {"loss": {"name": "nce", "log_z": "per_query"}, "sampler": DRAWN["learned_unigram"]},
    "distance softmax, adaptive": {"loss": {"name": "distance_softmax", "margin": "adaptive"}},
    "triplet, semi-hard": {"loss": {"name": "triplet", "mining": "semi_hard", "on": "euclidean"}},
    "triplet, hardest and smooth": {"loss": {"name": "triplet", "mining": "hardest", "smooth": True}},
    "bsl, batch": {"loss": {"name": "bsl", "positive_group": "batch"}},
    "circle, several positives": {"loss": {"name": "circle", "positives_per_query": 3}},
    "trained temperature": {"model": {"temperature_trainable": True}},
    "layers": {"model": {"combine": "concat", "query_layers": [8], "candidate_layers": [8]}},
    "softmax, all options and impressions": {"loss": EVERY_OPTION | {"impressions": 4}, "sampler": DRAWN["mixed"]},
    "bsl, batch, impressions": {"loss": {"name": "bsl", "positive_group": "batch", "impressions": 4}},
    "softmax, all options, and companions": {"loss": EVERY_OPTION, "contrast": {"weight": 0.1}},
    "bsl and companions": {"loss": {"name": "bsl"}, "contrast": {"weight": 0.1}, "sampler": DRAWN["mixed"]},
    "full softmax and companions": {"loss": {"name": "full_softmax"}, "contrast": {"weight": 0.1, "window": 2}},
    "cross layers and dropout": {"model": {"combine": "concat", "cross_layers": 2, "cross_projection": 4} | DROPOUT},
}
CELLS = (
    [pytest.param({"loss": {"name": name} | OPTIONS.get(name, {})}, id=name) for name in ALONE]
    + [
        pytest.param(
            {"loss": {"name": loss} | OPTIONS.get(loss, {}), "sampler": DRAWN[sampler]},
            id=f"{loss}-{sampler}",
            # Every loss and every sampler in the default run, every pair of them in the long one.
            marks=[] if row % len(DRAWN) == column else pytest.mark.long,
        )
        for row, loss in enumerate(SAMPLED)
        for column, sampler in enumerate(DRAWN)
    ]
    + [
        pytest.param(
            {"loss": {"name": loss, "impressions": 4, "impression_weight": 2.5}, "sampler": DRAWN[sampler]},
            id=f"{loss}-{sampler}-impressions",
            marks=[] if row % len(DRAWN) == column else pytest.mark.long,
        )
        for row, loss in enumerate(names(tuple(each for each in LOSSES if each.one_sum)))
        for column, sampler in enumerate(DRAWN)
    ]
    + [pytest.param(sections, id=name) for name, sections in VARIANTS.items()]
)


@pytest.fixture
def nothing_saved(monkeypatch: pytest.MonkeyPatch) -> None:
    """No checkpoints: nobody resumes these runs."""
    monkeypatch.setattr(Checkpoints, "save", lambda *_: None)


@pytest.mark.usefixtures("nothing_saved")
@pytest.mark.parametrize("sections", CELLS)
def test_a_cell_learns_and_its_step_would_stay_on_a_gpu(sections: dict[str, Any], tmp_path: Any) -> None:
    name = sections.get("loss", {}).get("name")
    # Without a log Z a sigmoid learns the groups late: first how rare a positive is. A hinge moves what is within it.
    epochs = {"neg": 40, "gbce": 40, "bce": 40, "ccl": 20}.get(str(name), 12)
    built = trainer(tmp_path, **sections, train={"epochs": epochs} | SELDOM, validate=False)
    step = built._step.get_concrete_function(as_tensors(built.examples.batch(0, 0)))
    assert problems(step.graph) == []
    summary = built.fit()
    # After the first epoch an adaptive margin makes the loss another one.
    first = 1 if sections.get("loss", {}).get("margin") == "adaptive" else 0
    assert summary.history[-1]["loss"] < summary.history[first]["loss"]
    if name in ("bce", "graded_hinge"):
        # The grades say nothing of the groups, so labels teach nothing of them, but which items have the higher grade.
        batch = as_tensors(built.examples.batch(0, 0))
        towers, item = built.task.towers, built.task.features_of(batch.item[:, 0])
        score = tf.reduce_sum(towers.query_tower(batch.query) * towers.candidate_tower(item), axis=1).numpy()
        label = batch.label.numpy()[:, 0]
        assert score[label == 3].mean() > score[label == 2].mean() + 0.1 > score[label == 1].mean() + 0.2
    else:
        _, _, check = group_world()
        assert check.measure(built.task.towers).metric > 0.6  # chance among the 21 unseen items is 0.05


# Each loss by itself is compiled in test_extremes.py; here one cell of each sampler, and in the long run all.
IN_THE_DEFAULT_RUN = {f"{SAMPLED[row]}-{sampler}" for row, sampler in enumerate(DRAWN)} | {
    "softmax, all options",
    "softmax, all options and impressions",
    "bsl and companions",
    "sampled_softmax-in_batch-impressions",
}
COMPILED = [
    pytest.param(*cell.values, id=cell.id, marks=[] if cell.id in IN_THE_DEFAULT_RUN else pytest.mark.long)
    for cell in CELLS
]


@pytest.mark.parametrize("sections", COMPILED)
def test_loss_and_sampler_compile(sections: dict[str, Any]) -> None:
    for one, other in zip(*(value_and_gradients(sections, compiled=each) for each in (False, True)), strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-4, atol=1e-5)


def value_and_gradients(sections: dict[str, Any], *, compiled: bool) -> list[np.ndarray]:
    events, tables, _ = group_world()
    task, examples = task_of(recipe(**sections), events, tables)
    batch = as_tensors(examples.batch(0, 0))

    def run(given: Batch) -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            loss = task.compute_loss(given)
        found = tape.gradient(loss, task.trainable_variables)
        return [loss, *(tf.convert_to_tensor(each) for each in found if each is not None)]

    return [each.numpy() for each in (tf.function(run, jit_compile=True, autograph=False) if compiled else run)(batch)]


@pytest.mark.skipif(not tf.config.list_physical_devices("GPU"), reason="no GPU on this machine")
@pytest.mark.parametrize("sections", CELLS)
def test_on_a_gpu_a_step_runs_there(sections: dict[str, Any], tmp_path: Any) -> None:
    """TensorFlow may not move an operation to the CPU where it finds no kernel for the GPU."""
    tf.config.set_soft_device_placement(False)
    try:
        with tf.device("/GPU:0"):
            built = trainer(tmp_path, **sections)
            loss = built._step(as_tensors(built.examples.batch(0, 0)))
    finally:
        tf.config.set_soft_device_placement(True)
    assert np.isfinite(loss)


RICH = {
    "history": HistoryFeature(kind="history", max_length=4, mask_share=0.2, pooling="attention"),
    "genres": MultiFeature(kind="multi", max_length=3, oov_buckets=9, mask_share=0.2, dimension=5),
    "year": NumericFeature(kind="numeric", mask_share=0.2),
    "genre": CategoricalFeature(kind="categorical", oov_buckets=9, mask_share=0.2),
}


@pytest.mark.usefixtures("nothing_saved")
@pytest.mark.parametrize("sampler", [pytest.param("in_batch", marks=pytest.mark.long), "uniform"])
def test_a_step_over_features_of_every_kind_would_stay_on_a_gpu(sampler: str, tmp_path: Any) -> None:
    """Look-ups aside: strings have no place on a GPU, and are looked up once, before training."""
    events, plain, _ = group_world()
    rng = np.random.default_rng(0)

    def looked_up(rows: int) -> dict[str, np.ndarray]:
        return {
            "genres": rng.integers(0, 10, (rows, 3)).astype(np.int32),
            "year": np.stack([rng.normal(size=rows), np.zeros(rows)], axis=1).astype(np.float32),
            "genre": rng.integers(0, 10, rows).astype(np.int32),
        }

    history = {"history": HistoryTable(np.arange(1, ITEMS + 1, dtype=np.int32), 4)}
    tables = FeatureTables(plain.users | looked_up(USERS), plain.items | looked_up(ITEMS), histories=history)
    model = {"combine": "concat", "cross_layers": 1} | DROPOUT
    loss = {"positives_per_query": 2, "bottleneck": 1e-4}
    config = recipe(model=model, sampler=DRAWN[sampler], loss=loss, train={"epochs": 3} | SELDOM)
    specs = {name: FeatureSpec(name, feature, table=name) for name, feature in RICH.items()}
    specs["history"] = replace(specs["history"], size=ITEMS, table="i")
    query, candidate = (
        [FeatureSpec(key, IdFeature(kind="id"), size=size, table=key[0]), *(specs[name] for name in names)]
        for key, size, names in (
            ("user_id", USERS, list(RICH)),
            ("item_id", ITEMS, ["genres", "year", "genre"]),
        )
    )
    task, examples = task_of(config, events, tables, TwoTower(query, candidate, config))
    built = Trainer(task, examples, config.optimizer, config.train, tmp_path)
    step = built._step.get_concrete_function(as_tensors(examples.batch(0, 0)))
    assert problems(step.graph) == []
    assert built.fit().history[-1]["loss"] < built.progress.history[0]["loss"]


REFUSED = [(loss, sampler) for loss in ALONE for sampler in DRAWN]


@pytest.mark.parametrize(("loss", "sampler"), REFUSED)
def test_the_other_cells_are_refused(loss: str, sampler: str) -> None:
    with pytest.raises(ConfigError, match=f"sampler: {loss} takes no sampler, so leave the section out"):
        recipe(loss={"name": loss}, sampler=DRAWN[sampler])


def test_every_pair_that_the_docs_list_is_trained_or_refused() -> None:
    page = (ROOT / "docs" / "model" / "objectives.md").read_text(encoding="utf-8")
    losses, samplers = (re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE) for table in page.split("| sampler |"))
    given = [cell.values[0] for cell in CELLS]
    trained = {(each["loss"]["name"], each["sampler"]["name"]) for each in given if {"loss", "sampler"} <= each.keys()}
    assert trained | set(REFUSED) == set(product(losses, samplers))
    assert not trained & set(REFUSED)
    assert {each["loss"]["name"] for each in given if "loss" in each} == set(losses)


@pytest.mark.parametrize(("loss", "sampler"), [("sampled_softmax", name) for name in DRAWN] + [("triplet", "uniform")])
def test_no_tensor_of_a_step_grows_with_the_catalogue(loss: str, sampler: str, tmp_path: Any) -> None:
    users, items = 100, 20_000
    events = Events(
        np.repeat(np.arange(users, dtype=np.int32), items // users),
        np.arange(items, dtype=np.int32),
        np.arange(users + 1, dtype=np.int64) * (items // users),
    )
    tables = FeatureTables(
        {"user_id": np.arange(1, users + 1, dtype=np.int32)}, {"item_id": np.arange(1, items + 1, dtype=np.int32)}
    )
    config = recipe(loss={"name": loss}, sampler=DRAWN[sampler])
    task, examples = task_of(config, events, tables)
    built = Trainer(task, examples, config.optimizer, config.train, tmp_path)
    step = built._step.get_concrete_function(as_tensors(examples.batch(0, 0)))
    elements, shape, operation = largest(step.graph)[0]
    # Batch 64, 64 + 16 candidates, width 8: [B, M] is the largest by right. N alone would be 20,000.
    assert elements <= 64 * 80, (operation, shape)
