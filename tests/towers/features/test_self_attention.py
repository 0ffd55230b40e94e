"""Self-attention over histories, against a loop of NumPy: causality, packing, masks, time gaps, the exported tower."""

import dataclasses
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.support.gpu_kernels import problems
from tests.support.worlds.training import recipe, task_of
from tests.towers.data.test_sequence_examples import ITEMS, events_of
from towers.config.features import IdFeature, SequenceFeature
from towers.data.feature_tables import FeatureTables, SequenceTable
from towers.data.packing import Sequences, packed
from towers.features.encoder import FeatureSpec
from towers.features.self_attention import SelfAttention
from towers.model.two_tower import TwoTower, save_tower
from towers.training.prefetch import as_tensors
from towers.training.trainer import Trainer

WIDTH, LENGTH = 8, 6


def encoder(directory: Path | None = None, **settings: Any) -> SelfAttention:
    """An encoder whose every weight is drawn, so that none can be left out unnoticed."""
    feature = SequenceFeature(**({"kind": "sequence", "max_length": LENGTH, "heads": 2, "dropout": 0.0} | settings))
    vocabulary = ""
    if directory is not None:
        (directory / "ids.txt").write_text("".join(f"i{n}\n" for n in range(ITEMS)))
        vocabulary = str(directory / "ids.txt")
    spec = FeatureSpec("past", feature, vocabulary, ITEMS, table="i")
    rng = np.random.default_rng(0)
    table = rng.normal(size=(1 + ITEMS, WIDTH)).astype(np.float32)
    table[0] = 0
    built = SelfAttention(spec, feature, tf.Variable(table), seed=1)
    for variable in built.trainable_variables:
        if variable.shape[0] != 1 + ITEMS:
            variable.assign(variable + rng.normal(0, 0.3, variable.shape).astype(np.float32))
    return built


def histories(lengths: list[int], gaps: int = 40) -> np.ndarray:
    rng = np.random.default_rng(1)
    out = np.zeros((len(lengths), LENGTH, 2), np.int32)
    for row, length in enumerate(lengths):
        out[row, LENGTH - length :, 0] = rng.integers(1, ITEMS + 1, length)
        out[row, LENGTH - length :, 1] = rng.integers(0, gaps + 1, length)
    return out


def reference(built: SelfAttention, history: np.ndarray) -> np.ndarray:
    """The vector of one history [n, 2], oldest first, place by place and head by head, in float64."""
    if not len(history):
        return np.zeros(WIDTH)

    def norm(module: Any, x: np.ndarray) -> np.ndarray:
        centred = x - x.mean()
        return centred / np.sqrt((centred**2).mean() + 1e-6) * module.scale.numpy() + module.offset.numpy()

    def dense(module: Any, x: np.ndarray) -> np.ndarray:
        return x @ module.kernel.numpy().astype(np.float64) + module.bias.numpy()

    gaps = np.zeros((41, WIDTH)) if built.gaps is None else built.gaps.numpy()
    table, positions = built.table.numpy().astype(np.float64), built.positions.numpy()
    places = [table[row] * WIDTH**0.5 / 0.1 + positions[place] + gaps[gap] for place, (row, gap) in enumerate(history)]
    heads = built.settings.heads
    size = WIDTH // heads
    for block in built.blocks:
        normed = [norm(block.norms[0], x) for x in places]
        after = []
        for t, x in enumerate(places):
            parts = []
            for head in range(heads):
                part = slice(head * size, (head + 1) * size)
                query = dense(block.query, normed[t])[part]
                scores = np.array([query @ dense(block.key, normed[j])[part] for j in range(t + 1)]) / np.sqrt(size)
                weights = np.exp(scores - scores.max())
                weights /= weights.sum()
                parts.append(sum(w * dense(block.value, normed[j])[part] for j, w in enumerate(weights)))
            x = x + dense(block.mixed, np.concatenate(parts))
            after.append(x + dense(block.outer, np.maximum(dense(block.inner, norm(block.norms[1], x)), 0)))
        places = after
    return norm(built.norm, places[-1])


@pytest.mark.parametrize("settings", [{}, {"time_gaps": True}, {"heads": 1, "blocks": 1}])
def test_packed_or_not_a_history_gets_the_vector_of_the_paper(settings: dict[str, Any]) -> None:
    built = encoder(**settings)
    given = histories([0, 1, 2, 6, 3, 5, 4])
    wanted = [reference(built, line[line[:, 0] > 0]) for line in given]
    np.testing.assert_allclose(built.embed(tf.constant(given)), wanted, atol=2e-5)
    np.testing.assert_allclose(built.embed(as_tensor(packed(given))), wanted, atol=2e-5)
    left = np.stack([np.concatenate([line[line[:, 0] > 0], line[line[:, 0] == 0]]) for line in given])
    np.testing.assert_allclose(built.embed(tf.constant(left)), wanted, atol=2e-5)


def test_one_pass_over_a_window_gives_the_vectors_of_all_its_prefixes() -> None:
    built = encoder(time_gaps=True)
    whole = histories([LENGTH])
    windows = packed(whole)._replace(place=np.arange(LENGTH))
    prefixes = np.stack(
        [np.concatenate([whole[0, : n + 1], np.zeros((LENGTH - n - 1, 2), np.int32)]) for n in range(6)]
    )
    np.testing.assert_allclose(built.embed(as_tensor(windows)), built.embed(tf.constant(prefixes)), atol=2e-5)


def test_a_later_item_changes_no_earlier_vector_and_no_other_window() -> None:
    built = encoder()
    rows = packed(histories([3, 3, 6]))._replace(place=np.arange(12))
    before = built.embed(as_tensor(rows)).numpy()
    changed = rows.items.copy()
    changed[0, 4, 0] = changed[0, 4, 0] % ITEMS + 1
    after = built.embed(as_tensor(rows._replace(items=changed))).numpy()
    differs = (before != after).any(axis=1)
    row = rows.segment.reshape(-1)
    own = [place for place in range(4, 6) if row[place] == row[4]]
    assert np.flatnonzero(differs).tolist() == own


def test_masks_and_dropout_are_seeded_and_only_in_training() -> None:
    built = encoder(mask_share=0.5, dropout=0.3)
    rows = as_tensor(packed(histories([4] * 200)))
    plain, seed = built.embed(rows).numpy(), tf.constant([3, 4])
    first, again, other = (built.embed(rows, s).numpy() for s in (seed, seed, seed + 1))
    np.testing.assert_array_equal(first, again)
    masked = (first == 0).all(axis=1)
    assert 0.35 < masked.mean() < 0.65
    assert (plain != 0).any(axis=1).all()
    assert np.abs(first - plain)[~masked].min() > 0
    assert (other != first).any()


def test_the_gaps_of_a_share_of_the_histories_train_as_unknown() -> None:
    built = encoder(time_gaps=True, gap_mask_share=0.4)
    given = histories([3] * 500)
    given[:, :, 1] = np.where(given[:, :, 0] > 0, 7, 0)
    rows = as_tensor(packed(given))
    known, unknown = (built.embed(rows._replace(items=rows.items * [1, factor])).numpy() for factor in (1, 0))
    trained = built.embed(rows, tf.constant([1, 2])).numpy()
    like_known, like_unknown = (np.isclose(trained, each, atol=1e-5).all(axis=1) for each in (known, unknown))
    assert (like_known | like_unknown).all()
    assert 0.3 < like_unknown.mean() < 0.5


def test_examples_without_a_history_take_no_time_gaps_from_those_with_one() -> None:
    """More of them than a row has places: each window's gaps, known or not, are those of a batch without them."""
    built = encoder(time_gaps=True, gap_mask_share=0.4)
    full = histories([LENGTH] * 20)
    alone, beside = packed(full), packed(np.concatenate([np.zeros((200, LENGTH, 2), np.int32), full]))
    np.testing.assert_array_equal(beside.segment, alone.segment)
    vectors = [built.embed(as_tensor(rows), tf.constant([1, 2])).numpy() for rows in (alone, beside)]
    np.testing.assert_array_equal(vectors[1][-20:], vectors[0])
    assert not vectors[1][:-20].any()


def test_informs_where_a_learnt_item_stands() -> None:
    built = encoder()
    built.table.scatter_update(tf.IndexedSlices(tf.zeros([1, WIDTH]), [7]))
    rows = np.zeros((3, LENGTH, 2), np.int32)
    rows[1, 0, 0], rows[2, 2, 0] = 7, 8
    assert built.informs(tf.constant(rows)).numpy().tolist() == [False, False, True]


def test_the_saved_tower_takes_raw_ids_and_times_and_equals_training(tmp_path: Path) -> None:
    built = encoder(tmp_path, time_gaps=True)
    config = recipe(model={"dimension": WIDTH, "similarity": "dot"})
    towers = TwoTower([built.spec], [], config)
    towers.query_tower.encoders = [built]
    save_tower(towers.query_tower, tmp_path / "tower")
    serve = tf.saved_model.load(str(tmp_path / "tower")).signatures["serving_default"]
    ids = [["i3", "nobody", "i9", "i4"], ["i1", "", "", ""], ["nobody", "", "", ""]]
    times = [[100, 150, 161, 161], [5, -1, -1, -1], [7, -1, -1, -1]]
    got = serve(past=tf.constant(ids), past_times=tf.constant(times, tf.int64))
    # From 100 to 161 are 61 seconds, below 2^6 - 1; from 161 to 161 none.
    lines = [np.array([[4, 0], [10, 6], [5, 1]]), np.array([[2, 0]]), np.empty((0, 2), int)]
    np.testing.assert_allclose(got["embeddings"], [reference(built, line) for line in lines], atol=2e-5)
    assert got["informed"].numpy().tolist() == [True, True, False]
    # A service that knows no times sends none: nothing but -1, be it shorter than the ids.
    got = serve(past=tf.constant(ids), past_times=tf.constant([[-1]] * 3, tf.int64))
    lines = [line * [1, 0] for line in lines]
    np.testing.assert_allclose(got["embeddings"], [reference(built, line) for line in lines], atol=2e-5)
    long = [[f"i{n}" for n in range(9)]]
    got = serve(past=tf.constant(long), past_times=tf.constant([list(range(0, 90, 10))], tf.int64))
    kept = np.array([[n + 1, 0 if n == 3 else 4] for n in range(3, 9)])
    np.testing.assert_allclose(got["embeddings"], [reference(built, kept)], atol=2e-5)


def trainer(directory: Path, epochs: int, **chosen: Any) -> Trainer:
    """Trains on a world where the next item says how many there were: pooled histories do not."""
    config = recipe(
        model={"dimension": WIDTH},
        optimizer={"learning_rate": 0.02},
        train={"epochs": epochs, "batch_size": 128, "seed": 2, "checkpoint_steps": 5},
    )
    rows = np.arange(1, ITEMS + 1, dtype=np.int32)
    tables = FeatureTables({}, {"item_id": rows}, sequences={"past": SequenceTable(rows, LENGTH, True)})
    settings = {"kind": "sequence", "max_length": LENGTH, "blocks": 1, "dropout": 0.2, "time_gaps": True} | chosen
    feature = SequenceFeature(**settings, mask_share=0.1)
    towers = TwoTower(
        [FeatureSpec("past", feature, size=ITEMS, table="i")],
        [FeatureSpec("item_id", IdFeature(kind="id"), size=ITEMS, table="i")],
        config,
    )
    events = events_of(seed=3)
    events = dataclasses.replace(events, item=((events.history_end + 3 * events.user) % ITEMS).astype(np.int32))
    task, examples = task_of(config, events, tables, towers)
    return Trainer(task, examples, config.optimizer, config.train, directory)


@pytest.mark.parametrize(
    "chosen",
    [pytest.param({}, marks=pytest.mark.long), {"forward": "swiglu", "gated": True, "positions": "distance"}],
)
def test_a_step_would_stay_on_a_gpu_learns_and_goes_on_bit_for_bit(tmp_path: Path, chosen: dict[str, Any]) -> None:
    whole = trainer(tmp_path / "whole", 5, **chosen)
    step = whole._step.get_concrete_function(as_tensors(whole.examples.batch(0, 0)))
    assert problems(step.graph) == []

    def keep(done: int, loss: float) -> None:
        """What a kill after this step would leave."""
        if done == 10:
            shutil.copytree(tmp_path / "whole", tmp_path / "cut")

    summary = whole.fit(keep)
    assert summary.history[-1]["loss"] < 0.95 * summary.history[0]["loss"]
    resumed = trainer(tmp_path / "cut", 5, **chosen)
    assert resumed.done == 10 and resumed.progress.step
    resumed.fit()
    for one, other in zip(whole.task.variables, resumed.task.variables, strict=True):
        np.testing.assert_array_equal(one, other)


def as_tensor(windows: Sequences) -> Sequences:
    return Sequences(*(tf.constant(part) for part in windows))
