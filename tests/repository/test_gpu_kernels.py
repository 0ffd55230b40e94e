"""The checker itself: graphs that a GPU cannot run well are named, graphs that it can are not."""

from collections.abc import Callable
from typing import Any

import pytest
import tensorflow as tf

from tests.support.gpu_kernels import largest, problems

FLOATS, LONGS, INTS = tf.TensorSpec([128, 8]), tf.TensorSpec([128], tf.int64), tf.TensorSpec([128], tf.int32)
SEED, BATCH = tf.TensorSpec([2], tf.int32), tf.TensorSpec([None, 8])


def graph_of(step: Callable[..., Any], *inputs: tf.TensorSpec) -> Any:
    return tf.function(step, autograph=False).get_concrete_function(*inputs).graph


def in_a_loop(body: Callable[[tf.Tensor], tf.Tensor]) -> Callable[[tf.Tensor], tf.Tensor]:
    def step(x: tf.Tensor) -> tf.Tensor:
        return tf.while_loop(lambda i, _: i < 5, lambda i, value: (i + 1, body(value)), (0, x))[1]

    return step


def in_a_call(body: Callable[[tf.Tensor], tf.Tensor]) -> Callable[[tf.Tensor], tf.Tensor]:
    return lambda x: tf.function(body, autograph=False)(x) * 2


def asserting(x: tf.Tensor) -> tf.Tensor:
    tf.debugging.Assert(tf.reduce_all(x > 0), [x])
    return x


def log_uniform(x: tf.Tensor) -> tf.Tensor:
    return tf.random.log_uniform_candidate_sampler(x[:, tf.newaxis], 1, 4, True, 100).sampled_candidates


@pytest.mark.parametrize(
    ("step", "inputs", "named"),
    [
        (lambda x: tf.unique(x).idx, LONGS, "Unique) makes a result whose size the data say"),
        (lambda x: tf.raw_ops.UniqueV2(x=x, axis=[0]).y, LONGS, "UniqueV2) has no GPU kernel"),
        (log_uniform, LONGS, "(LogUniformCandidateSampler) has no GPU kernel"),
        (lambda x: tf.scatter_nd(x[:, tf.newaxis], x, [9]), INTS, "(ScatterNd) keeps its argument updates (int32"),
        (lambda x: x == 3, INTS, "(Equal) keeps its argument x (int32"),
        (lambda x: tf.cast(x, tf.int32) + 1, LONGS, "(AddV2) keeps its argument x (int32"),
        (lambda x: tf.py_function(lambda a: a, [x], tf.float32), FLOATS, "(EagerPyFunc) calls Python"),
        (lambda x: tf.numpy_function(lambda a: a, [x], tf.float32), FLOATS, "(PyFunc) calls Python"),
        (asserting, FLOATS, "(Assert) asserts"),
        (lambda x: tf.where(x > 0), FLOATS, "(Where) makes"),
        (lambda x: tf.gather(x, tf.range(tf.shape(x)[0])), FLOATS, "(Range) leaves its result int32 (128,)"),
        (lambda x: tf.gather(x, tf.range(tf.shape(x)[0])), BATCH, "(Range) leaves its result int32 (None,)"),
        (lambda x: tf.gather(x, tf.constant([1] * 100)), FLOATS, "(Const) leaves its result int32 (100,)"),
        (lambda x: tf.zeros([tf.cast(x[0], tf.int32)]), LONGS, "(Fill) keeps its argument dims"),
        (lambda x: tf.cond(x[0, 0] > 0, lambda: x, lambda: x + 1), FLOATS, "chooses its branch by data"),
        (in_a_loop(lambda x: tf.cast(tf.cast(x, tf.int32) < 3, x.dtype)), FLOATS, "while/while/Less (Less) keeps"),
        (in_a_loop(tf.cumsum), INTS, "(StatelessWhile) carries int32 data"),
        (in_a_call(lambda x: tf.unique(x).idx), LONGS, "Call/Unique (Unique) makes"),
    ],
)  # fmt: skip
def test_names_what_a_gpu_cannot_run(step: Callable[..., Any], inputs: tf.TensorSpec, named: str) -> None:
    assert any(named in problem for problem in problems(graph_of(step, inputs)))


def trains(table: tf.Variable) -> Callable[..., tf.Tensor]:
    """One step on a gathered table: gradient, sum of equal rows, scatter."""

    def step(x: tf.Tensor, rows: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.gather(table, rows) * x) / tf.cast(tf.shape(x)[0], tf.float32)
        table.scatter_sub(tape.gradient(loss, table))
        return loss

    return step


@pytest.mark.parametrize(
    ("step", "inputs"),
    [
        (in_a_loop(lambda x: tf.nn.softmax(x)), [FLOATS]),
        (in_a_call(lambda x: tf.reduce_sum(x, axis=0)), [BATCH]),
        (lambda seed: tf.random.stateless_uniform([1000], seed + 1, dtype=tf.float64), [SEED]),
        (lambda x: tf.gather(x, tf.range(tf.shape(x, out_type=tf.int64)[0])), [FLOATS]),
        (lambda x: tf.argsort(x, stable=True), [LONGS]),
        (lambda x: tf.math.top_k(x, 3).values, [FLOATS]),
        (lambda x: tf.reshape(x, [tf.shape(x)[0] // 2, -1]), [FLOATS]),
        (lambda x: tf.cond(tf.shape(x)[0] > 1, lambda: x, lambda: x + 1), [BATCH]),
    ],
)
def test_says_nothing_of_what_a_gpu_runs(step: Callable[..., Any], inputs: list[tf.TensorSpec]) -> None:
    assert problems(graph_of(step, *inputs)) == []


def test_ids_must_be_int64() -> None:
    """TensorFlow's gradient of a gather reshapes the ids, in host memory where they are int32."""
    step = trains(tf.Variable(tf.zeros([1000, 8])))
    assert problems(graph_of(step, FLOATS, LONGS)) == []
    assert any("(Reshape) keeps" in problem for problem in problems(graph_of(step, FLOATS, INTS)))


def test_what_is_ignored_is_not_named() -> None:
    graph = graph_of(lambda x: tf.unique(x).idx == 3, LONGS)
    assert {problem.split(" keeps")[0] for problem in problems(graph, frozenset({"Unique"}))} == {"Equal (Equal)"}


def test_what_nobody_uses_is_not_named() -> None:
    def step(x: tf.Tensor) -> tf.Tensor:
        tf.unique(x)
        return x + 1

    assert problems(graph_of(step, LONGS)) == []


def test_largest_looks_into_loops_and_calls_and_leaves_out_handles() -> None:
    table = tf.Variable(tf.zeros([1000, 8]))
    rows = largest(graph_of(trains(table), FLOATS, LONGS))
    assert rows[0][:2] == (1024, (128, 8))
    assert largest(graph_of(lambda x: tf.reduce_sum(table + x[:1]), FLOATS))[0][:2] == (8000, (1000, 8))
    inner = in_a_loop(lambda x: x + tf.reduce_sum(tf.zeros([50, 60])))
    entry = largest(graph_of(in_a_call(inner), FLOATS))[0]
    assert entry[:2] == (3000, (50, 60))
    assert "while/while" in entry[2]
    assert largest(graph_of(lambda x: x + 1, BATCH))[0][:2] == (8, (None, 8))
