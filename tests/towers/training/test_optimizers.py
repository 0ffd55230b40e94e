"""Row-sparse and fused steps against Keras's dense ones, rows that must not move, and what a step is made of."""

from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.support.gpu_kernels import largest, problems
from towers.config.sections import OptimizerConfig
from towers.ops.row_gradients import every_row
from towers.training.optimizers import build_optimizer

RATE, STEPS = 0.05, 6
KERAS: dict[str, Callable[..., Any]] = {
    "adam": tf.keras.optimizers.Adam,
    "adagrad": tf.keras.optimizers.Adagrad,
    "sgd": tf.keras.optimizers.SGD,
}
LEGACY = {name: getattr(tf.keras.optimizers.legacy, made.__name__) for name, made in KERAS.items()}
FORMS = ["slices", "dense", "every row and slices"]


def assert_equals_keras(
    name: str, keras: Any, form: str = "slices", *, jit: bool = False, penalty: float = 0.0, **settings: Any
) -> None:
    """Trains a table [11, 3], of which every row gets a gradient, and a bias [3]; ours and Keras's must agree.

    Keras's gradient of the table is that of the loss plus ``penalty / 2 |w|^2``.
    """
    rng = np.random.default_rng(1)
    start = rng.normal(size=(11, 3)).astype(np.float32)
    ours, theirs = ([tf.Variable(start, name="table"), tf.Variable(tf.ones([3]), name="bias")] for _ in range(2))
    config = OptimizerConfig(name=name, **{"learning_rate": RATE, **settings})  # type: ignore[arg-type]
    optimizer = build_optimizer(config, ours, STEPS)

    def step(every: tf.Tensor, more: tf.Tensor, rows: tf.Tensor, order: tf.Tensor, bias: tf.Tensor) -> None:
        slices = tf.IndexedSlices(more, rows)
        if form == "dense":
            gradient: Any = tf.tensor_scatter_nd_add(every, rows[:, tf.newaxis], more)
        elif form == "slices":
            gradient = together(tf.IndexedSlices(tf.gather(every, order), order), slices)
        else:
            halves = tf.IndexedSlices(more / 2, rows)
            gradient = together(halves, together(every_row(every), halves))
        optimizer.apply([gradient, bias])

    step = tf.function(step, jit_compile=jit, autograph=False)
    for _ in range(STEPS):
        every, bias = (rng.normal(size=shape).astype(np.float32) for shape in ((11, 3), (3,)))
        more, rows, order = rng.normal(size=(5, 3)).astype(np.float32), np.array([7, 2, 2, 10, 0]), rng.permutation(11)
        step(*map(tf.constant, (every, more, rows, order, bias)))
        total = every.copy()
        np.add.at(total, rows, more)
        total += penalty * theirs[0].numpy()
        keras.apply_gradients(zip(map(tf.constant, (total, bias)), theirs, strict=True))
    for own, right in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(own, right, rtol=2e-5, atol=2e-6)
    assert not np.allclose(ours[0], start, atol=0.01)


def together(*parts: tf.IndexedSlices) -> tf.IndexedSlices:
    """As TensorFlow adds up the gradients of a table that is read in several places."""
    return tf.IndexedSlices(
        tf.concat([part.values for part in parts], 0), tf.concat([part.indices for part in parts], 0)
    )


def every_pair_or_each_once(jit: bool) -> list[Any]:
    """XLA compiles each optimizer with one form in the default run, with all in the long one."""
    return [
        pytest.param(name, form, jit, marks=pytest.mark.long if jit and row != column else [])
        for row, name in enumerate(KERAS)
        for column, form in enumerate(FORMS)
    ]


@pytest.mark.parametrize(("name", "form", "jit"), [*every_pair_or_each_once(False), *every_pair_or_each_once(True)])
def test_equals_keras_where_every_row_is_touched(name: str, form: str, jit: bool) -> None:
    assert_equals_keras(name, KERAS[name](RATE), form, jit=jit)


@pytest.mark.parametrize("name", KERAS)
def test_equals_the_older_keras_too(name: str) -> None:
    assert_equals_keras(name, LEGACY[name](RATE))


@pytest.mark.parametrize("name", KERAS)
@pytest.mark.parametrize("form", FORMS)
def test_weight_decay_is_keras_s(name: str, form: str) -> None:
    keras = (tf.keras.optimizers.AdamW if name == "adam" else KERAS[name])(RATE, weight_decay=0.3)
    keras.exclude_from_weight_decay(var_names=["bias"])
    assert_equals_keras(name, keras, form, weight_decay=0.3)


@pytest.mark.parametrize("name", KERAS)
@pytest.mark.parametrize("form", FORMS)
def test_l2_is_keras_with_the_penalty_in_the_loss(name: str, form: str) -> None:
    assert_equals_keras(name, KERAS[name](RATE), form, penalty=0.3, l2=0.3)


@pytest.mark.parametrize("form", FORMS)
def test_l2_is_weight_decay_to_sgd(form: str) -> None:
    keras = tf.keras.optimizers.SGD(RATE, weight_decay=0.3)
    keras.exclude_from_weight_decay(var_names=["bias"])
    assert_equals_keras("sgd", keras, form, l2=0.3)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("dense", [False, True], ids=["slices", "dense"])
def test_l2_joins_the_clipped_gradient_of_the_rows_that_move(dense: bool, dtype: str) -> None:
    """Kingma & Ba with L2 in loops, from the weights as they are stored; a table in bfloat16 is rounded either way."""
    rng, l2, most = np.random.default_rng(5), 0.7, 0.5
    table, bias = tf.Variable(tf.constant(rng.normal(size=(6, 2)), dtype)), tf.Variable(tf.ones([2]))
    settings = OptimizerConfig(name="adam", learning_rate=RATE, l2=l2, clip_norm=most)
    optimizer = build_optimizer(settings, [table, bias])
    moments = np.zeros((2, 7, 2))  # the last row is the bias
    for step in range(1, STEPS + 1):
        rows, values = rng.integers(0, 5, 3), rng.normal(size=(3, 2))  # row 5 never moves of itself
        gradient = np.zeros((7, 2))
        np.add.at(gradient, rows, values)
        gradient[6] = rng.normal(size=2)
        clipped = gradient * min(1, most / np.sqrt(np.square(gradient).sum()))
        before = np.concatenate([tf.cast(table, tf.float32).numpy(), bias.numpy()[np.newaxis]]).astype(float)
        wanted = before.copy()
        for row in [*(range(6) if dense else sorted(set(rows))), 6]:
            total = clipped[row] + (l2 * before[row] if row < 6 else 0)
            moments[0, row] = 0.9 * moments[0, row] + 0.1 * total
            moments[1, row] = 0.999 * moments[1, row] + 0.001 * total**2
            mean, variance = moments[0, row] / (1 - 0.9**step), moments[1, row] / (1 - 0.999**step)
            wanted[row] -= RATE * mean / np.sqrt(variance)
        slices = tf.IndexedSlices(tf.constant(values, tf.float32), tf.constant(rows), tf.constant([6, 2]))
        given = tf.constant(gradient[:6], tf.float32) if dense else slices
        optimizer.apply([given, tf.constant(gradient[6], tf.float32)])
        got = np.concatenate([tf.cast(table, tf.float32).numpy(), bias.numpy()[np.newaxis]])
        # One unit in the last of 8 bits is at most 2^-7 of a number.
        np.testing.assert_allclose(got[:6], wanted[:6], rtol=2**-7 if dtype == "bfloat16" else 1e-4, atol=1e-5)
        np.testing.assert_allclose(got[6], wanted[6], rtol=1e-4)
        for slot, moment in zip(optimizer.slots[0], moments, strict=True):
            np.testing.assert_allclose(slot, moment[:6], rtol=1e-4, atol=1e-8)


DECAYS = {
    "linear": tf.keras.optimizers.schedules.PolynomialDecay(RATE, STEPS, 0.1 * RATE),
    "cosine": tf.keras.optimizers.schedules.CosineDecay(RATE, STEPS, alpha=0.1),
}


@pytest.mark.parametrize("schedule", DECAYS)
@pytest.mark.parametrize("form", FORMS)
def test_a_schedule_is_keras_s(schedule: Any, form: str) -> None:
    keras = tf.keras.optimizers.AdamW(DECAYS[schedule], weight_decay=0.3)
    keras.exclude_from_weight_decay(var_names=["bias"])
    assert_equals_keras("adam", keras, form, schedule=schedule, final_share=0.1, weight_decay=0.3)


@pytest.mark.parametrize("name", KERAS)
@pytest.mark.parametrize("form", FORMS)
def test_clipping_is_keras_s_by_the_norm_of_all_gradients(name: str, form: str) -> None:
    """Keras gets the rows added up: of slices that repeat a row it would clip another length."""
    assert_equals_keras(name, KERAS[name](RATE, global_clipnorm=1.5), form, clip_norm=1.5)
    assert_equals_keras(name, KERAS[name](RATE), form, clip_norm=1e6)  # none is so long


def test_equal_rows_count_once_in_the_norm_that_is_clipped() -> None:
    table = tf.Variable(tf.zeros([4, 2]))
    optimizer = build_optimizer(OptimizerConfig(name="sgd", learning_rate=1.0, clip_norm=2.5), [table])
    # Row 1 gets (3, 0) + (0, 4): of length 5, not 5 by chance of two rows apart; row 2 gets (1, 0) - (1, 0).
    slices = tf.constant([[3.0, 0.0], [1.0, 0.0], [3.0, 4.0], [-1.0, 0.0], [-3.0, 0.0]])
    optimizer.apply([tf.IndexedSlices(slices, tf.constant([1, 2, 1, 2, 1]))])
    np.testing.assert_allclose(table, [[0, 0], [-1.5, -2], [0, 0], [0, 0]], rtol=1e-6)


@pytest.mark.parametrize("name", KERAS)
@pytest.mark.parametrize("repeats", [1, 9], ids=["fewer slices than rows", "more slices than rows"])
def test_untouched_rows_and_their_moments_stand_still(name: str, repeats: int) -> None:
    table = tf.Variable(np.random.default_rng(0).normal(size=(6, 2)).astype(np.float32))
    settings = {"weight_decay": 0.5, "clip_norm": 1.0, "average": 0.9}
    optimizer = build_optimizer(OptimizerConfig(name=name, learning_rate=0.1, **settings), [table])
    step = tf.IndexedSlices(tf.ones([2, 2]), tf.constant([1, 4]), tf.constant([6, 2]))
    optimizer.apply([step])
    kept = (table, *optimizer.slots[0], optimizer.averages.sums[0], optimizer.averages.steps[0])
    before = [np.array(v) for v in kept]
    rows = tf.constant([4] * (1 + repeats))
    optimizer.apply([tf.IndexedSlices(tf.ones([1 + repeats, 2]), rows, tf.constant([6, 2]))])
    for old, new in zip(before, kept, strict=True):
        np.testing.assert_array_equal(np.delete(old, 4, axis=0), np.delete(new.numpy(), 4, axis=0))
    assert (before[0][4] != table.numpy()[4]).all()
    assert int(optimizer.step) == 2  # the step count is global


def test_adam_corrects_the_bias_of_a_row_by_the_steps_of_all_rows() -> None:
    """Kingma & Ba, ICLR 2015, in loops: a row's moments wait for it, the step count does not."""
    table = tf.Variable(tf.ones([2, 1]))
    optimizer = build_optimizer(OptimizerConfig(name="adam", learning_rate=0.1), [table])
    weight, first, second = np.ones(2), np.zeros(2), np.zeros(2)
    for step, (row, gradient) in enumerate([(0, 1.0), (1, -2.0), (1, 0.5), (1, 3.0), (0, -0.5)], 1):
        optimizer.apply([tf.IndexedSlices(tf.constant([[gradient]]), tf.constant([row]), tf.constant([2, 1]))])
        first[row] = 0.9 * first[row] + 0.1 * gradient
        second[row] = 0.999 * second[row] + 0.001 * gradient**2
        mean, variance = first[row] / (1 - 0.9**step), second[row] / (1 - 0.999**step)
        weight[row] -= 0.1 * mean / np.sqrt(variance)
    np.testing.assert_allclose(table[:, 0], weight, rtol=1e-5)


@pytest.mark.parametrize("name", KERAS)
def test_a_batch_that_reads_no_row_changes_none(name: str) -> None:
    """A batch may hold no history at all."""
    table = tf.Variable(np.ones((4, 2), np.float32))
    optimizer = build_optimizer(OptimizerConfig(name=name, weight_decay=0.1, clip_norm=1.0, average=0.5), [table])
    optimizer.apply([tf.IndexedSlices(tf.zeros([0, 2]), tf.zeros([0], tf.int32), tf.constant([4, 2]))])
    np.testing.assert_array_equal(table, np.ones((4, 2)))


EVERYTHING = {"weight_decay": 0.1, "schedule": "cosine", "warmup_steps": 2, "clip_norm": 1.0, "average": 0.9}


# Every two of optimizer, settings, type and size meet in the default run, all four in the long one.
SETTINGS = (KERAS, ({}, EVERYTHING, {"l2": 0.1, "average": 0.9}), ("float32", "bfloat16", "float16"), (7, None))
STEPS_ON_A_GPU = [
    pytest.param(*values, marks=pytest.mark.long if sum(places) % 2 else [])
    for places, values in zip(product(*(range(len(each)) for each in SETTINGS)), product(*SETTINGS), strict=True)
]


@pytest.mark.parametrize(("name", "settings", "dtype", "size"), STEPS_ON_A_GPU)
def test_a_sparse_step_runs_on_a_gpu_and_makes_nothing_as_large_as_the_table(
    name: str, settings: dict[str, Any], dtype: str, size: int | None
) -> None:
    table, weights = tf.Variable(tf.zeros([1000, 4], dtype)), tf.Variable(tf.zeros([4]))
    optimizer = build_optimizer(OptimizerConfig(name=name, **settings), [table, weights], 10)

    def step(values: tf.Tensor, rows: tf.Tensor) -> None:
        optimizer.apply([tf.IndexedSlices(values, rows), values[0]])

    signature = [tf.TensorSpec([size, 4]), tf.TensorSpec([size], tf.int64)]
    graph = tf.function(step, input_signature=signature, autograph=False).get_concrete_function().graph
    assert problems(graph) == []
    assert largest(graph)[0][0] <= 4 * 7


@pytest.mark.parametrize("name", KERAS)
def test_a_step_of_all_rows_runs_on_a_gpu_and_makes_nothing_beside_the_gradient(name: str) -> None:
    table = tf.Variable(tf.zeros([1003, 4]))
    optimizer = build_optimizer(OptimizerConfig(name=name), [table])
    step = tf.function(lambda gradient: optimizer.apply([gradient]), autograph=False)
    graph = step.get_concrete_function(tf.TensorSpec([1003, 4])).graph
    assert problems(graph) == []
    assert largest(graph)[0][0] <= 4
    for settings in (EVERYTHING, {"l2": 0.1}):
        more = build_optimizer(OptimizerConfig(name=name, **settings), [table], 10)  # type: ignore[arg-type]
        step = tf.function(lambda gradient, more=more: more.apply([gradient]), autograph=False)
        assert problems(step.get_concrete_function(tf.TensorSpec([1003, 4])).graph) == []


@pytest.mark.parametrize(("average", "more"), [(0.0, []), (0.9, ["averages/steps/0", "averages/sums/0"])])
def test_a_checkpoint_holds_the_step_the_moments_and_the_averages_only(
    average: float, more: list[str], tmp_path: Path
) -> None:
    table = tf.Variable(tf.zeros([5, 2]))
    optimizer = build_optimizer(OptimizerConfig(name="adam", average=average), [table])
    path = tf.train.Checkpoint(optimizer=optimizer).write(str(tmp_path / "state"))
    names = [name for name, _ in tf.train.list_variables(path) if "OBJECT_GRAPH" not in name]
    assert sorted(name.split("/.ATTR")[0] for name in names) == [
        f"optimizer/{each}" for each in (*more, "slots/0/0", "slots/0/1", "step", "variables_in_order/0")
    ]


@pytest.mark.parametrize("name", KERAS)
def test_moments_with_the_steps_behind_them_go_on_as_if_nothing_had_been(name: str) -> None:
    gradients = [tf.constant(each) for each in np.random.default_rng(3).normal(size=(STEPS, 4, 2)).astype(np.float32)]
    settings = OptimizerConfig(name=name, learning_rate=RATE)  # type: ignore[arg-type]
    whole, first = tf.Variable(tf.ones([4, 2])), tf.Variable(tf.ones([4, 2]))
    straight, before = build_optimizer(settings, [whole]), build_optimizer(settings, [first])
    for place, gradient in enumerate(gradients):
        straight.apply([gradient])
        if place < STEPS - 2:
            before.apply([gradient])
    rest = tf.Variable(first)
    after = build_optimizer(settings, [rest])
    for slot, earlier in zip(after.slots[0], before.slots[0], strict=True):
        slot.assign(earlier)
    after.earlier_steps = int(before.step)
    for gradient in gradients[-2:]:
        after.apply([gradient])
    np.testing.assert_array_equal(rest, whole)
