"""The loop on a world with a known answer: it learns it, stops early, resumes bit for bit, and refuses to diverge."""

import dataclasses
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.support.worlds.training import USERS, group_world, recipe, towers_of
from tests.support.worlds.training import trainer as built_trainer
from towers.data.events import Events
from towers.errors import DivergedError
from towers.evaluation import validation as validation_module
from towers.evaluation.metrics import Measured
from towers.evaluation.validation import Validation
from towers.model.prior import Prior, assign_prior
from towers.model.two_tower import TwoTower
from towers.model.untrained_rows import zero_untrained_rows
from towers.training.checkpoints import Checkpoints
from towers.training.protocols import Summary
from towers.training.trainer import Trainer


def trainer(directory: Path, *, epochs: int, patience: int = 99) -> Trainer:
    return built_trainer(directory, train={"epochs": epochs, "patience": patience})


def weights(built: Trainer) -> list[np.ndarray]:
    return [
        np.array(v)
        for v in [*built.task.trainable_variables, *(slot for slots in built.optimizer.slots for slot in slots)]
    ]


def test_it_learns_the_held_out_item_of_every_user(tmp_path: Path) -> None:
    built = built_trainer(tmp_path, train={"epochs": 30, "checkpoint_steps": 10_000})
    summary = built.fit()
    # Chance among the 21 unseen items is 0.05; the one unseen item of the user's group is the answer.
    assert summary.best_metric == 1.0
    assert built.validation is not None
    assert built.validation.measure(built.task.towers).metric == 1.0


def test_it_keeps_the_best_epoch_and_stops_early(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The criterion chooses, whatever the metric is, and of equal epochs the first.
    metrics = iter([Measured(0.9, 0.2), Measured(0.6, 0.5), Measured(0.7, 0.5), Measured(0.8, 0.3), Measured(0.1, 0.9)])
    kept: list[np.ndarray] = []

    def measured(self: Validation, towers: object) -> Measured:
        kept.append(built.task.trainable_variables[0].numpy())
        return next(metrics)

    monkeypatch.setattr(validation_module.Validation, "measure", measured)
    built = trainer(tmp_path, epochs=9, patience=2)
    summary = built.fit()
    assert (summary.epochs, summary.best_epoch, summary.best_metric) == (4, 2, 0.6)
    np.testing.assert_array_equal(built.task.trainable_variables[0], kept[1])


def test_a_run_stopped_as_it_saves_the_best_model_chooses_again_from_the_same_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = built_trainer(tmp_path, train={"epochs": 3}, model={"norm_exponent": "validation", "prior": "validation"})
    towers = built.task.towers
    before: list[list[np.ndarray]] = []

    def chosen() -> list[np.ndarray]:
        assert towers.prior_weights is not None
        return [towers.candidate_tower.norm_exponent.numpy(), towers.prior_weights.numpy()]

    def measured(self: Validation, model: TwoTower) -> Measured:
        before.append(chosen())
        towers.candidate_tower.norm_exponent.assign_add(0.1)
        assign_prior(towers, Prior(1.0 + len(before), 2.0, 3.0))
        return Measured(0.1 * len(before), 0.1 * len(before))

    def stopped(self: Checkpoints, epoch: int) -> None:
        if epoch == 2:
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Validation, "measure", measured)
        patched.setattr(Checkpoints, "save_best", stopped)
        with pytest.raises(KeyboardInterrupt):
            built.fit()
    assert len(before) == 2
    for value, right in zip(chosen(), before[1], strict=True):
        np.testing.assert_array_equal(value, right)


STOPS = (2, 9, *(pytest.param(step, marks=pytest.mark.long) for step in (5, 8, 16)))


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[np.ndarray], Summary, Path]:
    """Weights and summary of three epochs that nothing cut off; `cut-STEP/`: what a kill after a step would leave."""
    folder = tmp_path_factory.mktemp("undisturbed")
    whole = trainer(folder / "whole", epochs=3)
    assert whole.examples.steps == 8
    summary = whole.fit(lambda done, loss: shutil.copytree(folder / "whole", folder / f"cut-{done}"))
    return weights(whole), summary, folder


@pytest.mark.parametrize("stop_at", STOPS)
def test_a_run_that_was_cut_off_goes_on_bit_for_bit(
    stop_at: int, undisturbed: tuple[list[np.ndarray], Summary, Path]
) -> None:
    expected, _, folder = undisturbed
    resumed = trainer(folder / f"cut-{stop_at}", epochs=3)
    seen: list[int] = []
    resumed.fit(lambda done, loss: seen.append(done))
    assert seen[0] <= stop_at + 1  # it did go on from a checkpoint, or from the start where there was none yet
    assert stop_at < 3 or seen[0] > 1
    for one, other in zip(expected, weights(resumed), strict=True):
        np.testing.assert_array_equal(one, other)


def test_ctrl_c_keeps_the_work(tmp_path: Path) -> None:
    def interrupt(done: int, loss: float) -> None:
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        trainer(tmp_path, epochs=2).fit(interrupt)
    seen: list[int] = []
    trainer(tmp_path, epochs=2).fit(lambda done, loss: seen.append(done))
    assert seen[0] == 3


def test_a_diverging_loss_stops_the_run(tmp_path: Path) -> None:
    built = trainer(tmp_path, epochs=3)
    built.task.towers.query_tower.encoders[0].table.assign(tf.fill([USERS + 1, 8], np.nan))
    with pytest.raises(DivergedError, match="step 1 of epoch 1 is nan"):
        built.fit()


def test_logs_for_tensorboard_are_written(undisturbed: tuple[list[np.ndarray], Summary, Path]) -> None:
    _, _, folder = undisturbed
    assert any((folder / "whole" / "tensorboard").glob("events.out.tfevents.*"))


def test_a_stop_during_validation_validates_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, undisturbed: tuple[list[np.ndarray], Summary, Path]
) -> None:
    real = validation_module.Validation.measure
    calls = 0

    def interrupted(self: Validation, *towers: Any) -> float:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise KeyboardInterrupt
        return real(self, *towers)

    _, whole, _ = undisturbed
    monkeypatch.setattr(validation_module.Validation, "measure", interrupted)
    with pytest.raises(KeyboardInterrupt):
        trainer(tmp_path / "cut", epochs=3).fit()
    resumed = trainer(tmp_path / "cut", epochs=3).fit()
    timings = {"train_seconds", "validation_seconds"}
    for one, other in zip(whole.history, resumed.history, strict=True):
        assert {k: v for k, v in one.items() if k not in timings} == pytest.approx(
            {k: v for k, v in other.items() if k not in timings}
        )
    assert (resumed.best_epoch, resumed.best_metric) == (whole.best_epoch, whole.best_metric)


def test_a_stop_between_a_step_and_its_count_repeats_no_batch(
    tmp_path: Path, undisturbed: tuple[list[np.ndarray], Summary, Path]
) -> None:
    cut = trainer(tmp_path / "cut", epochs=3)
    real, calls = cut._step, 0

    def stopped(batch: Any) -> Any:
        nonlocal calls
        calls += 1
        loss = real(batch)
        if calls == 3:
            raise KeyboardInterrupt
        return loss

    cut._step = stopped
    with pytest.raises(KeyboardInterrupt):
        cut.fit()
    resumed = trainer(tmp_path / "cut", epochs=3)
    history = resumed.fit().history
    # The loss of the step that was cut off is lost; those of the other seven make the mean.
    assert history[0]["loss"] == pytest.approx(undisturbed[1].history[0]["loss"], rel=0.05)
    assert history[1]["loss"] == undisturbed[1].history[1]["loss"]
    assert int(resumed.optimizer.step) == 24
    for one, other in zip(undisturbed[0], weights(resumed), strict=True):
        np.testing.assert_array_equal(one, other)


def test_rows_that_no_example_reads_start_and_stay_at_zero(tmp_path: Path) -> None:
    events, tables, _ = group_world()
    model = towers_of(recipe(), users=USERS + 1)
    some = Events(events.user[:90], events.item[:90], np.minimum(events.offsets, 90))  # the first ten users only
    zero_untrained_rows(model, tables, some)
    table = model.query_tower.encoders[0].table.numpy()
    assert table[1:11].any(axis=1).all()
    assert not table[11:].any()
    taken = np.unique(some.item)
    items = model.candidate_tower.encoders[0].table.numpy()
    assert items[taken + 1].any(axis=1).all()
    assert not np.delete(items, taken + 1, axis=0).any()


def test_validation_ranks_only_what_was_learnt() -> None:
    """Two users, three items; every learnt score is negative, so an unlearnt item's 0 would come first."""
    towers = towers_of(recipe(model={"dimension": 2, "similarity": "dot"}), users=2, items=3)
    towers.query_tower.encoders[0].table.assign([[0, 0], [1, 0], [0, 1]])
    towers.candidate_tower.encoders[0].table.assign([[0, 0], [-1, -2], [0, 0], [-2, -1]])
    rows = np.arange(1, 4, dtype=np.int32)
    none = np.zeros(3, np.int64)
    check = Validation(
        {"user_id": rows[:2]},
        {"item_id": rows},
        none,
        none[:0].astype(np.int32),
        np.arange(3),
        np.array([0, 2]),
        "recall@1",
    )
    # User 0 scores the items -1, 0 (unlearnt), -2, and wants item 0; user 1 scores them -2, 0, -1, and wants item 2.
    assert check.measure(towers).metric == 1.0
    unlearnt = dataclasses.replace(check, target_items=np.array([1, 2], np.int32))
    assert unlearnt.measure(towers).metric == 0.5
    seen = dataclasses.replace(check, seen_offsets=np.array([0, 2, 2]), seen_items=np.array([0, 1], np.int32))
    assert seen.measure(towers).metric == 0.5


def test_an_interrupted_epoch_took_the_time_of_both_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each step takes a second of a clock that goes on by steps alone."""
    seconds = 0.0
    monkeypatch.setattr("towers.training.trainer.time.monotonic", lambda: seconds)

    def ticking(one: Trainer, last: int | None) -> Trainer:
        real, calls = one._step, 0

        def step(batch: Any) -> Any:
            nonlocal seconds, calls
            calls += 1
            if calls == last:
                raise KeyboardInterrupt
            seconds += 1
            return real(batch)

        one._step = step
        return one

    with pytest.raises(KeyboardInterrupt):
        ticking(trainer(tmp_path / "cut", epochs=2), last=6).fit()
    seconds += 1_000  # until the command is given again
    history = ticking(trainer(tmp_path / "cut", epochs=2), last=None).fit().history
    assert [record["train_seconds"] for record in history] == [8, 8]
