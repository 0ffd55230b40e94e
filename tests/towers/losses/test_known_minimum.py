"""A world whose answer is known: the minimum of each loss where items follow P(item | query) and draws follow q.

Every positive and every tuple of k draws is in the batch once, with its probability as weight: the expected loss is
exact, nothing is sampled, and its minimum is the closed form.
"""

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from numpy.typing import NDArray
from scipy.optimize import minimize

from tests.support.loss_cases import SOFTMAX
from towers.losses.scores import Scores
from towers.losses.softmax import sampled_softmax
from towers.losses.two_terms import gbce, nce, neg

P = np.array([[0.55, 0.25, 0.15, 0.05], [0.1, 0.2, 0.3, 0.4]])  # P(item | query); both queries equally likely
Q = np.array([0.4, 0.35, 0.2, 0.05])
QUERIES, ITEMS = P.shape
Loss = Callable[[Scores, tf.Tensor], tf.Tensor]


class Enumerated:
    """All (query, positive, k draws), accidental hits kept."""

    def __init__(self, draws: int) -> None:
        rows = list(itertools.product(range(QUERIES), range(ITEMS), *[range(ITEMS)] * draws))
        self.query, self.positive = np.array([row[0] for row in rows]), np.array([row[1] for row in rows])
        self.drawn = np.array([row[2:] for row in rows])
        self.weight = P[self.query, self.positive] * Q[self.drawn].prod(axis=1) / QUERIES
        self.log_q = np.log(draws * Q)

    def scores(self, table: tf.Tensor) -> Scores:
        """Scores [rows, 1] and [rows, k] out of a table [queries, items]."""
        of_query = tf.gather(table, self.query)
        return Scores(
            tf.gather(of_query, self.positive[:, None], batch_dims=1),
            tf.gather(of_query, self.drawn, batch_dims=1),
            tf.ones([len(self.query), 1], tf.bool),
            tf.ones(self.drawn.shape, tf.bool),
            tf.constant(self.log_q[self.positive][:, None], tf.float32),
            tf.constant(self.log_q[self.drawn], tf.float32),
        )


def minimum(loss: Loss, draws: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """The table [queries, items] and one more number for each query at which the expected loss is least."""
    world = Enumerated(draws)

    @tf.function(input_signature=[tf.TensorSpec([QUERIES, ITEMS + 1])], autograph=False)
    def expected(parameters: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        with tf.GradientTape() as tape:
            tape.watch(parameters)
            losses = loss(world.scores(parameters[:, :ITEMS]), tf.gather(parameters[:, ITEMS], world.query))
            total = tf.reduce_sum(losses * tf.constant(world.weight, tf.float32))
        return total, tape.gradient(total, parameters)

    def at(flat: NDArray[Any]) -> tuple[float, NDArray[Any]]:
        value, gradient = expected(tf.constant(flat.reshape(QUERIES, ITEMS + 1), tf.float32))
        return float(value), gradient.numpy().astype(float).ravel()

    found = minimize(at, np.zeros(QUERIES * (ITEMS + 1)), jac=True, method="BFGS", options={"gtol": 1e-7})
    table = found.x.reshape(QUERIES, ITEMS + 1)
    return table[:, :ITEMS], table[:, ITEMS]


def centred(table: NDArray[Any]) -> NDArray[Any]:
    return table - table.mean(axis=1, keepdims=True)


def softmax(correction: float) -> Loss:
    return lambda scores, _: sampled_softmax(scores, **(SOFTMAX | {"correction": correction}))


@pytest.mark.parametrize("draws", [1, pytest.param(2, marks=pytest.mark.long), 4])
class TestTheOptimum:
    def test_of_the_corrected_softmax_is_log_p_and_a_constant(self, draws: int) -> None:
        table, _ = minimum(softmax(1.0), draws)
        np.testing.assert_allclose(centred(table), centred(np.log(P)), atol=0.005)

    def test_of_the_uncorrected_softmax_is_a_score_discounted_by_popularity(self, draws: int) -> None:
        table, _ = minimum(softmax(0.0), draws)
        np.testing.assert_allclose(centred(table), centred(np.log(P / Q)), atol=0.005)

    def test_of_a_half_corrected_softmax_is_half_discounted(self, draws: int) -> None:
        table, _ = minimum(softmax(0.5), draws)
        np.testing.assert_allclose(centred(table), centred(np.log(P / np.sqrt(Q))), atol=0.005)

    def test_of_nce_is_log_p_itself_where_z_is_fixed(self, draws: int) -> None:
        table, _ = minimum(lambda scores, _: nce(scores, log_z=0.0, label_smoothing=0.0), draws)
        np.testing.assert_allclose(table, np.log(P), atol=0.005)

    def test_of_nce_with_log_z_per_query_is_log_p_and_log_z(self, draws: int) -> None:
        table, log_z = minimum(lambda scores, log_z: nce(scores, log_z=log_z, label_smoothing=0.0), draws)
        np.testing.assert_allclose(table - log_z[:, None], np.log(P), atol=0.005)
        assert (np.abs(log_z) > 0.05).all()  # it started at 0, where table would be log P itself

    def test_of_neg_is_log_p_over_k_q(self, draws: int) -> None:
        table, _ = minimum(lambda scores, _: neg(scores, label_smoothing=0.0), draws)
        np.testing.assert_allclose(table, np.log(P / (draws * Q)), atol=0.005)

    @pytest.mark.parametrize("calibration", [0.4, 1.0])
    def test_of_gbce_is_that_of_neg_and_log_beta(self, draws: int, calibration: float) -> None:
        table, _ = minimum(lambda scores, _: gbce(scores, calibration=calibration, catalogue=ITEMS), draws)
        rate = draws / (ITEMS - 1)
        beta = rate * (calibration * (1 - 1 / rate) + 1 / rate)
        np.testing.assert_allclose(table, np.log(beta * P / (draws * Q)), atol=0.005)
        if calibration == 1:  # whatever the number of draws
            np.testing.assert_allclose(table, np.log(P / (Q * (ITEMS - 1))), atol=0.005)


def spread_over_seeds(loss: Loss, draws: int) -> float:
    """Variance of what n examples teach, times n, summed over the items; the mean over queries.

    Near the optimum an estimate has the covariance ``H^+ S H^+ / n``: S that of one example's gradient, H the Hessian.
    Source: van der Vaart, Asymptotic statistics, 1998, theorem 5.21.
    """
    world = Enumerated(draws)
    with tf.GradientTape(persistent=True) as outer:
        table = tf.constant(np.log(P), tf.float32)
        outer.watch(table)
        with tf.GradientTape() as inner:
            own = tf.one_hot(world.query, QUERIES) @ table
            inner.watch(own)
            scores = world.scores(table)._replace(
                positive=tf.gather(own, world.positive[:, None], batch_dims=1),
                negative=tf.gather(own, world.drawn, batch_dims=1),
            )
            losses = loss(scores, tf.zeros(world.query.shape))
        gradient = inner.gradient(losses, own)
        weighted = tf.cast(gradient, tf.float64) * (QUERIES * world.weight)[:, None]
        means = [[tf.reduce_sum(weighted[:, i][world.query == q]) for i in range(ITEMS)] for q in range(QUERIES)]
    spread = 0.0
    for q in range(QUERIES):
        np.testing.assert_allclose(means[q], np.zeros(ITEMS), atol=1e-6)  # it is the optimum
        hessian = np.array([outer.gradient(mean, table)[q] for mean in means[q]], float)
        rows, chance = gradient.numpy()[world.query == q].astype(float), QUERIES * world.weight[world.query == q]
        inverse = np.linalg.pinv(hessian, rcond=1e-4)
        spread += np.trace(inverse @ (rows.T * chance @ rows) @ inverse) / QUERIES
    return spread


def test_the_spread_of_sampled_softmax_falls_with_every_draw_towards_that_of_the_full_one() -> None:
    spread = [spread_over_seeds(softmax(1.0), draws) for draws in (1, 2, 3, 4)]
    assert (np.diff(spread) < 0).all(), spread
    full = np.mean([np.trace(np.linalg.pinv(np.diag(p) - np.outer(p, p))) for p in P])  # of a multinomial
    assert spread[-1] > full


@pytest.mark.parametrize("draws", [1, 2, 4])
def test_the_spread_of_nce_is_that_of_the_positives_and_a_kth_of_that_of_the_noise(draws: int) -> None:
    """One score for each pair, so NCE only counts: log of a frequency among n positives less one among n k draws."""
    wanted = np.mean([np.sum(1 / p - 1) + np.sum(1 / Q - 1) / draws for p in P])
    got = spread_over_seeds(lambda scores, _: nce(scores, log_z=0.0, label_smoothing=0.0), draws)
    np.testing.assert_allclose(got, wanted, rtol=1e-4)
