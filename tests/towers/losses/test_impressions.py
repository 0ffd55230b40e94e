"""Losses with impressions beside the sampled candidates, against slow loops; extremes, compiled, on a GPU."""

import math
from typing import Any, get_args

import numpy as np
import pytest
import tensorflow as tf

from tests.support.gpu_kernels import problems
from tests.support.loss_cases import BSL, CASES, COSINES, World, evaluate, label_of, supplied, world
from tests.support.loss_references import REFERENCES, Query
from towers.config.losses import LOSSES
from towers.losses.impressions import own_sum, with_impressions
from towers.losses.registry import FUNCTIONS
from towers.losses.scores import Scores

ONE_SUM = [get_args(loss.model_fields["name"].annotation)[0] for loss in LOSSES if loss.one_sum]
JOINED = [case for case in CASES if case[0] in ONE_SUM and case[1].get("positive") != "excluded"]
WEIGHT = 3


def shown(name: str) -> tuple[np.ndarray, np.ndarray]:
    """Scores [6, 4] of impressions and which there are; the fifth query has none."""
    rng = np.random.default_rng(len(name))
    there = rng.random((6, 4)) < 0.6
    there[4] = False
    return rng.uniform(-1, 1, (6, 4)) if name in COSINES else rng.normal(0, 2, (6, 4)), there


def counts_terms(case: tuple[str, dict[str, Any]]) -> bool:
    """Whether nothing of a loss depends on the number of columns: neither a smoothed label nor a mean."""
    return case[0] != "bsl" and not case[1].get("label_smoothing")


def joined(given: World, name: str, weight: float = WEIGHT) -> Scores:
    scores, there = shown(name)
    return with_impressions(given.scores(), tf.constant(scores, tf.float32), tf.constant(there), weight)


def queries(given: World, name: str) -> list[Query]:
    """An impression of weight 3 is three candidates with log Q = 0."""
    scores, there = shown(name)
    found = given.queries()
    for query, own, exist in zip(found, scores, there, strict=True):
        query.negatives += [*own[exist]] * WEIGHT
        query.log_q_negatives += [0.0] * int(exist.sum()) * WEIGHT
    return found


@pytest.mark.parametrize("shared_log_q", [True, False], ids=["log_q [M]", "log_q [B, M]"])
@pytest.mark.parametrize("case", [case for case in JOINED if counts_terms(case)], ids=label_of)
def test_an_impression_of_weight_3_is_three_candidates_without_log_q(
    case: tuple[str, dict[str, Any]], shared_log_q: bool
) -> None:
    name, options = case
    for seed in range(3):
        given = world(name, shared_log_q, seed)
        got, _, _ = evaluate(name, options, joined(given, name), supplied(name, options, given))
        wanted = [REFERENCES[name](query, **options) for query in queries(given, name)]
        np.testing.assert_allclose(got, wanted, rtol=2e-5, atol=2e-5)


def test_a_smoothed_label_is_spread_over_the_columns() -> None:
    """Cross-entropy of the softmax whose logits are l_k, l_j and log w + s_i."""
    options = {"correction": 0.5, "positive": "included", "label_smoothing": 0.1}
    given = world("sampled_softmax")
    got, _, _ = evaluate("sampled_softmax", options, joined(given, "sampled_softmax"), {})
    scores, there = shown("sampled_softmax")
    for query, own, exist, loss in zip(given.queries(), scores, there, got.numpy(), strict=True):
        positives = [s - 0.5 * q for s, q in zip(query.positives, query.log_q_positives, strict=True)]
        negatives = [s - 0.5 * q for s, q in zip(query.negatives, query.log_q_negatives, strict=True)]
        logits = [*positives, *negatives, *(own[exist] + math.log(WEIGHT))]
        whole = sum(math.exp(logit) for logit in logits)
        label = [0.9 / len(positives) * (place < len(positives)) + 0.1 / len(logits) for place in range(len(logits))]
        wanted = -sum(t * math.log(math.exp(logit) / whole) for t, logit in zip(label, logits, strict=True))
        assert loss == pytest.approx(wanted, rel=1e-5)


@pytest.mark.parametrize("group", ["own", "batch"])
def test_the_mean_of_bsl_is_over_the_columns(group: str) -> None:
    """t2 log [(sum_j exp l_j + w sum_i exp s_i) / (columns)], the impressions never among the user's own positives."""
    options = BSL | {"negative_scale": 0.7, "correction": 0.5, "positive_group": group}
    given = world("bsl")
    got, _, _ = evaluate("bsl", options, joined(given, "bsl"), supplied("bsl", options, given))
    scores, there = shown("bsl")
    left = given._replace(mask=given.mask & ~given.same) if group == "batch" else given
    for query, own, exist, loss in zip(left.queries(), scores, there, got.numpy(), strict=True):
        if not query.negatives and not exist.any():
            assert loss == 0
            continue
        positives = [s - 0.5 * q for s, q in zip(query.positives, query.log_q_positives, strict=True)]
        total = sum(math.exp(s - 0.5 * q) for s, q in zip(query.negatives, query.log_q_negatives, strict=True))
        total += WEIGHT * sum(math.exp(s) for s in own[exist])
        columns = len(query.negatives) + int(exist.sum())
        positives += [s - 0.5 * q for s, q in query.same] if group == "batch" else []
        attracted = (
            math.log(sum(map(math.exp, positives)) / len(positives))
            if group == "batch"
            else sum(positives) / len(positives)
        )
        assert loss == pytest.approx(0.7 * math.log(total / columns) - attracted, rel=1e-4)


def test_the_sum_of_a_querys_own_candidates() -> None:
    """log [sum_k exp l_k + w sum_i exp s_i]; with the sampled ones beside it that is the softmax."""
    given = world("sampled_softmax")
    scores, there = shown("sampled_softmax")
    got = own_sum(
        tf.constant(given.positive, tf.float32),
        tf.constant(given.present),
        tf.constant(scores, tf.float32),
        tf.constant(there),
        WEIGHT,
    )
    for loss, positive, present, own, exist in zip(
        got.numpy(), given.positive, given.present, scores, there, strict=True
    ):
        total = sum(math.exp(s) for s in positive[present]) + WEIGHT * sum(math.exp(s) for s in own[exist])
        assert loss == pytest.approx(math.log(total), rel=1e-5)


@pytest.mark.parametrize("case", JOINED, ids=label_of)
def test_one_that_is_not_there_has_no_say_and_gets_no_gradient(case: tuple[str, dict[str, Any]]) -> None:
    name, options = case
    given = world(name)
    more = supplied(name, options, given)
    scores, there = shown(name)
    results = [
        evaluate(
            name,
            options,
            with_impressions(given.scores(), tf.constant(each, tf.float32), tf.constant(there), WEIGHT),
            more,
        )
        for each in (scores, np.where(there, scores, 1e4))
    ]
    for one, other in zip(*results, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-7)
    np.testing.assert_array_equal(results[1][2].numpy()[:, 9:][~there], 0)
    assert results[1][2].numpy()[:, 9:][there].any()


@pytest.mark.parametrize("dtype", [tf.float32, tf.float16, tf.bfloat16], ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("weight", [1e-30, 1e30])
@pytest.mark.parametrize("case", JOINED, ids=label_of)
def test_extremes_stay_finite(case: tuple[str, dict[str, Any]], weight: float, dtype: tf.DType) -> None:
    name, options = case
    given = world(name)._replace(mask=np.zeros((6, 9), bool))
    huge = tf.constant([[1e4, -1e4, 1.0, 0.0]] * 6, dtype)
    for there in (True, False):
        scores = with_impressions(given.scores(dtype), huge, tf.fill([6, 4], there), weight)
        for result in evaluate(name, options, scores, supplied(name, options, given)):
            assert np.isfinite(tf.cast(result, tf.float32)).all()


@pytest.mark.parametrize("case", JOINED, ids=label_of)
def test_they_compile_and_stay_on_a_gpu(case: tuple[str, dict[str, Any]]) -> None:
    name, options = case
    given = world(name)
    inputs = (given.scores(), tf.constant(shown(name)[0], tf.float32), tf.constant(shown(name)[1]))
    more = supplied(name, options, given)

    def run(scores: Scores, own: tf.Tensor, there: tf.Tensor, more: dict[str, tf.Tensor]) -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            tape.watch([scores.positive, scores.negative, own])
            losses = FUNCTIONS[name](with_impressions(scores, own, there, WEIGHT), **options, **more)
        return [losses, *tape.gradient(losses, [scores.positive, scores.negative, own])]

    plain = tf.function(run, autograph=False)
    assert problems(plain.get_concrete_function(*inputs, more).graph) == []
    compiled = tf.function(run, autograph=False, jit_compile=True)(*inputs, more)
    for one, other in zip(plain(*inputs, more), compiled, strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-5, atol=2e-6)
