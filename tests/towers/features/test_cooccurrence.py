"""Items taken next to each other: counts against a slow loop, vectors against the formula, and the path to a bundle."""

import math
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from pipelines.bundles import export
from pipelines.bundles.run import load_run
from pipelines.ingest import prepare
from pipelines.training import train
from serving.bundle.encoder import Encoder
from serving.bundle.reader import Bundle
from tests.support.gpu_kernels import problems
from tests.support.worlds.training import GROUPS, ITEMS, USERS, group_world, recipe, task_of
from towers.config.features import CooccurrenceFeature, IdFeature, NeighboursFeature
from towers.config.recipe import parse_config
from towers.config.sections import DataConfig
from towers.data.feature_tables import FeatureTables
from towers.errors import ConfigError
from towers.features.cooccurrence import Companions, companions
from towers.features.encoder import FeatureSpec, new_table
from towers.features.neighbours import CooccurrenceEncoder
from towers.model.graphs import connect_graphs
from towers.model.two_tower import TwoTower
from towers.training.prefetch import as_tensors
from towers.training.trainer import Trainer

N = 6


def slow(lists: list[list[int]], items: int, window: int) -> np.ndarray:
    """a_ij, pair by pair."""
    count = np.zeros((items, items))
    for taken in lists:
        for first, i in enumerate(taken):
            for second, j in enumerate(taken):
                if i != j and 0 < abs(first - second) <= window:
                    count[i, j] += 1 / abs(first - second)
    total = count.sum(axis=1)
    return np.array(
        [[count[i, j] / (total[i] * total[j]) ** 0.5 if count[i, j] else 0 for j in range(items)] for i in range(items)]
    )


def slow_lists(lists: list[list[int]], items: int) -> np.ndarray:
    """a_ij without an order, pair by pair."""
    sets = [set(taken) for taken in lists]
    users = [sum(i in taken for taken in sets) for i in range(items)]
    count = np.zeros((items, items))
    for taken in sets:
        for i, j in permutations(taken, 2):
            count[i, j] += 1 / math.log(math.e + len(taken))
    return np.array(
        [[count[i, j] / (users[i] * users[j]) ** 0.5 if count[i, j] else 0 for j in range(items)] for i in range(items)]
    )


def closest(closeness: np.ndarray, most: int) -> tuple[list[list[int]], list[list[float]]]:
    kept = [sorted((-round(a, 9), j) for j, a in enumerate(row) if a > 0)[:most] for row in closeness]
    return (
        [[j for _, j in row] + [-1] * (most - len(row)) for row in kept],
        [[-a for a, _ in row] + [0.0] * (most - len(row)) for row in kept],
    )


lists_of_items = st.lists(st.lists(st.integers(0, N - 1), max_size=18), min_size=1, max_size=6)


@pytest.mark.parametrize("block", [5, 10**6])
@given(lists_of_items, st.integers(1, 12) | st.just("list"), st.integers(1, 4), st.sets(st.integers(0, N - 1)))
def test_companions_are_those_of_a_slow_loop(
    block: int, lists: list[list[int]], window: Any, most: int, unknown: set[int]
) -> None:
    user = np.repeat(np.arange(len(lists), dtype=np.int32), [len(each) for each in lists])
    taken = np.array([item for each in lists for item in each], np.int32)
    known = np.array([i not in unknown for i in range(N)])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("towers.features.cooccurrence.BLOCK_EVENTS", block)
        patch.setattr("towers.features.cooccurrence.BLOCK_PAIRS", block)
        found = companions(user, taken, known, window, most, "window")
    wanted = (slow_lists(lists, N) if window == "list" else slow(lists, N, window)) * known
    item, value = closest(wanted, most)
    np.testing.assert_allclose(found.closeness, value, rtol=1e-5)
    # Which of equally close ones stay depends on the last bit of a sum.
    for row, places in enumerate(found.item):
        there = places >= 0
        assert there.tolist() == [j >= 0 for j in item[row]]
        np.testing.assert_allclose(wanted[row, places[there]], np.array(value[row])[there], rtol=1e-5)
        assert len(set(places[there].tolist())) == there.sum()


def test_lists_read_no_order() -> None:
    user, known = np.repeat(np.arange(9, dtype=np.int32), 30), np.ones(40, bool)
    rng = np.random.default_rng(3)
    taken = rng.integers(0, 40, (9, 30)).astype(np.int32)
    shuffled = rng.permuted(taken, axis=1)
    assert (taken != shuffled).any()
    one, other = (companions(user, each.ravel(), known, "list", 40, "window") for each in (taken, shuffled))
    np.testing.assert_array_equal(one.item, other.item)
    np.testing.assert_array_equal(one.closeness, other.closeness)
    one, other = (companions(user, each.ravel(), known, 5, 40, "window") for each in (taken, shuffled))
    assert (one.item != other.item).any()


def test_lists_of_too_many_pairs_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("towers.features.cooccurrence.MOST_PAIRS", 24)
    user, item = np.zeros(5, np.int32), np.arange(5, dtype=np.int32)
    with pytest.raises(ConfigError, match=r"^features\.near\.window: 'list' counts every pair .* at most 24, got 25"):
        companions(user, item, np.ones(5, bool), "list", 2, "features.near.window")


def encoder(**options: Any) -> CooccurrenceEncoder:
    """Items 0 to 3 in rows 2, 3, 0 (missing) and 1."""
    config = CooccurrenceFeature(kind="cooccurrence", weight=3.0, max_length=2, **options)
    spec = FeatureSpec("f", config, size=3, table="t")
    made = CooccurrenceEncoder(spec, config, new_table(spec, 4, seed=1))
    item = np.array([[1, 2], [0, 3], [0, -1], [-1, -1]], np.int32)
    closeness = np.array([[0.5, 0.25], [0.5, 0.125], [0.75, 0], [0, 0]], np.float32)
    made.connect(Companions(item, closeness), np.array([2, 3, 0, 1], np.int32))
    return made


def test_an_item_is_its_companions_by_closeness_and_a_list_those_by_their_mean() -> None:
    made = encoder()
    e = made.table.numpy()
    numbers = tf.range(4, dtype=tf.int64)
    wanted = 3 * np.array([0.5 * e[3], 0.5 * e[2] + 0.125 * e[1], 0.75 * e[2], 0 * e[0]])
    np.testing.assert_allclose(made.embed(numbers), wanted, rtol=1e-6)
    np.testing.assert_array_equal(made.informs(numbers), [True, True, True, False])
    # Row 1 was listed once at 1/8, row 2 at 1/2 and 3/4, row 3 at 1/2.
    lists = tf.constant([[1, 2], [0, 3], [0, 0]])
    means = 3 * np.array([0.125 * e[1] + 0.625 * e[2], 0.5 * e[3], 0 * e[0]])
    np.testing.assert_allclose(made.embed(lists), means, rtol=1e-6)
    np.testing.assert_array_equal(made.informs(lists), [True, True, False])


def test_a_mask_leaves_out_whole_items_in_training_alone() -> None:
    made, numbers = encoder(mask_share=0.5), tf.zeros(400, tf.int64)
    masked = made.embed(numbers, tf.constant([1, 2]))
    silent = np.all(masked.numpy() == 0, axis=1)
    assert 120 < silent.sum() < 280
    whole = made.embed(numbers).numpy()
    np.testing.assert_array_equal(masked.numpy()[~silent], whole[~silent])


def test_numbers_before_the_graph_is_known_are_refused() -> None:
    config = CooccurrenceFeature(kind="cooccurrence")
    spec = FeatureSpec("f", config, size=3, table="t")
    with pytest.raises(RuntimeError, match="f: items are asked for before `connect`"):
        CooccurrenceEncoder(spec, config, new_table(spec, 4, seed=1)).embed(tf.range(3))


def test_it_learns_the_group_world_and_would_stay_on_a_gpu(tmp_path: Path) -> None:
    events, plain, _ = group_world()
    rows = np.arange(1, ITEMS + 1, dtype=np.int32)
    near = np.arange(ITEMS, dtype=np.int32)
    tables = FeatureTables(plain.users, {**plain.items, "near": near}, companions={"near": rows})
    config = recipe(train={"epochs": 4}, optimizer={"learning_rate": 0.02})
    user, item = (
        FeatureSpec(name, IdFeature(kind="id"), size=n, table=name)
        for name, n in (("user_id", USERS), ("item_id", ITEMS))
    )
    towers = TwoTower(
        [user],
        [item, FeatureSpec("near", CooccurrenceFeature(kind="cooccurrence"), size=ITEMS, table="item_id")],
        config,
    )
    connect_graphs(towers, tables, [events])
    task, examples = task_of(config, events, tables, towers)
    built = Trainer(task, examples, config.optimizer, config.train, tmp_path, None)
    assert problems(built._step.get_concrete_function(as_tensors(built.examples.batch(0, 0))).graph) == []
    built.fit()
    users = towers.query_tower({"user_id": tf.range(1, USERS + 1)})
    items = towers.candidate_tower({"item_id": rows, "near": tf.constant(near)})
    scores = tf.matmul(users, items, transpose_b=True).numpy()
    own = np.arange(USERS)[:, None] % GROUPS == np.arange(ITEMS) % GROUPS
    assert scores[own].mean() > scores[~own].mean() + 0.5


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle made by the commands, with refit: what is near at export is so in both splits."""
    path: Path = tmp_path_factory.mktemp("cooccurrence")
    rng = np.random.default_rng(0)
    taken = [(u, i) for u in range(60) for i in rng.permutation(np.arange(30)[np.arange(30) % 3 == u % 3])[:8]]
    columns = {"user_id": [f"u{u}" for u, _ in taken], "item_id": [f"i{i}" for _, i in taken]}
    frame = pl.DataFrame({**columns, "timestamp": [1_600_000_000 + n % 8 for n in range(len(taken))]})
    frame.write_parquet(path / "events.parquet")
    prepare.run(
        DataConfig(split="global_time", valid_share=0.2, test_share=0.0), path / "events.parquet", path / "data"
    )
    prepare.run(DataConfig(split="random", valid_share=0.2), path / "events.parquet", path / "random")
    train.run(world_recipe(), path / "data", path / "run")
    export.run(path / "run", path / "bundle")
    return path


def world_recipe(**candidate: Any) -> Any:
    near = {"kind": "cooccurrence", "window": 2, "max_length": 3, "weight": 2.0}
    return parse_config(
        {
            "data": {"refit": True},
            "features": {
                "query": {"history": {"kind": "history"}},
                "candidate": {"item_id": {"kind": "id"}, "near": near} | candidate,
            },
            "model": {"dimension": 8, "similarity": "dot"},
            "optimizer": {"learning_rate": 0.05},
            "train": {"epochs": 3, "batch_size": 64, "metric": "recall@5"},
        }
    )


def test_served_items_are_their_id_and_their_companions(folder: Path) -> None:
    bundle, trained = Bundle.open(folder / "bundle"), load_run(folder / "run")
    parts = [trained.dataset.events(split) for split in ("train", "valid")]
    lists = [[int(i) for part in parts for i in part.item[part.offsets[u] : part.offsets[u + 1]]] for u in range(60)]
    item, value = closest(slow(lists, 30, window=2), 3)
    table, rows = trained.model.candidate_tower.encoders[0].table.numpy(), trained.tables.items["item_id"]
    wanted = [
        table[rows[i]] + 2 * sum(a * table[rows[j]] for j, a in zip(item[i], value[i], strict=True) if a > 0)
        for i in range(30)
    ]
    names = trained.dataset.items["item_id"].to_list()
    vectors = np.asarray(bundle.item_vectors)
    np.testing.assert_allclose(vectors, [wanted[names.index(i)] for i in bundle.item_names], rtol=1e-4, atol=1e-6)


def test_a_new_item_is_encoded_from_what_it_is_listed_with(folder: Path) -> None:
    bundle = Bundle.open(folder / "bundle")
    items = Encoder.of_items(bundle)
    vector = items.encode([{"near": ["i0", "i3", "i6"]}])[0]
    scores = dict(zip(bundle.item_names, np.asarray(bundle.item_vectors) @ vector, strict=True))
    own, others = ([s for name, s in scores.items() if (int(name[1:]) % 3 == 0) is group] for group in (True, False))
    assert np.mean(own) > np.mean(others)
    assert not items.encode([{"near": ["nothing of ours"]}]).any()


def test_it_needs_an_order_and_describes_a_candidate(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"features\.candidate\.near\.kind: 'cooccurrence' needs the order .* set window = 'list'"
    ):
        train.run(world_recipe(), folder / "random", tmp_path / "run")
    query = parse_config({"features": {"query": {"near": {"kind": "cooccurrence"}}}})
    with pytest.raises(ConfigError, match=r"features\.query\.near\.kind: 'cooccurrence' describes a candidate"):
        train.run(query, folder / "data", tmp_path / "run")


def test_lists_train_without_an_order(folder: Path, tmp_path: Path) -> None:
    config = world_recipe(near={"kind": "cooccurrence", "window": "list", "max_length": 3, "weight": 2.0})
    taken = NeighboursFeature(kind="neighbours", cooccurrence=2.0, cooccurrence_window="list")
    features = config.features.model_copy(update={"query": {"taken": taken}})
    once = config.model_copy(update={"features": features, "data": config.data.model_copy(update={"refit": False})})
    (stage,) = train.run(once, folder / "random", tmp_path / "run")["stages"]
    assert stage["best_metric"] > 2 * 5 / ITEMS
