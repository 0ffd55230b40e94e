"""A training that goes astray stops at the exact step, and what it leaves is the last good state."""

import math
import shutil
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.support.worlds.training import trainer
from towers.data.batch import Batch
from towers.data.examples import Examples
from towers.errors import ConfigError, DivergedError
from towers.training.checkpoints import Checkpoints
from towers.training.prefetch import as_tensors
from towers.training.protocols import LossWatch, Progress, not_finite
from towers.training.trainer import Trainer

STEPS = 8  # of an epoch; a checkpoint each 3


class Poisoned(Examples):
    """One batch whose weights are NaN."""

    bad: tuple[int, int]

    def batches(self, epoch: int, steps: range) -> list[Batch]:
        return [
            batch._replace(weight=batch.weight * np.float32(np.nan)) if (epoch, step) == self.bad else batch
            for step, batch in zip(steps, super().batches(epoch, steps), strict=True)
        ]


def poisoned(directory: Path, epoch: int, step: int, **sections: Any) -> Trainer:
    built = trainer(directory, **sections)
    assert isinstance(built.examples, Examples)
    examples = Poisoned(**{each.name: getattr(built.examples, each.name) for each in fields(built.examples)})
    object.__setattr__(examples, "bad", (epoch, step))
    built.examples = examples
    return built


def weights(built: Trainer) -> list[np.ndarray]:
    return [np.array(v) for v in built.optimizer.variables]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> list[np.ndarray]:
    """The weights of a run that nothing disturbed."""
    run = trainer(tmp_path_factory.mktemp("whole"), train={"epochs": 3})
    run.fit()
    return weights(run)


# Checkpoints are made after steps 3, 6, 8 (an epoch), 9, 12, 15, 16; the two last ones are kept. A state is good when
# the loss of the step after it is: where that one is bad, the state is dropped as well.
@pytest.mark.parametrize(
    ("epoch", "step", "kept"),
    [
        (0, 0, None),
        pytest.param(0, 3, None, marks=pytest.mark.long),
        pytest.param(0, 7, 6, marks=pytest.mark.long),
        pytest.param(1, 0, 6, marks=pytest.mark.long),
        pytest.param(1, 4, 9, marks=pytest.mark.long),
        (1, 5, 12),
    ],
)
def test_a_nan_names_its_step_and_batch_and_keeps_the_last_good_state(
    tmp_path: Path, whole: list[np.ndarray], epoch: int, step: int, kept: int | None
) -> None:
    with pytest.raises(DivergedError) as stopped:
        poisoned(tmp_path / "cut", epoch, step).fit()
    told = str(stopped.value)
    assert told.startswith(f"the loss of step {step + 1} of epoch {epoch + 1} is nan")
    assert f"batch(epoch={epoch}, step={step})" in told
    assert "--fresh" in told
    if kept is None:
        assert "no checkpoint was made before" in told
    else:
        assert f"the checkpoint of step {kept} in all, the last good one, is kept" in told
    resumed = trainer(tmp_path / "cut", train={"epochs": 3})
    assert resumed.done == (kept or 0)
    # From there on it is the run that had no such batch.
    resumed.fit()
    for one, other in zip(weights(resumed), whole, strict=True):
        np.testing.assert_array_equal(one, other)


def test_the_loss_of_the_step_before_is_told(tmp_path: Path) -> None:
    whole = trainer(tmp_path / "whole", validate=False)
    losses = [float(whole._step(as_tensors(whole.examples.batch(0, step)))) for step in range(5)]
    with pytest.raises(DivergedError, match=rf"is nan, {losses[4]:.4g} the step before; its batch"):
        poisoned(tmp_path / "cut", 0, 5, train={"checkpoint_steps": 100}).fit()


def test_an_exploding_loss_stops_at_the_first_step_above_the_factor(tmp_path: Path) -> None:
    sections: dict[str, Any] = {
        "model": {"similarity": "dot"},
        "optimizer": {"name": "sgd", "learning_rate": 3000.0},
        "train": {"epochs": 9, "explode_factor": 20.0},
    }
    plain = trainer(tmp_path / "plain", validate=False, **sections)
    losses: list[float] = []
    while not losses or losses[-1] <= 20 * losses[0]:
        losses.append(float(plain._step(as_tensors(plain.examples.batch(*divmod(len(losses), STEPS))))))
        assert math.isfinite(losses[-1])
    assert losses[0] > 1
    epoch, step = divmod(len(losses) - 1, STEPS)
    with pytest.raises(DivergedError) as stopped:
        trainer(tmp_path / "run", **sections).fit()
    told = str(stopped.value)
    assert told.startswith(
        f"the loss of step {step + 1} of epoch {epoch + 1} is {losses[-1]:.4g}, above train.explode_factor's "
        f"{20 * losses[0]:.4g}"
    )


@pytest.mark.parametrize(
    ("losses", "bad"),
    [
        ([1e-6, 0.3, 99.0, 1e-9, 100.0], None),  # near zero a multiple says nothing: never below the factor itself
        ([1e-6, 100.1], 1),
        ([0.0, 0.0, 101.0], 2),
        ([-3.0, -50.0, 300.0], None),  # log-ratios and scores may be below zero
        ([-3.0, 300.1], 1),
        ([7.6, 759.0, 7.5], None),
        ([7.6, 761.0, 7.5], 1),
        ([7.6, math.inf], 1),
        ([math.nan], 0),
    ],
)
def test_what_counts_as_exploded(losses: list[float], bad: int | None) -> None:
    """Limit: 100 times the larger of 1 and the first loss, worked by hand."""
    watch, progress = LossWatch(100.0), Progress()
    for step, loss in enumerate(losses):
        watch.add(step, tf.constant(loss))
    found = watch.look(progress)
    assert (None if found is None else found.step) == bad
    # A run that goes on compares with its own first step, and with "off" nothing but a number is asked for.
    if bad:
        again = LossWatch(100.0)
        again.add(5, tf.constant(losses[bad]))
        later = again.look(Progress(first_loss=losses[0]))
        assert later is not None and later.step == 5
        off = LossWatch(None)
        off.add(0, tf.constant(losses[bad]))
        assert (off.look(Progress()) is None) == math.isfinite(losses[bad])


def test_the_loss_before_is_told_though_it_was_read_with_an_earlier_look() -> None:
    watch, progress = LossWatch(None), Progress()
    for step, loss in enumerate([2.0, 1.5]):
        watch.add(step, tf.constant(loss))
    assert watch.look(progress) is None
    watch.add(2, tf.constant(math.nan))
    bad = watch.look(progress)
    assert bad is not None and (bad.step, bad.before) == (2, 1.5)


def test_weights_that_a_step_with_a_good_loss_spoilt_are_not_saved(tmp_path: Path) -> None:
    built = trainer(tmp_path, train={"epochs": 3})
    real, calls = built._step, 0

    def spoiling(batch: Batch) -> tf.Tensor:
        nonlocal calls
        calls += 1
        loss = real(batch)
        if calls == 6:
            built.task.towers.query_tower.encoders[0].table.scatter_nd_update([[3, 1]], [math.inf])
        return loss

    built._step = spoiling
    with pytest.raises(DivergedError, match="is no longer finite after step 6 of epoch 1") as stopped:
        built.fit()
    assert "the checkpoint of step 3 in all" in str(stopped.value)
    assert trainer(tmp_path).done == 3


def test_every_kind_of_variable_is_looked_at() -> None:
    good = [tf.Variable([1.0, -2.0]), tf.Variable([7], dtype=tf.int64), tf.Variable([3e4] * 9, dtype=tf.float16)]
    assert not_finite(good) is None
    for value in (math.nan, math.inf, -math.inf):
        for dtype in (tf.float32, tf.float16, tf.bfloat16):
            assert not_finite([*good, tf.Variable([[0.0], [value]], dtype=dtype, name="lost")]) == "lost:0"


def test_ctrl_c_does_not_save_what_went_astray(tmp_path: Path) -> None:
    def interrupt(done: int, loss: float) -> None:
        if done == 3:
            raise KeyboardInterrupt

    with pytest.raises(DivergedError, match="step 2 of epoch 1 is nan"):
        poisoned(tmp_path, 0, 1, train={"checkpoint_steps": 100}).fit(interrupt)
    assert trainer(tmp_path).done == 0


def state(directory: Path) -> tuple[Checkpoints, tf.Variable]:
    value = tf.Variable(0.0)
    return Checkpoints(directory, tf.train.Checkpoint(value=value), tf.train.Checkpoint(value=value)), value


def test_of_two_saves_of_one_step_the_newer_stays_beside_the_step_before(tmp_path: Path) -> None:
    checkpoints, value = state(tmp_path)
    for step, number in ((2, 1.0), (4, 2.0), (4, 3.0)):
        value.assign(number)
        checkpoints.save(step, 0)
    assert [(each.number, each.step) for each in checkpoints.saved()] == [(1, 2), (3, 4)]
    again, read = state(tmp_path)
    again.restore()
    assert float(read) == 3
    assert again.drop(4) == 2
    assert again.drop(2) is None


def test_the_best_models_that_a_kept_state_speaks_of_are_kept(tmp_path: Path) -> None:
    checkpoints, value = state(tmp_path)
    for epoch, best in ((1, 1), (2, 2), (3, 2), (4, 2)):
        if epoch == best:
            value.assign(float(epoch))
            checkpoints.save_best(epoch)
        checkpoints.save(epoch * STEPS, best)
        wanted = {1: {"epoch-1"}, 2: {"epoch-1", "epoch-2"}, 3: {"epoch-2"}, 4: {"epoch-2"}}[epoch]
        assert {each.name for each in (tmp_path / "best").iterdir()} == wanted
    checkpoints.restore_best(2)
    assert float(value) == 2


def test_a_torn_checkpoint_gives_way_to_the_one_before(tmp_path: Path) -> None:
    checkpoints, value = state(tmp_path)
    for step in (2, 4):
        value.assign(float(step))
        checkpoints.save(step, 0)
    older, newer = checkpoints.saved()
    data = newer.path / "weights.data-00000-of-00001"
    data.write_bytes(data.read_bytes()[:-2])
    again, read = state(tmp_path)
    again.restore()
    assert float(read) == 2
    assert again.saved() == [older]
    data = older.path / "weights.data-00000-of-00001"
    data.write_bytes(b"")
    with pytest.raises(ConfigError, match=r"1-step-2-best-0: cannot be read .* --fresh"):
        state(tmp_path)[0].restore()


@pytest.mark.parametrize("lost", ["torn", "gone"])
def test_a_state_whose_best_model_is_lost_gives_way_to_the_one_before(tmp_path: Path, lost: str) -> None:
    checkpoints, value = state(tmp_path)
    for epoch in (1, 2):
        value.assign(float(epoch))
        checkpoints.save_best(epoch)
        value.assign(10.0 * epoch)  # a state has weights of its own
        checkpoints.save(epoch * STEPS, epoch)
    older, _ = checkpoints.saved()
    best = tmp_path / "best" / "epoch-2"
    if lost == "gone":
        shutil.rmtree(best)
    else:
        (best / "weights.data-00000-of-00001").write_bytes(b"")
    again, read = state(tmp_path)
    again.restore()
    assert float(read) == 10
    assert again.saved() == [older]
    again.restore_best(1)
    assert float(read) == 1


@pytest.mark.parametrize("name", ["week[1]", "a*b", "a?b", "a\\b"])
def test_a_path_that_tensorflow_would_take_for_a_pattern_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="give it another one"):
        state(tmp_path / name)
    assert list(tmp_path.iterdir()) == []
