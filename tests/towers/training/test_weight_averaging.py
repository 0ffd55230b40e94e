"""Averages of the weights against a slow loop over all of them, and what a trainer does with them."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.support.worlds.training import trainer
from towers.config.sections import OptimizerConfig
from towers.ops.row_gradients import every_row
from towers.training.optimizers import build_optimizer
from towers.training.weight_averaging import Averages

DECAY = 0.7


@pytest.mark.parametrize("name", ["adam", "sgd"])
@pytest.mark.parametrize("jit", [False, True], ids=["graph", "xla"])
def test_rows_that_catch_up_equal_the_dense_average_of_every_step(name: Any, jit: bool) -> None:
    rng = np.random.default_rng(0)
    start = rng.normal(size=(7, 2)).astype(np.float32)
    every, some, bias = tf.Variable(start), tf.Variable(start), tf.Variable(tf.ones([2]))
    config = OptimizerConfig(name=name, learning_rate=0.3, average=DECAY, weight_decay=0.01)
    optimizer = build_optimizer(config, [every, some, bias])

    @tf.function(jit_compile=jit, autograph=False)
    def step(all_rows: tf.Tensor, values: tf.Tensor, rows: tf.Tensor) -> None:
        slices = tf.IndexedSlices(values, rows)
        optimizer.apply([every_row(all_rows), slices, values[0]])

    total = [np.zeros(v.shape) for v in (every, some, bias)]
    weight = 0.0
    for _ in range(12):
        # Row 6 is never touched, others long after they were.
        rows = tf.constant(rng.integers(0, 6, 3) * rng.integers(0, 2, 3))
        step(*(tf.constant(rng.normal(size=s).astype(np.float32)) for s in ((7, 2), (3, 2))), rows)
        weight = DECAY * weight + (1 - DECAY)
        total = [DECAY * a + (1 - DECAY) * v.numpy() for a, v in zip(total, (every, some, bias), strict=True)]
    weights = [v.numpy() for v in (every, some, bias)]
    with optimizer.averaged():
        for average, right in zip((every, some, bias), total, strict=True):
            np.testing.assert_allclose(average, right / weight, rtol=1e-5, atol=1e-6)
        assert not np.allclose(every, weights[0], atol=0.05)
        np.testing.assert_allclose(some[6], start[6], rtol=1e-6)
    for variable, raw in zip((every, some, bias), weights, strict=True):
        np.testing.assert_array_equal(variable, raw)
    optimizer.finish()
    np.testing.assert_allclose(some, total[1] / weight, rtol=1e-5, atol=1e-6)


def test_an_interrupt_while_the_weights_come_back_leaves_no_average(monkeypatch: pytest.MonkeyPatch) -> None:
    variables = [tf.Variable(tf.fill([3, 2], float(value))) for value in (1, 2, 3)]
    averages, calls = Averages(variables, DECAY), []
    put_back = Averages._put_back

    def interrupted(self: Averages, weights: Any) -> None:
        calls.append(len(weights))
        if len(calls) == 1:
            variables[0].assign(weights[0])
            raise KeyboardInterrupt
        put_back(self, weights)

    monkeypatch.setattr(Averages, "_put_back", interrupted)
    with pytest.raises(KeyboardInterrupt), averages.in_place(0):
        for variable in variables:
            variable.assign(-variable)
    assert [float(variable[0, 0]) for variable in variables] == [1, 2, 3] and calls == [3, 3]


@pytest.mark.parametrize("decay", [0.99995, 0.99999, 0.999999])
def test_an_average_of_nearly_all_steps_keeps_its_length(decay: float) -> None:
    rng = np.random.default_rng(0)
    every, some = tf.Variable(tf.zeros([5, 2])), tf.Variable(tf.zeros([5, 2]))
    averages = Averages([every, some], decay)
    total, weight = np.zeros([5, 2]), 0.0
    for step in range(1, 41):
        new = 1 + rng.random((5, 2))
        # The table's row 0 moves in every second step.
        rows = np.arange(step % 2, 5)
        new[: rows[0]] = every.numpy()[: rows[0]]
        averages.follow_all(0, tf.constant(new, tf.float32), tf.constant(step, tf.int64))
        old, moved = some.numpy()[rows], tf.constant(new[rows], tf.float32)
        averages.follow_rows(1, tf.constant(rows), tf.constant(old), moved, tf.constant(step, tf.int64))
        every.assign(new)
        some.assign(new)
        total, weight = decay * total + (1 - decay) * new, decay * weight + (1 - decay)
    averages.assign(40)
    for average in (every, some):
        np.testing.assert_allclose(average, total / weight, rtol=1e-5)


def test_before_the_first_step_there_is_no_average() -> None:
    table = tf.Variable([[1.0, 2.0]])
    with build_optimizer(OptimizerConfig(average=0.9), [table]).averaged():
        assert table.numpy().tolist() == [[1.0, 2.0]]


def weights_of(built: Any) -> list[np.ndarray]:
    return [np.array(v) for v in (*built.task.variables, *built.optimizer.variables)]


NO_AVERAGE: dict[str, Any] = {"weight_decay": 0.01, "schedule": "cosine", "warmup_steps": 2}
AVERAGED: dict[str, Any] = {"optimizer": NO_AVERAGE | {"average": 0.9}}


@pytest.mark.long
def test_a_run_stopped_while_it_validates_averages_goes_on_bit_for_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sections: dict[str, Any] = AVERAGED | {"train": {"epochs": 3}}
    whole, cut = trainer(tmp_path / "whole", **sections), trainer(tmp_path / "cut", **sections)
    whole.fit()
    right = type(cut.validation).measure

    def stopped(self: Any, model: Any) -> float:
        if int(cut.optimizer.step) == 2 * cut.examples.steps:
            raise KeyboardInterrupt
        return right(self, model)

    with monkeypatch.context() as patched:
        patched.setattr(type(cut.validation), "measure", stopped)
        with pytest.raises(KeyboardInterrupt):
            cut.fit()
    resumed = trainer(tmp_path / "cut", **sections)
    assert resumed.progress.epoch == 1
    resumed.fit()
    for one, other in zip(weights_of(whole), weights_of(resumed), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("validate", [True, False])
def test_averages_are_validated_and_kept_while_training_goes_on_from_the_weights(
    validate: bool, tmp_path: Path
) -> None:
    sections: dict[str, Any] = AVERAGED | {"train": {"epochs": 2}}
    built = trainer(tmp_path / "averaged", validate=validate, **sections)
    plain = trainer(tmp_path / "plain", validate=False, **sections | {"optimizer": NO_AVERAGE})
    table = built.task.trainable_variables[0]
    seen: list[np.ndarray] = []
    measured: list[np.ndarray] = []
    right: list[np.ndarray] = []

    def average() -> np.ndarray:
        shares = 0.9 ** np.arange(len(seen))[::-1, np.newaxis, np.newaxis]
        return np.sum(shares * seen, axis=0) / np.sum(shares)

    if built.validation is not None:
        metric, measure = built.validation.metric, built.validation.measure

        class Watching:
            def __init__(self) -> None:
                self.metric = metric

            def measure(self, model: Any) -> Any:
                measured.append(table.numpy())
                right.append(average())
                return measure(model)

        built.validation = Watching()
    built.fit(lambda done, loss: seen.append(table.numpy()))
    trained: list[np.ndarray] = []
    plain.fit(lambda done, loss: trained.append(plain.task.trainable_variables[0].numpy()))
    np.testing.assert_array_equal(seen, trained)
    kept = built.progress.best_epoch or 2
    if validate:
        np.testing.assert_allclose(measured, right, rtol=1e-4, atol=1e-6)
        np.testing.assert_array_equal(table, measured[kept - 1])
    else:
        np.testing.assert_allclose(table, average(), rtol=1e-4, atol=1e-6)


def test_a_model_of_many_weights_makes_tensorflow_warn_of_nothing(caplog: pytest.LogCaptureFixture) -> None:
    variables = [tf.Variable(tf.fill([rows + 2, 3], 2.0)) for rows in range(12)]
    averages = Averages(variables, DECAY)
    for number, variable in enumerate(variables):
        averages.follow_all(number, tf.convert_to_tensor(variable), tf.constant(1, tf.int64))
    logger = tf.get_logger()
    logger.addHandler(caplog.handler)
    try:
        for _ in range(2):
            averages.assign(1)
    finally:
        logger.removeHandler(caplog.handler)
    assert caplog.records == []
    for variable in variables:
        np.testing.assert_allclose(variable, 2.0, rtol=1e-6)
