"""Tables in half precision: small updates add up, gradients stay float32, a trained one is exported as any other."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.support.worlds.training import recipe, towers_of, trainer
from towers.config.sections import OptimizerConfig
from towers.model.two_tower import save_tower
from towers.ops.row_gradients import RowGradient, gathered, stochastic_round, whole
from towers.training.optimizers import build_optimizer

HALVES = ["bfloat16", "float16"]


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("jit", [False, True], ids=["graph", "xla"])
def test_a_value_goes_to_either_neighbour_as_often_as_it_is_near(dtype: str, jit: bool) -> None:
    """Neighbours by NumPy's own: `nextafter` of the type; the noise is every multiple of 1 / 1000."""
    kind = tf.as_dtype(dtype).as_numpy_dtype
    rng = np.random.default_rng(0)
    values = np.concatenate([rng.normal(size=20), rng.normal(size=20) * 1e-3, [0.0, 1.0, -0.25, 3e-6]])
    values = values.astype(np.float32)
    noise = (np.arange(1000, dtype=np.float32) + 0.5)[:, np.newaxis] / 1000
    grid = [np.broadcast_to(each, (1000, len(values))) for each in (values, noise)]
    rounded = tf.function(stochastic_round, jit_compile=jit, autograph=False)(
        *map(tf.constant, grid), tf.as_dtype(dtype)
    ).numpy()
    near = values.astype(kind)
    away = np.where(values > near.astype(np.float32), np.inf, -np.inf).astype(kind)
    other = np.nextafter(near, away)
    exact = near.astype(np.float32) == values
    low, high = np.minimum(near, other).astype(np.float64), np.maximum(near, other).astype(np.float64)
    for column, value in enumerate(values):
        found = set(rounded[:, column].astype(np.float64))
        if exact[column]:
            assert found == {float(value)}
        else:
            assert found <= {low[column], high[column]}
            share = np.mean(rounded[:, column].astype(np.float64) == high[column])
            assert abs(share - (value - low[column]) / (high[column] - low[column])) < 0.002
    assert exact[20 + 20 : 20 + 23].all()


@pytest.mark.parametrize("dtype", HALVES)
def test_a_thousand_updates_below_half_a_unit_add_up(dtype: str) -> None:
    """Rounded to the nearest, each would be lost. The sum is 1000 steps of variance at most (unit / 2)^2."""
    table = tf.Variable(tf.ones([300, 4], dtype))
    unit = 2.0**-7 if dtype == "bfloat16" else 2.0**-10  # of numbers from 1 to 2
    update = 0.2 * unit
    assert tf.cast(tf.constant(1 + update), dtype) == 1
    optimizer = build_optimizer(OptimizerConfig(name="sgd", learning_rate=update), [table])
    rows = tf.range(1, 300, dtype=tf.int64)

    @tf.function(autograph=False)
    def step() -> None:
        optimizer.apply([tf.IndexedSlices(-tf.ones([299, 4]), rows)])

    steps = 1000 if dtype == "float16" else 500  # up to 2, where the unit doubles
    for _ in range(steps):
        step()
    moved = table.numpy().astype(np.float64) - 1
    assert (moved[0] == 0).all()
    deviation = unit / 2 * steps**0.5
    assert abs(moved[1:].mean() - steps * update) < 4 * deviation / (299 * 4) ** 0.5
    assert np.abs(moved[1:] - steps * update).max() < 5 * deviation
    assert 0.3 * deviation < moved[1:].std() < deviation  # they do not all move alike


@pytest.mark.parametrize("dtype", HALVES)
def test_repeats_of_a_row_are_rounded_alike_and_steps_apart(dtype: str) -> None:
    """Of repeats that differ a GPU would keep any: here the row would move by one of two roundings, not by both."""
    table = tf.Variable(tf.ones([40, 8], dtype))
    unit = 2.0**-8 if dtype == "bfloat16" else 2.0**-11  # of numbers below 1
    optimizer = build_optimizer(OptimizerConfig(name="sgd", learning_rate=0.3 * unit), [table])
    seen = []
    original = table.scatter_update

    def watched(slices: tf.IndexedSlices) -> Any:
        seen.append(slices)
        return original(slices)

    table.scatter_update = watched  # type: ignore[method-assign]
    for _ in range(2):
        optimizer.apply([tf.IndexedSlices(tf.ones([6, 8]), tf.constant([3, 5, 3, 3, 9, 5]))])
    assert len(seen) == 2
    for slices in seen:
        values = slices.values.numpy()
        np.testing.assert_array_equal(values[0], values[2])
        np.testing.assert_array_equal(values[0], values[3])
        np.testing.assert_array_equal(values[1], values[5])
    # With the same noise in both steps, what did not move in the first would not move in the second.
    first, second = (slices.values.numpy().astype(np.float64) for slices in seen)
    still = first == 1
    assert (second[still] != 1).any() and (second[still] == 1).any()


@pytest.mark.parametrize("winner", [[0, 5, 0, 0, 4, 5], [3, 1, 3, 3, 4, 1]])
def test_whichever_repeat_wins_a_row_it_takes_the_noise_of_the_first(winner: list[int]) -> None:
    """Replicas whose GPUs let different ones win would round a row differently."""
    part = RowGradient(tf.ones([6, 2]), tf.constant([3, 5, 3, 3, 9, 5], tf.int64), tf.constant(winner, tf.int64))
    noise = tf.reshape(tf.range(12.0), [6, 2])
    assert part.agreed(noise).numpy()[:, 0].tolist() == [0, 2, 0, 0, 8, 2]


@pytest.mark.parametrize("jit", [False, True], ids=["graph", "xla"])
def test_a_gradient_that_half_precision_cannot_hold_arrives(jit: bool) -> None:
    table = tf.Variable(tf.ones([5, 2], tf.float16))

    @tf.function(jit_compile=jit, autograph=False)
    def run() -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        with tf.GradientTape(persistent=True) as tape:
            some = tf.reduce_sum(gathered(table, tf.constant([1, 3, 1]))) * 1e-9
            everything = tf.reduce_sum(whole(table)) * 1e-9
        slices = tape.gradient(some, table)
        return slices.values, slices.indices, tape.gradient(everything, table)

    values, rows, dense = run()
    np.testing.assert_allclose(values, np.full((3, 2), 1e-9), rtol=1e-6)
    assert rows.numpy().tolist() == [1, 3, 1]
    np.testing.assert_allclose(dense, np.full((5, 2), 1e-9), rtol=1e-6)


@pytest.mark.parametrize("dtype", ["bfloat16", pytest.param("float16", marks=pytest.mark.long)])
def test_a_world_is_learnt_and_exported_in_half_precision(dtype: str, tmp_path: Path) -> None:
    built = trainer(tmp_path, model={"table_dtype": dtype}, train={"epochs": 12}, optimizer={"average": 0.5})
    summary = built.fit()
    assert summary.best_metric is not None
    assert summary.best_metric > 0.6  # chance is 0.05
    tables = [encoder.table for tower in _towers(built) for encoder in tower.encoders]
    assert {table.dtype.name for table in tables} == {dtype}
    assert {slot.dtype.name for slots in built.optimizer.slots for slot in slots} == {"float32"}
    tower = built.task.towers.candidate_tower
    rows = tf.constant([0, 3, 7], tf.int64)
    vectors = tower({"item_id": rows})
    assert vectors.dtype == tf.float32
    save_tower(tower, tmp_path / "saved")
    loaded = tf.saved_model.load(str(tmp_path / "saved")).signatures["serving_default"]
    served = loaded(item_id=tf.constant(["", "x"]))
    assert served["embeddings"].dtype == tf.float32
    np.testing.assert_array_equal(served["embeddings"], tower({"item_id": tf.constant([0, 0], tf.int64)}))


@pytest.mark.parametrize("jit", [False, pytest.param(True, marks=pytest.mark.long)], ids=["graph", "xla"])
@pytest.mark.parametrize("dtype", HALVES)
def test_a_table_whose_rows_are_all_scored_learns_in_half_precision_as_in_float32(
    dtype: str, jit: bool, tmp_path: Path
) -> None:
    last = {}
    for name in ("float32", dtype):
        built = trainer(
            tmp_path / name,
            loss={"name": "full_softmax"},
            model={"table_dtype": name},
            train={"epochs": 3, "jit_compile": jit},
            optimizer={"learning_rate": 0.05},
        )
        last[name] = built.fit().history[-1]["loss"]
    assert last[dtype] == pytest.approx(last["float32"], rel=0.01)
    assert last["float32"] < 3.0  # from log(30) or more


def _towers(built: Any) -> list[Any]:
    return [built.task.towers.query_tower, built.task.towers.candidate_tower]


def test_tables_are_half_as_large_and_start_alike() -> None:
    one, half = (towers_of(recipe(model={"table_dtype": dtype})) for dtype in ("float32", "bfloat16"))
    right = one.query_tower.encoders[0].table.numpy().astype(half.query_tower.encoders[0].table.numpy().dtype)
    np.testing.assert_array_equal(half.query_tower.encoders[0].table.numpy(), right)
    assert right.itemsize == 2
