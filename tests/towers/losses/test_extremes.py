"""Every loss where floats end: scores of +-1e4 in full and half precision, nothing masked and everything; on a GPU."""

from typing import Any, get_args

import numpy as np
import pytest
import tensorflow as tf

from tests.support.gpu_kernels import problems
from tests.support.loss_cases import CASES, COSINES, World, evaluate, label_of, supplied, world
from towers.config.losses import LOSSES
from towers.losses.registry import FUNCTIONS
from towers.losses.scores import Scores

ALL = pytest.mark.parametrize("case", CASES, ids=label_of)
# Losses whose sum over the negatives is all there is: nothing to learn where there is none.
EMPTY_IS_ZERO = {"sampled_softmax", "am_softmax", "distance_softmax", "triplet", "pair", "circle", "bsl"}
HUGE = 1e4


def extreme(name: str, magnitude: float, masked: bool) -> World:
    """Every pattern of positive and negative scores at +-magnitude, and 1 and -1 among them; row by row another."""
    given = world(name)
    levels = np.array([magnitude, -magnitude, 1.0, -1.0, 0.0])
    positive = np.stack([levels[[b % 5, (b + 1) % 5, (b + 3) % 5]] for b in range(6)])
    negative = np.stack([levels[(np.arange(9) * (b % 2) + b) % 5] for b in range(6)])  # even rows hold one level only
    mask = np.zeros((6, 9), bool) if masked else np.ones((6, 9), bool)
    return given._replace(positive=positive, negative=negative, mask=mask, same=given.same & (not masked))


@ALL
@pytest.mark.parametrize("dtype", [tf.float32, tf.float16, tf.bfloat16], ids=lambda dtype: dtype.name)
def test_extremes_stay_finite(case: tuple[str, dict[str, Any]], dtype: tf.DType) -> None:
    name, options = case
    for masked in (False, True):
        for magnitude in (HUGE, 1.0):
            given = extreme(name, magnitude, masked)
            results = evaluate(name, options, given.scores(dtype), supplied(name, options, given))
            assert [result.dtype for result in results] == [tf.float32, dtype, dtype]
            for result in results:
                assert np.isfinite(tf.cast(result, tf.float32)).all(), (masked, magnitude, result)


@pytest.mark.parametrize("case", [case for case in CASES if case[0] in EMPTY_IS_ZERO], ids=label_of)
def test_nothing_is_learnt_where_the_sum_is_empty(case: tuple[str, dict[str, Any]]) -> None:
    name, options = case
    given = extreme(name, HUGE, masked=True)
    # One positive: softmax over several of them is not empty.
    given = given._replace(present=np.eye(1, 3, dtype=bool).repeat(6, 0))
    losses, to_positive, to_negative = evaluate(name, options, given.scores(), supplied(name, options, given))
    np.testing.assert_array_equal(losses, np.zeros(6))
    np.testing.assert_array_equal(to_positive, np.zeros((6, 3)))
    np.testing.assert_array_equal(to_negative, np.zeros((6, 9)))


@pytest.mark.parametrize("name", ["sampled_softmax", "am_softmax", "pair", "nce", "neg"])
def test_the_loss_is_exact_where_a_softmax_overflows(name: str) -> None:
    """s_y = -1e4 against one negative of 1e4 costs 2e4, gradient -1 and 1; the other way round it is free."""
    options: dict[str, dict[str, Any]] = {
        "sampled_softmax": {"correction": 1.0, "positive": "included", "label_smoothing": 0.0},
        "am_softmax": {"scale": 1.0, "margin": 0.0, "correction": 1.0, "label_smoothing": 0.0},
        "pair": {"scale": 1.0, "margin": 0.0, "correction": 1.0},
        "nce": {"log_z": 0.0, "label_smoothing": 0.0},
        "neg": {"label_smoothing": 0.0},
    }
    scores = Scores(
        tf.constant([[-HUGE], [HUGE]]),
        tf.constant([[HUGE], [-HUGE]]),
        tf.ones([2, 1], tf.bool),
        tf.ones([2, 1], tf.bool),
        tf.zeros([2, 1]),
        tf.zeros([1]),
    )
    losses, to_positive, to_negative = evaluate(name, options[name], scores, {})
    np.testing.assert_array_equal(losses, [2 * HUGE, 0])
    np.testing.assert_array_equal(to_positive, [[-1], [0]])
    np.testing.assert_array_equal(to_negative, [[1], [0]])


@ALL
def test_half_precision_scores_are_computed_with_in_full(case: tuple[str, dict[str, Any]]) -> None:
    name, options = case
    given = world(name)
    rounded = given._replace(
        positive=given.positive.astype(np.float16).astype(float),
        negative=given.negative.astype(np.float16).astype(float),
    )
    more = supplied(name, options, given)
    half = FUNCTIONS[name](given.scores(tf.float16), **options, **more)
    np.testing.assert_array_equal(half, FUNCTIONS[name](rounded.scores(), **options, **more))


@ALL
def test_what_is_masked_has_no_say(case: tuple[str, dict[str, Any]]) -> None:
    name, options = case
    given = world(name)
    elsewhere = given.mask | given.same  # what bsl takes from the same user counts whatever the mask says
    changed = given._replace(
        positive=np.where(given.present, given.positive, HUGE),
        negative=np.where(elsewhere, given.negative, HUGE),
        log_q_positive=np.where(given.present, given.log_q_positive, -np.inf),
        log_q_negative=np.where(elsewhere.any(axis=0), given.log_q_negative, -np.inf),
        labels=np.where(given.present, given.labels, 1e3 if name == "graded_hinge" else 0.0),
    )
    before, after = (evaluate(name, options, it.scores(), supplied(name, options, it)) for it in (given, changed))
    for left, right in zip(before, after, strict=True):
        np.testing.assert_allclose(right, left, rtol=1e-6, atol=1e-7)
    np.testing.assert_array_equal(after[1].numpy()[~given.present], 0)
    np.testing.assert_array_equal(after[2].numpy()[~elsewhere], 0)


# One for each way through the code; options that only change a number compile alike.
COMPILED = [
    (name, options)
    for number, (name, options) in enumerate(CASES)
    if name not in [before for before, _ in CASES[:number]]
    or options.get("positive") == "excluded"
    or (options.get("mining") in ("semi_hard", "hardest") and options["on"] == "euclidean")
    or options.get("pairs") == "batch"
    or options.get("positive_group") == "batch"
]


@pytest.mark.long
def test_compiled_losses_equal_those_that_are_not() -> None:
    worlds = [world(name) for name, _ in COMPILED]
    inputs = [
        (given.scores(), supplied(name, options, given))
        for given, (name, options) in zip(worlds, COMPILED, strict=True)
    ]

    def every(inputs: Any) -> Any:
        return [evaluate(*case, *given) for case, given in zip(COMPILED, inputs, strict=True)]

    # One compilation of all of them takes less than many.
    for case, got, wanted in zip(
        COMPILED, tf.function(every, jit_compile=True, autograph=False)(inputs), every(inputs), strict=True
    ):
        for left, right in zip(got, wanted, strict=True):
            np.testing.assert_allclose(left, right, rtol=2e-5, atol=2e-6, err_msg=label_of(case))


@pytest.mark.parametrize(
    ("batch", "dtype"), [(128, tf.float32), (None, tf.float16)], ids=["static shapes", "unknown batch, half precision"]
)
@ALL
def test_each_loss_and_its_gradient_stay_on_a_gpu(
    case: tuple[str, dict[str, Any]], batch: int | None, dtype: tf.DType
) -> None:
    name, options = case
    most, columns = 3, 128
    scores = Scores(
        tf.TensorSpec([batch, most], dtype),
        tf.TensorSpec([batch, columns], dtype),
        tf.TensorSpec([batch, most], tf.bool),
        tf.TensorSpec([batch, columns], tf.bool),
        tf.TensorSpec([batch, most]),
        tf.TensorSpec([columns]),
    )
    more = {
        key: value if isinstance(value, int) else tf.TensorSpec([batch, *value.shape[1:]], value.dtype)
        for key, value in supplied(name, options, world(name)).items()
    }
    if "same_query" in more:
        more["same_query"] = tf.TensorSpec([batch, columns], tf.bool)
    graph = tf.function(
        lambda scores, more: evaluate(name, options, scores, more), autograph=False
    ).get_concrete_function(scores, more)
    assert problems(graph.graph) == []


def test_the_cosine_losses_are_those_of_the_settings() -> None:
    own_scale = {get_args(loss.model_fields["name"].annotation)[0] for loss in LOSSES if loss.own_scale}
    assert own_scale == set(COSINES)


def test_a_bilateral_softmax_of_a_whole_batch_takes_an_empty_one() -> None:
    scores, mask = tf.zeros([0, 1]), tf.zeros([0, 1], tf.bool)
    empty = Scores(scores, tf.zeros([0, 0]), mask, tf.zeros([0, 0], tf.bool), scores, tf.zeros([0]))
    options = {"positive_group": "batch", "negative_scale": 1.0, "correction": 1.0, "label_smoothing": 0.0}
    assert FUNCTIONS["bsl"](empty, **options, same_query=tf.zeros([0, 0], tf.bool)).shape == (0,)
