"""One hop of the graph: against a slow loop, its gradient against the transposed one, and the path to a bundle."""

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import tensorflow as tf

from pipelines.bundles import export
from pipelines.bundles.run import Run, load_run
from pipelines.ingest import prepare
from pipelines.training import train
from serving.bundle.encoder import Encoder
from serving.bundle.reader import Bundle
from tests.support.gpu_kernels import problems
from tests.support.worlds.training import GROUPS, ITEMS, USERS, group_world, recipe, task_of
from towers.config.features import COMPANIONS, IdFeature, NeighboursFeature
from towers.config.recipe import parse_config
from towers.config.sections import DataConfig
from towers.data.bags import distinct_bag
from towers.data.events import Events
from towers.data.feature_tables import FeatureTables, HistoryTable
from towers.errors import ConfigError
from towers.features.cooccurrence import Companions
from towers.features.encoder import FeatureSpec, new_table
from towers.features.neighbour_graph import Neighbours
from towers.features.neighbours import GraphEncoder
from towers.model.graphs import connect_graphs
from towers.model.two_tower import Tower, TwoTower, save_tower
from towers.training.prefetch import as_tensors
from towers.training.trainer import Trainer

NODES, ROWS = 7, 6


def pairs() -> tuple[np.ndarray, np.ndarray]:
    """Node 3 has no neighbour, node 5 one that is missing (row 0), row 4 is nobody's."""
    node = np.array([0, 0, 0, 1, 2, 2, 4, 5, 5, 6], np.int32)
    row = np.array([1, 2, 3, 1, 2, 5, 5, 0, 1, 3], np.int32)
    return node, row


# Of rows 1 to 5: row 1 is near 2 and 5, row 3 near 2, row 5 near 1; nothing is near the others.
NEAR = {1: {2: 0.5, 5: 0.25}, 3: {2: 1.0}, 5: {1: 0.125}}


def near() -> Companions:
    """As items 0 to 4 in rows 5 to 1, and item 5 without a row."""
    item, closeness = np.full((6, COMPANIONS), -1, np.int32), np.zeros((6, COMPANIONS), np.float32)
    for row, others in NEAR.items():
        for place, (other, value) in enumerate(others.items()):
            item[5 - row, place], closeness[5 - row, place] = 5 - other, value
    item[5, 0], closeness[5, 0] = 2, 0.5
    return Companions(item, closeness).of_rows(np.array([5, 4, 3, 2, 1, 0], np.int32), ROWS)


def slow(
    node: np.ndarray, row: np.ndarray, table: np.ndarray, most: int, recency: float = 1.0, cooccurrence: float = 0.0
) -> np.ndarray:
    """``sum_j r_j e_j / sqrt(d d_j)``, pair by pair; the r_j of a node as R^(k/n), by their mean."""
    table = np.stack(
        [e + sum(cooccurrence * a * table[k] for k, a in NEAR.get(j, {}).items()) for j, e in enumerate(table)]
    )
    kept: dict[int, list[int]] = {n: [] for n in range(NODES)}
    for n, r in zip(node.tolist(), row.tolist(), strict=True):
        if r:
            kept[n].append(r)
    kept = {n: rows[-most:] for n, rows in kept.items()}
    degree = {r: sum(rows.count(r) for rows in kept.values()) for r in range(ROWS)}
    out = np.zeros((NODES, table.shape[1]), np.float32)
    for n, rows in kept.items():
        recent = [recency ** (place / len(rows)) for place in range(len(rows))]
        for r, weight in zip(rows, recent, strict=True):
            out[n] += weight / np.mean(recent) * table[r] / (len(rows) * degree[r]) ** 0.5
    return out


def encoder(most: int = 10, vocabulary: str = "", dtype: str = "float32", **settings: Any) -> GraphEncoder:
    config = NeighboursFeature(kind="neighbours", max_length=most, **settings)
    spec = FeatureSpec("f", config, vocabulary, ROWS - 1, table="t")
    made = GraphEncoder(spec, config, new_table(spec, 4, 1, dtype))
    node, row = pairs()
    beside = near() if config.cooccurrence else None
    made.connect(Neighbours(node, row, NODES, ROWS, most, config.recency, beside, config.cooccurrence))
    return made


@pytest.mark.parametrize("cooccurrence", [0.0, 3.0])
@pytest.mark.parametrize(("most", "weight", "recency"), [(10, 1.0, 1.0), (2, 1.5, 1.0), (10, 1.0, 9.0), (2, 1.5, 4.0)])
def test_nodes_are_pooled_as_the_formula_says_in_training_and_outside_of_it(
    most: int, weight: float, recency: float, cooccurrence: float
) -> None:
    made = encoder(most, weight=weight, recency=recency, cooccurrence=cooccurrence)
    everyone = tf.range(NODES, dtype=tf.int64)
    wanted = weight * slow(*pairs(), made.table.numpy(), most, recency, cooccurrence)
    assert np.abs(wanted).sum(axis=1).astype(bool).tolist() == [True, True, True, False, True, True, True]
    np.testing.assert_allclose(made.embed(everyone), wanted, rtol=1e-5, atol=1e-7)
    in_training = tf.function(made.embed, autograph=False)
    np.testing.assert_allclose(in_training(everyone), wanted, rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(in_training(everyone[::-2]), wanted[::-2], rtol=1e-5, atol=1e-7)
    np.testing.assert_array_equal(made.informs(everyone), np.abs(wanted).sum(axis=1) > 0)


@pytest.mark.parametrize("cooccurrence", [0.0, 3.0])
def test_a_list_of_neighbours_is_pooled_as_the_node_that_has_them(cooccurrence: float) -> None:
    made = encoder(cooccurrence=cooccurrence)
    wanted = slow(*pairs(), made.table.numpy(), 10, cooccurrence=cooccurrence)
    lists = tf.constant([[0, 3, 1, 2], [0, 0, 0, 0], [0, 0, 5, 2]])  # nodes 0, 3 and 2, in another order
    for each in (made, made.served()) if cooccurrence else (made,):
        np.testing.assert_allclose(each.embed(lists), wanted[[0, 3, 2]], rtol=1e-5, atol=1e-7)
        assert each.informs(lists).numpy().tolist() == [True, False, True]
        assert each.informs(tf.constant([[4, 0]])).numpy().tolist() == [False]  # a row that was nobody's neighbour


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("block", [4, ROWS])
def test_a_saved_tower_holds_the_companions_of_a_list_in_its_table(
    dtype: str, block: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("towers.features.neighbours.BLOCK_ROWS", block)
    names = [f"i{row}" for row in range(1, ROWS)]
    (tmp_path / "names.txt").write_text("".join(f"{name}\n" for name in names), encoding="utf-8")
    made = encoder(dtype=dtype, vocabulary=str(tmp_path / "names.txt"), weight=1.5, cooccurrence=3.0)
    tower = Tower([made], parse_config({"model": {"dimension": 4, "similarity": "dot"}}), "query")
    save_tower(tower, tmp_path / "tower")
    assert tower.encoders == [made] and made.near is not None
    saved = tf.saved_model.load(str(tmp_path / "tower"))
    vectors = saved.signatures["serving_default"](f=tf.constant([["", "i3", "i1", "i2"]]))["embeddings"]
    table = tf.cast(made.table, tf.float32).numpy()
    np.testing.assert_allclose(vectors, 1.5 * slow(*pairs(), table, 10, cooccurrence=3.0)[:1], rtol=1e-5)
    [kept] = saved.tower.encoders
    sums = [e + sum(3.0 * a * table[k] for k, a in NEAR.get(row, {}).items()) for row, e in enumerate(table)]
    np.testing.assert_allclose(kept.table, sums, rtol=1e-6)
    assert not [name for name in vars(kept) if "near" in name]


def test_of_a_list_in_the_order_of_time_the_last_weighs_most() -> None:
    made = encoder(recency=9.0)
    wanted = slow(*pairs(), made.table.numpy(), 10, 9.0)
    lists = tf.constant([[0, 1, 2, 3], [0, 0, 0, 0], [2, 0, 5, 0]])  # nodes 0, 3 and 2, wherever the padding is
    np.testing.assert_allclose(made.embed(lists), wanted[[0, 3, 2]], rtol=1e-5, atol=1e-7)
    assert np.abs(made.embed(lists[:1, ::-1]) - wanted[0]).max() > 0.01


@pytest.mark.parametrize(("recency", "cooccurrence"), [(1.0, 0.0), (9.0, 0.0), (9.0, 3.0)])
def test_the_gradient_is_the_transposed_product(recency: float, cooccurrence: float) -> None:
    made = encoder(recency=recency, cooccurrence=cooccurrence)
    nodes = tf.constant([0, 6, 0, 2], tf.int64)
    upstream = np.random.default_rng(0).normal(size=(4, 4)).astype(np.float32)

    @tf.function(autograph=False)
    def gradient() -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(made.embed(nodes) * upstream)
        return tf.convert_to_tensor(tape.gradient(loss, made.table))

    got = gradient().numpy()
    # Linear in the table: each number's share of the loss is its gradient.
    for r, d in itertools.product(range(ROWS), range(4)):
        one = np.zeros((ROWS, 4), np.float32)
        one[r, d] = 1
        wanted = (slow(*pairs(), one, 10, recency, cooccurrence)[nodes.numpy()] * upstream).sum()
        assert got[r, d] == pytest.approx(wanted, abs=1e-6)


def test_a_masked_share_of_the_examples_trains_without_neighbours() -> None:
    made = encoder(mask_share=0.4)
    nodes = tf.zeros([5_000], tf.int64)
    vectors = tf.function(made.embed, autograph=False)(nodes, tf.constant([1, 2])).numpy()
    assert abs(float((vectors == 0).all(axis=1).mean()) - 0.4) < 0.03  # its standard deviation is 0.007


def test_a_graph_too_large_for_a_step_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("towers.features.neighbours.MOST_PAIRS", 8)
    for window, others in (("all", "set window = 'earlier', or take a history"), (None, "or leave it out")):
        told = f"'f' of kind 'neighbours' .* at most 8, got 9; lower its max_length, {others}$"
        with pytest.raises(ConfigError, match=told):
            encoder(window=window)


def test_a_mask_takes_whole_examples_of_a_bag() -> None:
    """As the examples of a window 'earlier' come, which are no nodes."""
    made = encoder(mask_share=0.5, window="earlier")
    node, row = pairs()
    lists = np.zeros((NODES, 8), np.int32)
    for number in range(NODES):
        own = row[(node == number) & (row > 0)]
        lists[number, : len(own)] = own
    bag = tf.nest.map_structure(tf.constant, distinct_bag(np.tile(lists, (40, 1))))
    everyone = tf.tile(tf.range(NODES, dtype=tf.int64), [40])
    masked, whole = made.embed(bag, tf.constant([3, 4])).numpy(), made.embed(bag).numpy()
    np.testing.assert_allclose(whole, made.embed(everyone), rtol=1e-5, atol=1e-7)
    some = np.abs(whole).sum(axis=1) > 0
    gone = ~masked.any(axis=1)
    np.testing.assert_array_equal(masked[~gone], whole[~gone])
    assert 0.4 < gone[some].mean() < 0.6


@pytest.mark.parametrize("timed", [True, False])
def test_of_too_many_users_an_item_keeps_the_latest_to_take_it(timed: bool) -> None:
    # Items 0 and 1, taken by users 0 to 2 and 0 to 1; user 0 takes item 0 last.
    events = Events(
        np.array([0, 0, 1, 1, 2], np.int32),
        np.array([1, 0, 0, 1, 0], np.int32),
        np.array([0, 2, 4, 5]),
        np.array([3, 9, 1, 4, 2]) if timed else None,
    )
    specs = [FeatureSpec(name, IdFeature(kind="id"), size=3, table=name) for name in ("user_id", "item_id")]
    audience = FeatureSpec("audience", NeighboursFeature(kind="neighbours", max_length=2), size=3, table="user_id")
    towers = TwoTower(specs[:1], [specs[1], audience], parse_config({"model": {"dimension": 3}}))
    tables = FeatureTables(
        {}, {"item_id": np.arange(2), "audience": np.arange(2)}, audiences={"audience": np.arange(1, 4, dtype=np.int32)}
    )
    connect_graphs(towers, tables, [events.between(0, 3)])
    (graph,) = [each for each in towers.candidate_tower.encoders if isinstance(each, GraphEncoder)]
    # By time users 1, 2, 0 took item 0; without times the last ones in the files count.
    degree = {0: 2, 1: 1, 2: 1} if timed else {0: 1, 1: 2, 2: 1}
    expected = [0.0, *(1 / np.sqrt(degree[user]) for user in range(3))]
    np.testing.assert_allclose(graph.weight.numpy()[:4], expected, rtol=1e-6)


def graph_task(tmp_path: Path) -> tuple[Trainer, TwoTower]:
    events, plain, _ = group_world()
    kind = NeighboursFeature(kind="neighbours")
    items = HistoryTable(np.arange(1, ITEMS + 1, dtype=np.int32), 100, others=True)
    tables = FeatureTables(
        plain.users,
        {**plain.items, "audience": np.arange(ITEMS, dtype=np.int32)},
        neighbours={"taken": items},
        audiences={"audience": np.arange(1, USERS + 1, dtype=np.int32)},
    )
    config = recipe(loss={"name": "bsl", "correction": 0.3}, train={"epochs": 2}, optimizer={"learning_rate": 0.01})
    user, item = (
        FeatureSpec(name, IdFeature(kind="id"), size=size, table=name[0])
        for name, size in (("user_id", USERS), ("item_id", ITEMS))
    )
    towers = TwoTower(
        [user, FeatureSpec("taken", kind, size=ITEMS, table="i")],
        [item, FeatureSpec("audience", kind, size=USERS, table="u")],
        config,
    )
    connect_graphs(towers, tables, [events])
    task, examples = task_of(config, events, tables, towers)
    return Trainer(task, examples, config.optimizer, config.train, tmp_path, None), towers


def test_it_learns_the_group_world_faster_than_ids_and_would_stay_on_a_gpu(tmp_path: Path) -> None:
    built, towers = graph_task(tmp_path)
    step = built._step.get_concrete_function(as_tensors(built.examples.batch(0, 0)))
    assert problems(step.graph) == []
    built.fit()
    users = towers.query_tower({"user_id": tf.range(1, USERS + 1), "taken": _lists()})
    numbers = tf.range(ITEMS, dtype=tf.int64)
    items = towers.candidate_tower({"item_id": numbers + 1, "audience": numbers})
    scores = tf.matmul(users, items, transpose_b=True).numpy()
    own = np.arange(USERS)[:, None] % GROUPS == np.arange(ITEMS) % GROUPS
    assert scores[own].min() > scores[~own].max()


def _lists() -> tf.Tensor:
    events, _, _ = group_world()
    return tf.constant(events.item.reshape(USERS, -1) + 1)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> tuple[Bundle, Path]:
    folder = tmp_path_factory.mktemp("graph")
    return exported(folder, DataConfig(split="random", valid_share=0.2)), folder


def exported(folder: Path, split: DataConfig, **taken_settings: Any) -> Bundle:
    """Through the commands, with refit: the graph at export is that of both splits."""
    rng = np.random.default_rng(0)
    taken = [(u, i) for u in range(60) for i in rng.permutation(np.arange(30)[np.arange(30) % 3 == u % 3])[:8]]
    columns = {"user_id": [f"u{u}" for u, _ in taken], "item_id": [f"i{i}" for _, i in taken]}
    frame = pl.DataFrame({**columns, "timestamp": [1_600_000_000 + n % 8 for n in range(len(taken))]})
    frame.write_parquet(folder / "events.parquet")
    prepare.run(split, folder / "events.parquet", folder / "dataset")
    config = parse_config(
        {
            "data": {"refit": True},
            "features": {
                "query": {
                    "user_id": {"kind": "id"},
                    "taken": {"kind": "neighbours", "window": "all", **taken_settings},
                },
                "candidate": {"item_id": {"kind": "id"}, "audience": {"kind": "neighbours"}},
            },
            "model": {"dimension": 8, "norm_exponent": "validation"},
            "loss": {"name": "bsl", "correction": 0.3},
            "optimizer": {"learning_rate": 0.01},
            "train": {"epochs": 3, "batch_size": 64, "metric": "recall@5"},
        }
    )
    train.run(config, folder / "dataset", folder / "run")
    export.run(folder / "run", folder / "bundle")
    return Bundle.open(folder / "bundle")


def test_a_new_user_is_encoded_from_their_history_alone(served: tuple[Bundle, Path]) -> None:
    bundle, _ = served
    feature = bundle.manifest.query_feature("history")
    assert feature is not None and feature.name == "taken"
    encoder = Encoder.of_queries(bundle)
    items = [f"i{i}" for i in range(0, 30, 3)]
    vector = encoder.encode([{"taken": items[:4]}])[0]
    scores = dict(zip(bundle.item_names, np.asarray(bundle.item_vectors) @ vector, strict=True))
    own = [score for item, score in scores.items() if item in items]
    assert min(own) > max(score for item, score in scores.items() if item not in items)
    assert not encoder.encode([{"taken": ["nothing of ours"]}]).any()


def test_a_known_user_s_stored_vector_is_what_the_saved_tower_makes_of_id_and_history(
    served: tuple[Bundle, Path],
) -> None:
    bundle, _ = served
    row = 7
    user = next(name for name, number in bundle.query_rows.items() if number == row)
    request = {"user_id": user, "taken": [bundle.item_names[i] for i in bundle.seen(row)]}
    np.testing.assert_allclose(
        Encoder.of_queries(bundle).encode([request])[0], bundle.query_vectors[row], rtol=1e-4, atol=1e-6
    )


@pytest.mark.parametrize(
    ("window", "cooccurrence"),
    [("all", 0.0), pytest.param("all", 3.0, marks=pytest.mark.long), ("earlier", 0.0)],
)
def test_with_recency_a_history_is_read_in_its_order(tmp_path: Path, window: str, cooccurrence: float) -> None:
    split = DataConfig(split="global_time", valid_share=0.2, test_share=0.0)
    bundle = exported(tmp_path, split, recency=20.0, window=window, cooccurrence=cooccurrence)
    items = [bundle.item_names[i] for i in bundle.seen(7)]
    user = next(name for name, number in bundle.query_rows.items() if number == 7)
    encoder = Encoder.of_queries(bundle)
    forward, backward = (encoder.encode([{"user_id": user, "taken": taken}])[0] for taken in (items, items[::-1]))
    np.testing.assert_allclose(forward, bundle.query_vectors[7], rtol=1e-4, atol=1e-6)
    assert np.abs(backward - forward).max() > 0.01


def test_item_vectors_are_scaled_by_the_exponent_that_validation_chose(served: tuple[Bundle, Path]) -> None:
    bundle, folder = served
    trained = load_run(folder / "run")
    exponent = trained.summary["stages"][0]["norm_exponent"]
    assert trained.summary["stages"][1]["norm_exponent"] == exponent
    tower = trained.model.candidate_tower
    numbers = np.arange(30)
    rows = trained.tables.items["item_id"]
    degree = trained.tables.items["audience"]
    assert degree.tolist() == numbers.tolist()
    # By hand: the id's embedding, and those of the users who took the item in train or valid, over sqrt(d d_j).
    parts = [trained.dataset.events(split) for split in ("train", "valid")]
    user, item = (np.concatenate([getattr(part, side) for part in parts]) for side in ("user", "item"))
    users = trained.tables.users["user_id"]
    item_table, user_table = (
        next(e for e in tower.encoders if e.spec.name == name).table.numpy() for name in ("item_id", "audience")
    )
    raw = item_table[rows].copy()
    for u, i in zip(user, item, strict=True):
        raw[i] += user_table[users[u]] / ((item == i).sum() * (user == u).sum()) ** 0.5
    wanted = raw / np.linalg.norm(raw, axis=1, keepdims=True) ** exponent
    np.testing.assert_allclose(np.asarray(bundle.item_vectors), wanted[trained_rows(bundle, trained)], rtol=1e-4)


def trained_rows(bundle: Bundle, trained: Run) -> list[int]:
    names = trained.dataset.items["item_id"].to_list()
    return [names.index(item) for item in bundle.item_names]
