"""Full softmax in blocks against TensorFlow's cross-entropy over all logits: values, gradients, memory, kernels."""

import gc
import json
import subprocess
import sys
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.support.gpu_kernels import largest, problems
from tests.support.paths import ROOT
from towers.config.sections import OptimizerConfig
from towers.losses.full_softmax import full_softmax
from towers.ops.row_gradients import gathered
from towers.training.optimizers import build_optimizer

ITEMS, BATCH, WIDTH, CATEGORIES = 23, 5, 4, 6
MODES = pytest.mark.parametrize("jit", [None, False, True], ids=["eager", "graph", "xla"])


class World(tf.Module):
    """A candidate tower with everything that a gradient has to find: a table with a row per item, a small one with
    repeats, several values an item, a hidden layer, and a table that the queries share.
    """

    def __init__(self, seed: int = 0, dtype: tf.DType = tf.float32) -> None:
        rng = np.random.default_rng(seed)
        self.rng = rng

        def weights(*shape: int) -> tf.Variable:
            return tf.Variable(tf.constant(rng.normal(size=shape), dtype))

        self.item, self.category, self.kernel = (
            weights(ITEMS + 1, WIDTH),
            weights(CATEGORIES, WIDTH),
            weights(WIDTH, WIDTH),
        )
        self.user, self.log_temperature = weights(BATCH, WIDTH), tf.Variable(tf.constant(-0.3, dtype))
        self.words = tf.constant(rng.integers(0, CATEGORIES, (ITEMS, 3)))
        self.positives = tf.constant(rng.integers(0, ITEMS, (BATCH, 2)))
        self.present = tf.constant([[True, True]] * 3 + [[True, False]] * (BATCH - 3))
        self.weight = tf.constant(rng.uniform(0.5, 2, BATCH), dtype)
        self.learnt = [self.item, self.category, self.kernel, self.user, self.log_temperature]

    def encode(self, item: tf.Tensor) -> tf.Tensor:
        pooled = tf.reduce_mean(tf.gather(self.category, tf.gather(self.words, item)), axis=1)
        return tf.tanh(tf.matmul(tf.gather(self.item, item + 1) + pooled, self.kernel))

    def query(self) -> tf.Tensor:
        """Queries that read the items' own table, as a history does."""
        return self.user + tf.gather(self.item, [1, 2, 2, 5, 9])

    def positive_score(self) -> tf.Tensor:
        """[B, 1] mean of those that are present."""
        vectors = tf.reshape(self.encode(tf.reshape(self.positives, [-1])), [BATCH, 2, WIDTH])
        scores = tf.einsum("bd,bkd->bk", self.query(), vectors) * tf.exp(-self.log_temperature)
        share = tf.cast(self.present, scores.dtype)
        return tf.reduce_sum(scores * share, 1, keepdims=True) / tf.reduce_sum(share, 1, keepdims=True)

    def in_blocks(self, block: int, smoothing: float = 0.0) -> tf.Tensor:
        return full_softmax(
            self.query(),
            self.encode,
            count=ITEMS,
            scale=tf.exp(-self.log_temperature),
            positive=self.positive_score(),
            block=block,
            label_smoothing=smoothing,
        )

    def logits(self) -> tf.Tensor:
        return tf.matmul(self.query(), self.encode(tf.range(ITEMS, dtype=tf.int64)), transpose_b=True) / tf.exp(
            self.log_temperature
        )

    def expected(self, smoothing: float = 0.0) -> tf.Tensor:
        """TensorFlow's cross-entropy: each of a query's positives is one example, all weigh the same."""
        losses = tf.stack(
            [tf.nn.sparse_softmax_cross_entropy_with_logits(self.positives[:, k], self.logits()) for k in range(2)], 1
        )
        share = tf.cast(self.present, losses.dtype)
        own = tf.reduce_sum(losses * share, 1) / tf.reduce_sum(share, 1)
        even = tf.nn.softmax_cross_entropy_with_logits(tf.ones([BATCH, ITEMS], losses.dtype) / ITEMS, self.logits())
        return (1 - smoothing) * own + smoothing * even

    def gradients(self, losses: Callable[[], tf.Tensor]) -> tuple[tf.Tensor, list[Any]]:
        with tf.GradientTape() as tape:
            values = losses()
            loss = tf.reduce_sum(values * self.weight)
        return values, tape.gradient(loss, self.learnt)

    def assert_equal(self, ours: Callable[[], tf.Tensor], theirs: Callable[[], tf.Tensor], jit: bool | None) -> None:
        def step() -> Any:
            values, gradients = self.gradients(ours)
            return values, [tf.convert_to_tensor(gradient) for gradient in gradients]

        values, gradients = step() if jit is None else tf.function(step, jit_compile=jit, autograph=False)()
        right, right_gradients = self.gradients(theirs)
        np.testing.assert_allclose(values, right, rtol=1e-5, atol=1e-5)
        for own, one in zip(gradients, right_gradients, strict=True):
            np.testing.assert_allclose(own, tf.convert_to_tensor(one), rtol=2e-5, atol=2e-5)


@MODES
@pytest.mark.parametrize("block", [5, 23, 100], ids=["short last block", "one block", "block larger than N"])
def test_equals_cross_entropy_over_all_logits(block: int, jit: bool | None) -> None:
    world = World()
    world.assert_equal(lambda: world.in_blocks(block), world.expected, jit)


@MODES
def test_label_smoothing_spreads_over_all_items(jit: bool | None) -> None:
    world = World(1)
    world.assert_equal(lambda: world.in_blocks(5, 0.2), lambda: world.expected(0.2), jit)


def test_float64_is_kept() -> None:
    world = World(3, tf.float64)
    right, wrong = world.expected(), world.in_blocks(5)
    assert wrong.dtype == tf.float64
    np.testing.assert_allclose(wrong, right, rtol=1e-12)


def test_all_positives_count() -> None:
    query, scores = tf.constant([[1.0, 2.0]]), tf.constant([[0.0, 3.0]])
    losses = full_softmax(
        query, lambda item: tf.zeros([item.shape[0], 2]), count=8, scale=1.0, positive=scores, block=3
    )
    np.testing.assert_allclose(losses, [np.log(8) - 1.5], rtol=1e-6)


@pytest.mark.parametrize("dtype", [tf.float32, tf.float16])
def test_scores_of_ten_thousand_stay_finite(dtype: tf.DType) -> None:
    """Ten times that, even, which float16 could not hold: scores are float32."""
    table = tf.Variable(tf.constant([[100.0], [-100.0], [99.0], [0.0]], dtype))
    query = tf.constant([[100.0], [-100.0], [0.0]], dtype)
    with tf.GradientTape() as tape:
        tape.watch(query)
        positive = 10 * tf.matmul(tf.cast(query, tf.float32), gathered(table, tf.constant([1])), transpose_b=True)
        losses = full_softmax(
            query, lambda item: gathered(table, item), count=4, scale=10.0, positive=positive, block=3
        )
        loss = tf.reduce_sum(losses)
    assert losses.dtype == tf.float32
    np.testing.assert_allclose(losses, [200_000, 0, np.log(4)], rtol=1e-3, atol=1e-6)
    gradients = [tf.convert_to_tensor(gradient) for gradient in tape.gradient(loss, [query, table])]
    assert [gradient.dtype for gradient in gradients] == [dtype, tf.float32]
    # d s = softmax - label: 1 at the best item, -1 at the positive; even for the query that scores all alike.
    np.testing.assert_allclose(gradients[0][:, 0], [2000, 0, 247.5 + 1000], rtol=1e-3)
    np.testing.assert_allclose(gradients[1][:, 0], [1000, -1000, 0, 0], rtol=1e-3, atol=1e-3)


def test_an_eager_tape_keeps_no_block() -> None:
    blocks = []

    def encode(item: tf.Tensor) -> tf.Tensor:
        vectors = tf.gather(table, item) * 2
        blocks.append(weakref.ref(vectors))
        return vectors

    table = tf.Variable(tf.ones([40, 2]))
    with tf.GradientTape():
        full_softmax(tf.ones([3, 2]), encode, count=40, scale=1.0, positive=tf.ones([3, 1]), block=10)
        gc.collect()
        assert [block() for block in blocks] == [None] * 4


def trained_table() -> weakref.ref:
    world = World(6)
    tf.function(lambda: world.gradients(lambda: world.in_blocks(5)), autograph=False)()
    return weakref.ref(world.item)


def test_a_model_that_is_gone_leaves_no_table() -> None:
    """`tf.custom_gradient` would hold it until the process ends."""
    table = trained_table()
    gc.collect()
    assert table() is None


def test_an_adam_step_equals_one_on_all_logits() -> None:
    ours, theirs = World(4), World(4)

    config = OptimizerConfig(name="adam", learning_rate=0.05)
    own, right = build_optimizer(config, ours.learnt), tf.keras.optimizers.Adam(0.05)
    moved = tf.function(lambda: own.apply(ours.gradients(lambda: ours.in_blocks(5))[1]), autograph=False)
    for _ in range(4):
        moved()
        gradients = theirs.gradients(theirs.expected)[1]
        right.apply_gradients([(tf.convert_to_tensor(one), v) for one, v in zip(gradients, theirs.learnt, strict=True)])
    for one, other in zip(ours.learnt, theirs.learnt, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-4)


def test_a_function_inside_another_learns_the_same() -> None:
    """There TensorFlow differentiates the loop itself."""
    world = World(5)
    inner = tf.function(lambda: world.in_blocks(5), autograph=False)
    world.assert_equal(lambda: inner(), world.expected, None)


def test_the_step_runs_on_a_gpu_and_holds_neither_all_scores_nor_all_vectors() -> None:
    count, batch, width, block = 5_000, 96, 8, 64
    table, user, kernel = (tf.Variable(tf.zeros([rows, width])) for rows in (count, 50, width))
    optimizer = build_optimizer(OptimizerConfig(name="adam"), [table, user, kernel])

    def step(rows: tf.Tensor, items: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            query = tf.gather(user, rows) + tf.gather(table, items)
            positive = tf.reduce_sum(query * tf.matmul(tf.gather(table, items), kernel), axis=1, keepdims=True)

            def encode(item: tf.Tensor) -> tf.Tensor:
                return tf.matmul(tf.gather(table, item), kernel)

            losses = full_softmax(
                query, encode, count=count, scale=2.0, positive=positive, block=block, label_smoothing=0.1
            )
            loss = tf.reduce_mean(losses)
        optimizer.apply(tape.gradient(loss, [table, user, kernel]))
        return loss

    ids = tf.TensorSpec([batch], tf.int64)
    graph = tf.function(step, autograph=False).get_concrete_function(ids, ids).graph
    assert problems(graph) == []
    # Nothing is larger than the scores of one block, but the gradients of the table with a row for each item.
    large = {(shape, name.split(" ")[-1]) for elements, shape, name in largest(graph) if elements > batch * block}
    assert large == {((count, width), "(Fill)"), ((count, width), "(ScatterNdNonAliasingAdd)")}


@pytest.mark.slow
@pytest.mark.long
def test_memory_of_a_step_at_a_million_items() -> None:
    """Beside the tables, their gradients and the moments: at most 512 MB. A process of its own has its own peak."""
    words = [sys.executable, "-m", "benchmarks.training.full_softmax", "--one", "1000000", "--batch", "1024"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout.splitlines()[-1])["beside_bytes"] <= 512e6
