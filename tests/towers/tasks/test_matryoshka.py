"""`loss.matryoshka`: one loss over vectors cut to several widths, in both tasks; the towers then serve any of them."""

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.support.worlds.training import group_world, recipe, task_of, trainer
from tests.towers.losses.test_every_loss_with_every_sampler import ALONE, DRAWN, OPTIONS, SAMPLED
from tests.towers.tasks import test_similarity as similarity
from towers.data.batch import Batch
from towers.errors import ConfigError
from towers.model.two_tower import TwoTower
from towers.tasks.retrieval import Retrieval
from towers.training.prefetch import as_tensors

CUTS, WIDTH = [2, 5], 8
LONG = 30.0  # times the first rows, of which cuts are so short that they are not scaled up to length one
MORE: list[dict[str, Any]] = [
    {"loss": {"name": "sampled_softmax", "hardest_negatives": 5}, "sampler": DRAWN["uniform"]},
    {"loss": {"name": "sampled_softmax", "positives_per_query": 3, "known_positives": 4}, "sampler": DRAWN["mixed"]},
    {"loss": {"name": "sampled_softmax"}, "sampler": DRAWN["learned_unigram"], "model": {"similarity": "dot"}},
    {"loss": {"name": "full_softmax"}, "model": {"similarity": "dot"}},
]
CELLS = [
    *({"loss": {"name": name} | OPTIONS.get(name, {})} for name in ALONE),
    *({"loss": {"name": name} | OPTIONS.get(name, {}), "sampler": DRAWN["in_batch"]} for name in SAMPLED),
    *MORE,
]


def built(width: int, cuts: list[int], cell: dict[str, Any]) -> tuple[Retrieval, Batch]:
    sections = cell | {"model": cell.get("model", {}) | {"dimension": width}}
    sections["loss"] = cell["loss"] | {"matryoshka": cuts}
    events, tables, _ = group_world()
    task, examples = task_of(recipe(**sections), events, tables)
    for tower in (task.towers.query_tower, task.towers.candidate_tower):
        table = tower.encoders[0].table
        table.assign(table * LONG)
    return task, as_tensors(examples.batch(0, 0))


def share_tables(narrow: TwoTower, wide: TwoTower, width: int) -> None:
    """Gives the narrow towers the first numbers of the wide ones' rows: without layers, those of their vectors."""
    for side in ("query_tower", "candidate_tower"):
        to, source = (getattr(towers, side).encoders[0].table for towers in (narrow, wide))
        to.assign(source[:, :width])


@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: "-".join(map(str, cell["loss"].values())))
def test_the_loss_is_the_mean_of_those_of_models_that_have_only_the_first_numbers(cell: dict[str, Any]) -> None:
    wide, batch = built(WIDTH, CUTS, cell)
    losses = []
    for width in (*CUTS, WIDTH):
        narrow, _ = built(width, [], cell)
        share_tables(narrow.towers, wide.towers, width)
        losses.append(float(narrow.compute_loss(batch)))
    assert len(set(losses)) == 3, "a cut changes it"
    assert float(wide.compute_loss(batch)) == pytest.approx(np.mean(losses), rel=1e-5)
    with tf.GradientTape() as tape:
        value = wide.compute_loss(batch)
    table = wide.towers.candidate_tower.encoders[0].table
    gradient = tf.convert_to_tensor(tape.gradient(value, table)).numpy()
    assert np.isfinite(gradient).all() and gradient.any(axis=0).all()


def test_log_z_of_a_cut_query_is_that_of_one_that_ends_in_zeros() -> None:
    cell = {"loss": {"name": "nce", "log_z": "per_query"}, "sampler": DRAWN["uniform"]}
    wide, batch = built(WIDTH, CUTS, cell)
    wide.create_weights(batch)
    assert wide.log_z is not None
    wide.log_z.head.kernel.assign(np.linspace(-1, 1, WIDTH)[:, np.newaxis])
    losses = []
    for width in (*CUTS, WIDTH):
        narrow, _ = built(width, [], cell)
        narrow.create_weights(batch)
        assert narrow.log_z is not None
        narrow.log_z.head.kernel.assign(wide.log_z.head.kernel[:width])
        share_tables(narrow.towers, wide.towers, width)
        losses.append(float(narrow.compute_loss(batch)))
    assert float(wide.compute_loss(batch)) == pytest.approx(np.mean(losses), rel=1e-5)


@pytest.mark.parametrize(("name", "against"), [("am_softmax", "centres"), ("triplet", "items")])
def test_items_and_centres_are_cut_alike(name: str, against: str) -> None:
    def task(width: int, cuts: list[int]) -> tuple[Any, Any]:
        sections = {"name": name, "matryoshka": cuts}, against
        config = similarity.recipe(*sections, model={"dimension": width})
        return similarity.task_of(config, similarity.by_class())

    wide, order = task(WIDTH, CUTS)
    table = wide.towers.candidate_tower.encoders[0].table
    table.assign(table * LONG)
    if wide.centres is not None:
        wide.centres.assign(wide.centres * LONG)
    batch = as_tensors(order.batch(0, 0))
    losses = []
    for width in (*CUTS, WIDTH):
        narrow, _ = task(width, [])
        share_tables(narrow.towers, wide.towers, width)
        if wide.centres is not None:
            narrow.centres.assign(wide.centres[:, :width])
        losses.append(float(narrow.compute_loss(batch)))
    assert len(set(losses)) == 3
    assert float(wide.compute_loss(batch)) == pytest.approx(np.mean(losses), rel=1e-5)


@pytest.mark.parametrize("similar", ["cosine", "dot"])
def test_a_tower_serves_the_first_numbers_as_a_vector_of_their_own(similar: str) -> None:
    task, batch = built(WIDTH, CUTS, {"loss": {"name": "sampled_softmax"}, "model": {"similarity": similar}})
    tower = task.towers.query_tower
    tower.dimension = 5
    rows = tower.encoders[0].table.numpy()[batch.query["user_id"].numpy()][:, :5]
    wanted = rows / np.linalg.norm(rows, axis=1, keepdims=True) if similar == "cosine" else rows
    np.testing.assert_allclose(tower.serve(batch.query), wanted, rtol=1e-5, atol=1e-7)
    assert tower(batch.query).shape[1] == WIDTH, "training sees all of them"


@pytest.mark.long
def test_two_numbers_of_eight_learn_the_groups_if_they_are_trained(tmp_path: Any) -> None:
    """Recall@1 of vectors cut to 2 of 8 numbers: three groups need no more."""
    found = {}
    for cuts in ((), (2,)):
        run = trainer(tmp_path / str(len(cuts)), loss={"matryoshka": list(cuts)}, train={"epochs": 12})
        run.fit()
        _, _, check = group_world()
        for tower in (run.task.towers.query_tower, run.task.towers.candidate_tower):
            tower.dimension = 2
        found[cuts] = check.measure(run.task.towers).metric
    assert found[(2,)] > found[()] + 0.1


@pytest.mark.parametrize("cuts", [[4, 2], [2, 2], [2, 8], [9], [0]])
def test_widths_that_do_not_rise_below_the_whole_are_refused(cuts: list[int]) -> None:
    with pytest.raises(ConfigError, match=r"loss\.matryoshka"):
        recipe(loss={"matryoshka": cuts})
