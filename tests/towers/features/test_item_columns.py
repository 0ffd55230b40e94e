"""Columns of the items in a history, against NumPy: each item's vector is its own plus those of its columns."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.support.gpu_kernels import problems
from tests.support.worlds.training import recipe, task_of
from tests.towers.data.test_sequence_examples import events_of
from tests.towers.features import test_self_attention as attention
from towers.config.features import (
    CategoricalFeature,
    HashedFeature,
    HistoryFeature,
    IdFeature,
    MultiFeature,
    NumericFeature,
    SequenceFeature,
    TextFeature,
    VectorFeature,
)
from towers.config.recipe import parse_config
from towers.data.bags import distinct_bag
from towers.data.feature_tables import FeatureTables, HistoryTable, SequenceTable
from towers.data.packing import packed
from towers.features.encoder import FeatureSpec
from towers.model.graphs import connect_graphs
from towers.model.two_tower import TwoTower, save_tower
from towers.model.untrained_rows import zero_untrained_rows
from towers.training.prefetch import as_tensors
from towers.training.trainer import Trainer

ITEMS, WIDTH, LENGTH = 50, 8, 6
RNG = np.random.default_rng(5)
SIZE = {"size": 4}
COLUMNS = {
    "brand": (FeatureSpec("brand", CategoricalFeature(kind="categorical"), **SIZE, table="candidate.brand"), 6),
    "maker": (FeatureSpec("maker", HashedFeature(kind="hashed", buckets=9), table="q.maker"), 10),
    "genres": (FeatureSpec("genres", MultiFeature(kind="multi", max_length=3), **SIZE, table="q.genres"), 6),
    "title": (
        FeatureSpec("title", TextFeature(kind="text", max_length=5, pooling="sqrt"), **SIZE, table="q.title"),
        1005,
    ),
    "price": (FeatureSpec("price", NumericFeature(kind="numeric"), table="q.price"), 2),
    "look": (FeatureSpec("look", VectorFeature(kind="vector"), size=3, table="q.look"), 4),
}


def values_of(name: str) -> np.ndarray:
    """What the column holds for each item, as `lookup` gives it."""
    spec, rows = COLUMNS[name]
    if name in ("price", "look"):
        numbers = RNG.normal(size=(ITEMS, rows)).astype(np.float32)
        numbers[:, -1] = RNG.integers(0, 2, ITEMS)
        return np.where(numbers[:, -1:] > 0, np.eye(rows, dtype=np.float32)[-1], numbers)
    shape = (ITEMS, spec.config.max_length) if name in ("genres", "title") else (ITEMS,)
    return RNG.integers(0, rows, shape).astype(np.int32)


VALUES = {name: values_of(name) for name in COLUMNS}
# In any order, and some items have no row.
ROWS = np.where(np.arange(ITEMS) % 9 == 4, 0, 1 + RNG.permutation(ITEMS)).astype(np.int32)


def column_vector(name: str, item: int, table: np.ndarray) -> np.ndarray:
    value = VALUES[name][item]
    if name in ("price", "look"):
        return sum(number * row for number, row in zip(value, table, strict=True))
    if name in ("brand", "maker"):
        return table[value]
    present = [row for row in value if row]
    if not present:
        return np.zeros(WIDTH)
    return sum(table[row] for row in present) / (len(present) if name == "genres" else len(present) ** 0.5)


def towers_of(config: HistoryFeature | SequenceFeature, names: list[str]) -> TwoTower:
    past = FeatureSpec("past", config, size=ITEMS, table="i", columns=tuple(COLUMNS[name][0] for name in names))
    items = [FeatureSpec("item_id", IdFeature(kind="id"), size=ITEMS, table="i"), COLUMNS["brand"][0]]
    towers = TwoTower([past], items, parse_config({"model": {"dimension": WIDTH, "similarity": "dot"}}))
    for variable in towers.trainable_variables:
        variable.assign(variable + np.random.default_rng(len(variable.shape)).normal(0, 0.3, variable.shape))
    return towers


def connected(config: HistoryFeature | SequenceFeature, names: list[str]) -> TwoTower:
    towers = towers_of(config, names)
    table = SequenceTable(ROWS, LENGTH) if config.kind == "sequence" else HistoryTable(ROWS, LENGTH)
    tables = FeatureTables(
        {},
        {"item_id": ROWS, "brand": VALUES["brand"]},
        **{"sequences" if config.kind == "sequence" else "histories": {"past": table}},
        item_columns={COLUMNS[name][0].table: VALUES[name] for name in names},
    )
    connect_graphs(towers, tables, [])
    return towers


def item_vectors(towers: TwoTower, names: list[str]) -> np.ndarray:
    """Of each table row of an item, by loops."""
    (encoder,) = towers.query_tower.encoders
    assert encoder.columns is not None
    vectors = encoder.table.numpy().astype(np.float64)
    for name, column in zip(names, encoder.columns.encoders, strict=True):
        for item, row in enumerate(ROWS):
            if row:
                vectors[row] += column_vector(name, item, column.table.numpy().astype(np.float64))
    return vectors


HISTORIES = [[], [3], [3, 3, 7], [10, 0, 2, 19, 49, 8], [49, 1]]
SETS = [*([name] for name in COLUMNS), [*COLUMNS]]


@pytest.mark.parametrize("names", SETS, ids=" ".join)
@pytest.mark.parametrize("pooling", ["mean", "sqrt", "attention"])
def test_a_pooled_item_is_its_vector_and_those_of_its_columns(names: list[str], pooling: Any) -> None:
    towers = connected(HistoryFeature(kind="history", max_length=LENGTH, pooling=pooling), names)
    (encoder,) = towers.query_tower.encoders
    lines = np.array([[0] * (LENGTH - len(each)) + [int(ROWS[item]) for item in each] for each in HISTORIES])
    vectors, wanted = item_vectors(towers, names), []
    for line in lines:
        taken = vectors[line[line > 0]]
        weight = np.ones(len(taken))
        if pooling == "attention":
            weight = np.exp(20 * np.tanh(taken @ encoder.query.numpy().astype(np.float64) / 20))  # type: ignore[attr-defined]
        total = (weight[:, None] * taken).sum(axis=0)
        wanted.append(total / (weight.sum() ** (0.5 if pooling == "sqrt" else 1)) if len(taken) else total)
    bag = tf.nest.map_structure(tf.constant, distinct_bag(lines.astype(np.int32)))
    for rows in (tf.constant(lines), bag):
        np.testing.assert_allclose(encoder.embed(rows), wanted, atol=2e-5)


@pytest.mark.parametrize("names", SETS, ids=" ".join)
def test_a_step_of_a_sequence_is_the_item_and_its_columns(names: list[str]) -> None:
    config = SequenceFeature(kind="sequence", max_length=LENGTH, heads=2, blocks=1, dropout=0.0, time_gaps=True)
    towers = connected(config, names)
    (encoder,) = towers.query_tower.encoders
    given = attention.histories([0, 1, 3, 6, 2])
    given[:, :, 0] = np.where(np.isin(given[:, :, 0], ROWS), given[:, :, 0], 0)
    vectors = item_vectors(towers, names)

    @dataclasses.dataclass
    class Plain:
        """The encoder with a table of whole vectors."""

        table: Any = dataclasses.field(default_factory=lambda: tf.constant(vectors))

        def __getattr__(self, name: str) -> Any:
            return getattr(encoder, name)

    wanted = [attention.reference(Plain(), line[line[:, 0] > 0]) for line in given]  # type: ignore[arg-type]
    np.testing.assert_allclose(encoder.embed(tf.constant(given)), wanted, atol=2e-4)
    np.testing.assert_allclose(encoder.embed(attention.as_tensor(packed(given))), wanted, atol=2e-4)


def test_a_column_shares_the_candidates_table_or_has_its_own() -> None:
    towers = towers_of(HistoryFeature(kind="history"), ["brand", "maker"])
    (past,), (_, brand) = towers.query_tower.encoders, towers.candidate_tower.encoders
    assert past.columns is not None
    shared, own = past.columns.encoders
    assert shared.table is brand.table and own.table.shape == [10, WIDTH]
    names = [variable.name for variable in towers.trainable_variables]
    assert len(names) == len(set(names)) and "table_q.maker:0" in names
    assert all(not value.trainable for value in past.columns.values)


def test_only_columns_of_trained_items_keep_their_rows() -> None:
    """Items 0 to 9 are taken; a table of its own keeps their values, a shared one those of the candidates, too."""
    towers = towers_of(HistoryFeature(kind="history"), ["brand", "maker", "look"])
    events = events_of(2)
    events.item[:] %= 10
    tables = FeatureTables(
        {},
        {"item_id": ROWS, "brand": VALUES["brand"]},
        histories={"past": HistoryTable(ROWS, LENGTH)},
        item_columns={COLUMNS[name][0].table: VALUES[name] for name in ("brand", "maker", "look")},
    )
    zero_untrained_rows(towers, tables, events)
    (past,) = towers.query_tower.encoders
    assert past.columns is not None
    for encoder, name in zip(past.columns.encoders, ("brand", "maker", "look"), strict=True):
        taken = VALUES[name][np.unique(events.item)]
        read = np.flatnonzero((taken != 0).any(axis=0)) if name == "look" else np.unique(taken)
        assert np.flatnonzero(encoder.table.numpy().any(axis=1)).tolist() == read.tolist()


def test_the_saved_tower_takes_ids_alone(tmp_path: Path) -> None:
    (tmp_path / "ids.txt").write_text("".join(f"i{n}\n" for n in range(ITEMS)))
    towers = connected(HistoryFeature(kind="history", max_length=LENGTH), ["brand", "genres", "price"])
    (encoder,) = towers.query_tower.encoders
    assert encoder.columns is not None
    assert not any(values.numpy()[0].any() for values in encoder.columns.values), "no row, no column"
    spec = dataclasses.replace(encoder.spec, vocabulary=str(tmp_path / "ids.txt"))
    other = TwoTower([spec], [], parse_config({"model": {"dimension": WIDTH, "similarity": "dot"}}))
    for mine, its in zip(other.query_tower.variables, towers.query_tower.variables, strict=True):
        mine.assign(its)
    save_tower(other.query_tower, tmp_path / "tower")
    serve = tf.saved_model.load(str(tmp_path / "tower")).signatures["serving_default"]
    assert [*serve.structured_input_signature[1]] == ["past"]
    assets = [path.name for path in (tmp_path / "tower" / "assets").iterdir()]
    assert assets == ["ids.txt"], "the columns were looked up in training"
    found = serve(past=tf.constant([["i3", "nobody", "i10"], ["", "", ""]]))
    vectors = item_vectors(towers, ["brand", "genres", "price"])
    np.testing.assert_allclose(found["embeddings"][0], vectors[[4, 11]].mean(axis=0), atol=2e-5)
    assert found["informed"].numpy().tolist() == [True, False]


@pytest.mark.parametrize(
    ("kind", "table_dtype"),
    [("history", "float32"), ("sequence", "bfloat16")]
    + [pytest.param(*pair, marks=pytest.mark.long) for pair in (("history", "bfloat16"), ("sequence", "float32"))],
)
def test_a_step_would_stay_on_a_gpu_and_trains_every_table(tmp_path: Path, kind: str, table_dtype: str) -> None:
    config = recipe(
        model={"dimension": WIDTH, "table_dtype": table_dtype}, train={"epochs": 3, "batch_size": 128, "seed": 2}
    )
    settings: dict[str, Any] = {"max_length": LENGTH, "mask_share": 0.1}
    feature = (
        HistoryFeature(kind="history", pooling="attention", **settings)
        if kind == "history"
        else SequenceFeature(kind="sequence", blocks=1, **settings)
    )
    specs = tuple(spec for spec, _ in COLUMNS.values())
    rows = np.arange(1, ITEMS + 1, dtype=np.int32)
    tables = FeatureTables(
        {},
        {"item_id": rows, "brand": VALUES["brand"]},
        **({"histories": {"past": HistoryTable(rows, LENGTH)}} if kind == "history" else {}),
        **({"sequences": {"past": SequenceTable(rows, LENGTH)}} if kind == "sequence" else {}),
        item_columns={spec.table: VALUES[name] for name, (spec, _) in COLUMNS.items()},
    )
    towers = TwoTower(
        [FeatureSpec("past", feature, size=ITEMS, table="i", columns=specs)],
        [FeatureSpec("item_id", IdFeature(kind="id"), size=ITEMS, table="i"), COLUMNS["brand"][0]],
        config,
    )
    events = events_of(seed=3)
    zero_untrained_rows(towers, tables, events)
    connect_graphs(towers, tables, [events])
    task, examples = task_of(config, events, tables, towers)
    trainer = Trainer(task, examples, config.optimizer, config.train, tmp_path)
    step = trainer._step.get_concrete_function(as_tensors(trainer.examples.batch(0, 0)))
    assert problems(step.graph) == []
    before = [variable.numpy() for variable in towers.trainable_variables]
    values = [variable.numpy() for variable in towers.query_tower.encoders[0].columns.values]  # type: ignore[union-attr]
    trainer.fit()
    for variable, old in zip(towers.trainable_variables, before, strict=True):
        if "table_" in variable.name:
            assert np.abs(variable.numpy() - old).max() > 0, variable.name
    for variable, old in zip(towers.query_tower.encoders[0].columns.values, values, strict=True):  # type: ignore[union-attr]
        np.testing.assert_array_equal(variable.numpy(), old)
