"""What a recipe may choose of the blocks of self-attention, against loops of NumPy over places, heads and numbers."""

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.support.gpu_kernels import problems
from tests.support.worlds.training import recipe
from tests.towers.features.test_self_attention import LENGTH, WIDTH, as_tensor, encoder, histories
from towers.config.features import SequenceFeature
from towers.data.packing import Sequences, packed
from towers.features.encoder import FeatureSpec
from towers.features.self_attention import SelfAttention
from towers.model.two_tower import TwoTower, save_tower

SWIGLU: dict[str, Any] = {"forward": "swiglu"}
GATED: dict[str, Any] = {"gated": True}
DISTANCE: dict[str, Any] = {"positions": "distance"}
ALL = SWIGLU | GATED | DISTANCE
CHOICES: list[dict[str, Any]] = [
    one | two | three for one, two, three in product(({}, SWIGLU), ({}, GATED), ({}, DISTANCE))
]
DENSE = ("query", "key", "value", "mixed", "inner", "outer")


def weights_of(built: tf.Module) -> dict[str, np.ndarray]:
    """The variables by name, in float64."""
    return {each.name.removesuffix(":0"): each.numpy().astype(np.float64) for each in built.variables}


def sigmoid(x: float) -> float:
    return 1 / (1 + np.exp(-x))


def norm(weights: dict[str, np.ndarray], name: str, x: np.ndarray) -> np.ndarray:
    deviation = np.sqrt(((x - x.mean()) ** 2).mean() + 1e-6)
    return (x - x.mean()) / deviation * weights[f"{name}.scale"] + weights[f"{name}.offset"]


def one_block(weights: dict[str, np.ndarray], name: str, given: list[np.ndarray], chosen: SequenceFeature) -> Any:
    """The vectors after a block of those of one history, oldest first."""

    def dense(part: str, x: np.ndarray) -> np.ndarray:
        kernel, out = weights[f"{name}.{part}.kernel"], weights[f"{name}.{part}.bias"].copy()
        for into in range(WIDTH):
            for number in range(WIDTH):
                out[into] += x[number] * kernel[number, into]
        return out

    def added(part: str, x: np.ndarray, change: np.ndarray) -> np.ndarray:
        shares = [sigmoid(number) for number in dense(f"gate_{part}", x)] if chosen.gated else [1.0] * WIDTH
        return np.array([x[n] + change[n] * shares[n] for n in range(WIDTH)])

    size = WIDTH // chosen.heads
    normed = [norm(weights, f"{name}.norm_attention", x) for x in given]
    after = []
    for now, x in enumerate(given):
        seen = np.zeros(WIDTH)
        for head in range(chosen.heads):
            own = range(head * size, (head + 1) * size)
            query, shares = dense("query", normed[now]), []
            for then in range(now + 1):
                key = dense("key", normed[then])
                score = sum(query[n] * key[n] for n in own) / np.sqrt(size)
                if chosen.positions == "distance":
                    score += weights[f"{name}.distances"][head, now - then]
                shares.append(np.exp(score))
            for then, share in enumerate(shares):
                value = dense("value", normed[then])
                for n in own:
                    seen[n] += share / sum(shares) * value[n]
        x = added("attention", x, dense("mixed", seen))
        normed_x = norm(weights, f"{name}.norm_forward", x)
        inner = dense("inner", normed_x)
        if chosen.forward == "swiglu":
            linear = dense("linear", normed_x)
            inner = np.array([inner[n] * sigmoid(inner[n]) * linear[n] for n in range(WIDTH)])
        else:
            inner = np.array([max(number, 0.0) for number in inner])
        after.append(added("forward", x, dense("outer", inner)))
    return after


def reference(built: SelfAttention, history: np.ndarray) -> np.ndarray:
    """The vector of one history [n, 2], oldest first."""
    if not len(history):
        return np.zeros(WIDTH)
    weights, chosen = weights_of(built), built.settings
    table = built.table.numpy().astype(np.float64)
    places = [table[row] * np.sqrt(WIDTH) * 10 for row, _ in history]
    if chosen.positions == "absolute":
        places = [x + weights["past.positions"][place] for place, x in enumerate(places)]
    if chosen.time_gaps:
        places = [x + weights["past.gaps"][gap] for x, (_, gap) in zip(places, history, strict=True)]
    for number in range(chosen.blocks):
        places = one_block(weights, f"past.block_{number}", places, chosen)
    return norm(weights, "past.norm", places[-1])


@pytest.mark.parametrize("chosen", CHOICES, ids=lambda chosen: "-".join(map(str, chosen.values())) or "default")
def test_a_block_computes_its_formula(chosen: dict[str, Any]) -> None:
    built = encoder(blocks=1, **chosen)
    given = np.random.default_rng(2).normal(size=(3, LENGTH, WIDTH)).astype(np.float32)
    earlier = np.broadcast_to(np.tril(np.ones((LENGTH, LENGTH), bool)), (3, LENGTH, LENGTH))
    wanted = [one_block(weights_of(built), "past.block_0", list(row), built.settings) for row in given]
    got = built.blocks[0](tf.constant(given), tf.constant(earlier), None)
    np.testing.assert_allclose(got, wanted, atol=2e-5)


@pytest.mark.parametrize("chosen", [SWIGLU, GATED, DISTANCE, ALL | {"time_gaps": True}])
def test_packed_or_not_whole_or_with_holes_a_history_gets_the_vector_of_the_formula(chosen: dict[str, Any]) -> None:
    built = encoder(**chosen)
    given = histories([0, 1, 2, 6, 3, 5, 4])
    given[3, 2] = given[5, 1] = given[5, 4] = 0
    wanted = [reference(built, line[line[:, 0] > 0]) for line in given]
    windows = packed(given)
    assert (windows.segment.max(axis=1) > 1).any()
    np.testing.assert_allclose(built.embed(tf.constant(given)), wanted, atol=3e-5)
    for jit in (False, True):
        embed = tf.function(built.embed, autograph=False, jit_compile=jit)
        np.testing.assert_allclose(embed(as_tensor(windows)), wanted, atol=3e-5)


def test_with_distances_no_position_is_read_and_a_window_stands_anywhere_in_a_row() -> None:
    built = encoder(**ALL)
    windows = packed(histories([3, 1]))
    plain = built.embed(as_tensor(windows)).numpy()
    assert windows.segment.tolist() == [[1, 1, 1, 2, 0, 0]]
    unread = built.embed(as_tensor(windows._replace(position=windows.position[:, ::-1].copy())))
    np.testing.assert_array_equal(unread, plain)
    later = [np.roll(part, 2, axis=1) for part in windows[:3]]
    np.testing.assert_allclose(built.embed(as_tensor(Sequences(*later, windows.place + 2))), plain, atol=1e-5)


def test_two_orders_of_the_same_items_differ_by_the_distances_alone() -> None:
    built = encoder(blocks=1, **DISTANCE)
    given = histories([LENGTH])
    other = given.copy()
    other[0, :-1] = given[0, -2::-1]
    both = tf.constant(np.concatenate([given, other]))
    first, second = built.embed(both).numpy()
    assert np.abs(first - second).max() > 1e-3
    assert built.blocks[0].distances is not None
    built.blocks[0].distances.assign(tf.ones([2, LENGTH]))
    first, second = built.embed(both).numpy()
    np.testing.assert_allclose(first, second, atol=1e-5)


def fresh(**chosen: Any) -> SelfAttention:
    """An encoder as training starts it."""
    feature = SequenceFeature(kind="sequence", max_length=LENGTH, heads=2, dropout=0.0, **chosen)
    table = tf.Variable(np.random.default_rng(3).normal(0, 0.03, (51, WIDTH)).astype(np.float32), name="table_i")
    return SelfAttention(FeatureSpec("past", feature, size=50, table="i"), feature, table, seed=1)


def test_training_reaches_every_number_of_each_new_variable() -> None:
    built = fresh(**ALL)
    rows = as_tensor(packed(histories([6, 5, 4, 6, 6, 3, 6, 6])))
    direction = tf.constant(np.random.default_rng(4).normal(size=WIDTH).astype(np.float32))
    variables = {each.name: each for each in built.trainable_variables}

    @tf.function(autograph=False)
    def gradients() -> dict[str, tf.Tensor]:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.square(built.embed(rows)) * direction)
        return tape.gradient(loss, variables)

    found = gradients()
    new = [name for name in found if any(part in name for part in ("linear", "gate_", "distances"))]
    assert len(new) == 2 * (2 + 4 + 1)
    for name in new:
        assert isinstance(found[name], tf.Tensor), name
        assert (found[name].numpy() != 0).all(), name
    assert problems(gradients.get_concrete_function().graph) == []


@pytest.mark.parametrize("chosen", [{}, SWIGLU, GATED, DISTANCE, ALL])
def test_only_what_is_chosen_has_variables_in_one_order(chosen: dict[str, Any]) -> None:
    built = fresh(blocks=1, **chosen)
    dense = [*DENSE]
    dense += ["linear"] if "forward" in chosen else []
    dense += ["gate_attention", "gate_forward"] if "gated" in chosen else []
    wanted = {f"past.block_0.{layer}.{part}:0" for layer in dense for part in ("kernel", "bias")}
    wanted |= {
        f"past.{of}.{part}:0"
        for of in ("norm", "block_0.norm_attention", "block_0.norm_forward")
        for part in ("scale", "offset")
    }
    wanted |= {"past.block_0.distances:0" if "positions" in chosen else "past.positions:0", "table_i:0"}
    names = [each.name for each in built.variables]
    assert len(names) == len(wanted) and set(names) == wanted
    assert names == [each.name for each in fresh(blocks=1, **chosen).variables]


def test_old_settings_keep_names_order_start_and_checkpoint_of_before(tmp_path: Path) -> None:
    built = fresh(blocks=1)
    block = [f"past.block_0.{layer}.{part}:0" for layer in ("inner", "key", "mixed") for part in ("bias", "kernel")]
    block += [f"past.block_0.norm_{of}.{part}:0" for of in ("attention", "forward") for part in ("offset", "scale")]
    block += [f"past.block_0.{layer}.{part}:0" for layer in ("outer", "query", "value") for part in ("bias", "kernel")]
    tail = ["past.norm.offset:0", "past.norm.scale:0"]
    assert [each.name for each in built.variables] == ["past.positions:0", "table_i:0", *block, *tail]
    # One more option draws no other start for what was there.
    first = weights_of(built)
    for name, value in weights_of(fresh(blocks=1, **ALL)).items():
        if name in first:
            np.testing.assert_array_equal(value, first[name])
    path = tf.train.Checkpoint(encoder=built).write(str(tmp_path / "weights"))
    keys = {key.removesuffix("/.ATTRIBUTES/VARIABLE_VALUE") for key, _ in tf.train.list_variables(path)}
    assert len(keys) == len(built.variables) + 1  # the graph of objects
    assert {"encoder/positions", "encoder/table", "encoder/blocks/0/inner/kernel", "encoder/norm/scale"} <= keys


def test_the_saved_tower_with_every_option_equals_training(tmp_path: Path) -> None:
    built = encoder(tmp_path, time_gaps=True, **ALL)
    towers = TwoTower([built.spec], [], recipe(model={"dimension": WIDTH, "similarity": "dot"}))
    towers.query_tower.encoders = [built]
    save_tower(towers.query_tower, tmp_path / "tower")
    serve = tf.saved_model.load(str(tmp_path / "tower")).signatures["serving_default"]
    lines = [np.array([[4, 0], [10, 6], [5, 1]]), np.array([[2, 0]]), np.empty((0, 2), int)]
    ids = [["i3", "nobody", "i9", "i4"], ["i1", "", "", ""], ["nobody", "", "", ""]]
    times = [[100, 150, 161, 161], [5, -1, -1, -1], [7, -1, -1, -1]]
    got = serve(past=tf.constant(ids), past_times=tf.constant(times, tf.int64))
    np.testing.assert_allclose(got["embeddings"], [reference(built, line) for line in lines], atol=2e-5)
    trained = np.zeros((3, LENGTH, 2), np.int32)
    for row, line in zip(trained, lines, strict=True):
        row[: len(line)] = line
    np.testing.assert_allclose(got["embeddings"], built.embed(as_tensor(packed(trained))), atol=2e-5)
    # Longer than the recipe's history: the newest items, as far apart as before.
    long = serve(past=tf.constant([[f"i{n}" for n in range(9)]]), past_times=tf.constant([[-1] * 9], tf.int64))
    kept = np.array([[n + 1, 0] for n in range(3, 9)])
    np.testing.assert_allclose(long["embeddings"], [reference(built, kept)], atol=2e-5)
