"""What the formulas imply: losses that equal one another, limits, facts of the metric, and where gradients go."""

import math
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.support.loss_cases import BSL, CASES, CIRCLE, MARGIN, SOFTMAX, TRIPLET, evaluate, label_of, supplied, world
from towers.config.recipe import parse_config
from towers.losses.registry import FUNCTIONS
from towers.losses.scores import EPSILON, Scores, euclidean, sqrt_1_minus_cos
from towers.samplers.registry import build_sampler


def scores_of(positive: Any, negative: Any, log_q_positive: Any = 0.0, log_q_negative: Any = 0.0) -> Scores:
    """Scores of which everything counts; log Q is broadcast."""
    positive, negative = tf.constant(positive, tf.float32), tf.constant(negative, tf.float32)
    return Scores(
        positive,
        negative,
        tf.ones(positive.shape, tf.bool),
        tf.ones(negative.shape, tf.bool),
        tf.constant(np.broadcast_to(log_q_positive, positive.shape), tf.float32),
        tf.constant(np.broadcast_to(log_q_negative, negative.shape), tf.float32),
    )


def cosines(batch: int, columns: int, seed: int = 4) -> np.ndarray:
    return np.random.default_rng(seed).uniform(-1, 1, (batch, columns)).astype(np.float32)


def softmax_of(logits: np.ndarray) -> np.ndarray:
    """TensorFlow's own cross-entropy, the first column the positive."""
    return tf.nn.sparse_softmax_cross_entropy_with_logits(np.zeros(len(logits), int), logits).numpy()


@pytest.mark.parametrize("name", ["sampled_softmax", "am_softmax", "distance_softmax", "pair"])
def test_a_uniform_log_q_changes_no_softmax(name: str) -> None:
    options: dict[str, Any] = {
        "sampled_softmax": SOFTMAX,
        "am_softmax": MARGIN | {"correction": 1.0},
        "distance_softmax": MARGIN | {"correction": 1.0},
        "pair": {"scale": 8.0, "margin": 0.1, "correction": 1.0},
    }[name]
    positive, negative = cosines(5, 2), cosines(5, 7, seed=5)
    without = FUNCTIONS[name](scores_of(positive, negative), **options)
    shifted = FUNCTIONS[name](scores_of(positive, negative, -13.0, -13.0), **options)
    np.testing.assert_allclose(shifted, without, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("margin", [0.0, 0.3])
def test_smooth_triplet_of_one_negative_is_the_two_class_softmax(margin: float) -> None:
    both = cosines(6, 2)
    options = TRIPLET | {"smooth": True, "scale": 5.0, "margin": margin}
    got = FUNCTIONS["triplet"](scores_of(both[:, :1], both[:, 1:]), **options)
    np.testing.assert_allclose(
        got, softmax_of(5.0 * (both - np.array([margin, 0.0], np.float32))), rtol=1e-5, atol=1e-6
    )
    two_class = FUNCTIONS["am_softmax"](
        scores_of(both[:, :1], both[:, 1:]), **(MARGIN | {"scale": 5.0, "margin": margin})
    )
    np.testing.assert_allclose(got, two_class, rtol=1e-5)


@pytest.mark.parametrize("margin", [0.0, 0.3])
def test_pair_of_one_positive_is_the_softmax_over_class_centres(margin: float) -> None:
    centres = cosines(6, 9)
    scores = scores_of(centres[:, :1], centres[:, 1:])
    got = FUNCTIONS["pair"](scores, scale=5.0, margin=margin, correction=0.0)
    shift = np.array([margin] + [0.0] * 8, np.float32)
    np.testing.assert_allclose(got, softmax_of(5.0 * (centres - shift)), rtol=1e-5)
    am = FUNCTIONS["am_softmax"](scores, **(MARGIN | {"scale": 5.0, "margin": margin}))
    np.testing.assert_allclose(got, am, rtol=1e-5)


@pytest.mark.parametrize("scale", [10.0, 100.0, 10_000.0])
def test_pair_over_its_scale_tends_to_the_hardest_pair(scale: float) -> None:
    positive, negative = cosines(6, 3), cosines(6, 8, seed=8)
    got = FUNCTIONS["pair"](scores_of(positive, negative), scale=scale, margin=0.1, correction=0.0).numpy() / scale
    hardest = np.maximum(0, negative.max(axis=1) - positive.min(axis=1) + 0.1)
    # 1 + K L terms, the largest of which is e^(g hardest): between it and that many times it.
    assert (got >= hardest - 1e-6).all()
    assert (got <= hardest + math.log(1 + 3 * 8) / scale + 1e-6).all()


@pytest.mark.parametrize("e", [0.0, 0.1])
def test_neg_is_nce_where_every_item_is_expected_once(e: float) -> None:
    """Uniform noise with replacement and k = N: Q = k / N = 1. Both are TensorFlow's sigmoid cross-entropies."""
    items = 9
    uniform = parse_config({"sampler": {"name": "uniform", "negatives": items}}).sampler
    sampler = build_sampler(uniform, np.arange(items, 0, -1), batch_size=6, examples_seen=6)
    drawn = sampler.draw(tf.constant(np.arange(6)[:, None]), tf.constant([0, 1]))
    given = cosines(6, items + 1)
    scores = scores_of(given[:, :1], given[:, 1:], drawn.log_q_positive, drawn.log_q)
    labels = np.eye(items + 1, dtype=np.float32)[[0] * 6] * (1 - e) + e / 2
    wanted = tf.reduce_sum(tf.nn.sigmoid_cross_entropy_with_logits(labels, given), axis=1)
    np.testing.assert_allclose(FUNCTIONS["neg"](scores, label_smoothing=e), wanted, rtol=1e-5)
    np.testing.assert_allclose(FUNCTIONS["nce"](scores, log_z=0.0, label_smoothing=e), wanted, rtol=1e-5)


def test_gbce_is_neg_without_calibration_and_weighs_positives_alike_where_every_other_item_is_a_negative() -> None:
    given = world("neg")
    wanted = FUNCTIONS["neg"](given.scores(), label_smoothing=0.0)
    got = FUNCTIONS["gbce"](given.scores(), calibration=0.0, catalogue=1_000)
    np.testing.assert_allclose(got, wanted, rtol=1e-6)
    scores = scores_of(given.positive, given.negative)  # k = 9 of N = 10
    wanted = FUNCTIONS["neg"](scores, label_smoothing=0.0)
    for t in (0.3, 1.0):
        np.testing.assert_allclose(FUNCTIONS["gbce"](scores, calibration=t, catalogue=10), wanted, rtol=1e-6)


def test_a_catalogue_of_one_item_has_a_finite_gbce() -> None:
    """N - 1 = 0 negatives exist; without the removal of hits the item itself may be drawn."""
    for negatives in ([[]], [[0.5]]):
        losses = FUNCTIONS["gbce"](scores_of([[1.0]], negatives), calibration=0.75, catalogue=1)
        assert np.isfinite(losses).all()


def test_bce_of_ones_and_zeros_is_neg_of_one_positive() -> None:
    scores = np.random.default_rng(0).normal(0, 2, (5, 4))
    labels = tf.constant([[1.0, 0.0, 0.0, 0.0]] * 5)
    got = 4 * FUNCTIONS["bce"](scores_of(scores, scores), labels=labels, label_smoothing=0.0)
    wanted = FUNCTIONS["neg"](scores_of(scores[:, :1], scores[:, 1:]), label_smoothing=0.0)
    np.testing.assert_allclose(got, wanted, rtol=1e-5)


class TestTheMetric:
    def test_the_root_obeys_the_triangle_inequality_and_one_minus_cosine_does_not(self) -> None:
        angle = np.linspace(0, 2 * np.pi, 73)
        a, b, c = np.meshgrid(angle, angle, angle)
        ab, bc, ac = (tf.constant(np.cos(x), tf.float64) for x in (a - b, b - c, a - c))
        for distance in (sqrt_1_minus_cos, euclidean):
            assert (distance(ac) <= distance(ab) + distance(bc) + 1e-12).numpy().all()
        assert (1 - ac > 1 - ab + 1 - bc + 0.1).numpy().any()

    def test_a_cosine_gap_over_2_sqrt_2_m_implies_a_distance_gap_over_m(self) -> None:
        cosine = np.linspace(-1, 1, 1001)
        near, far = np.meshgrid(cosine, cosine)
        gap = (sqrt_1_minus_cos(tf.constant(far)) - sqrt_1_minus_cos(tf.constant(near))).numpy()
        for m in (0.05, 0.2, 0.5, 0.7):
            implied = near - far > 2 * math.sqrt(2) * m
            assert implied.any()
            assert (gap[implied] > m * (1 - EPSILON)).all()
            # The factor is the smallest one: between nearly opposite vectors less does not do.
            if m < 0.1:
                assert (gap[near - far > 0.95 * 2 * math.sqrt(2) * m] < m).any()

    def test_the_gradient_is_finite_at_cosine_one_and_the_bias_is_what_the_docs_say(self) -> None:
        cosine = tf.constant([1.0, 1.0 + 1e-6, 0.99, -1.0])
        with tf.GradientTape() as tape:
            tape.watch(cosine)
            distance = sqrt_1_minus_cos(cosine)
        np.testing.assert_allclose(distance, [1e-3, 1e-3, 0.1 + 5e-6, math.sqrt(2)], rtol=1e-4)
        slope = -1 / (2 * math.sqrt(0.01))
        np.testing.assert_allclose(
            tape.gradient(distance, cosine), [-500, 0, slope, -1 / (2 * math.sqrt(2))], rtol=1e-3
        )

    def test_the_slope_in_the_angle_is_bounded(self) -> None:
        angle = tf.constant(np.linspace(-3.14, 3.14, 10001))
        with tf.GradientTape() as tape:
            tape.watch(angle)
            distance = sqrt_1_minus_cos(tf.cos(angle))
        assert np.abs(tape.gradient(distance, angle)).max() <= math.sqrt(0.5) + 1e-9


def test_circle_takes_no_gradient_through_its_pace() -> None:
    """With the paces held fixed the loss is softplus(A + B): dL/ds_n = sig(A + B) softmax_j g a_n, alike for s_p."""
    given = world("circle")
    positive, negative = given.positive[:1, :1], given.negative[:1]
    _, to_positive, to_negative = evaluate("circle", CIRCLE, scores_of(positive, negative), {})
    g, m = 8.0, 0.25
    a_p, a_n = np.maximum(1 + m - positive[0], 0), np.maximum(negative[0] + m, 0)
    term_n, term_p = np.exp(g * a_n * (negative[0] - m)), np.exp(-g * a_p * (positive[0] - (1 - m)))
    share = term_n.sum() * term_p.sum() / (1 + term_n.sum() * term_p.sum())
    np.testing.assert_allclose(to_negative[0], share * term_n / term_n.sum() * g * a_n, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(to_positive[0], -share * g * a_p, rtol=1e-4)


def test_a_list_of_one_grade_costs_nothing() -> None:
    for pairs in ("list", "batch"):
        losses, gradient, _ = evaluate(
            "graded_hinge",
            {"margin": 0.2, "pairs": pairs},
            scores_of(cosines(3, 4), cosines(3, 0)),
            {"labels": tf.fill([3, 4], 2.0)},
        )
        np.testing.assert_array_equal(losses, np.zeros(3))
        np.testing.assert_array_equal(gradient, np.zeros((3, 4)))


def test_graded_hinge_takes_a_larger_gap_of_grades_for_more() -> None:
    """Scores 0, 0 and grades 0, 2 against 0, 1 in one list: equal hinges, weights 2 and 1 and 1: all alike costs m."""
    scores, labels = scores_of([[0.0, 0.0, 0.0]], cosines(1, 0)), tf.constant([[0.0, 1.0, 3.0]])
    losses, gradient, _ = evaluate("graded_hinge", {"margin": 0.2, "pairs": "list"}, scores, {"labels": labels})
    np.testing.assert_allclose(losses, [0.2], rtol=1e-6)
    # Weights 1 (1 over 0), 3 (3 over 0), 2 (3 over 1), of 6: an item falls under those above it, and rises over others.
    np.testing.assert_allclose(gradient, [[4 / 6, (2 - 1) / 6, -5 / 6]], rtol=1e-5)


class TestBilateral:
    def test_the_positive_is_not_among_the_negatives(self) -> None:
        """The first term alone has it: its gradient is -1 / K, and the negatives' is t2 times a softmax of theirs."""
        given = world("bsl")
        scores = scores_of(given.positive, given.negative)
        _, to_positive, to_negative = evaluate("bsl", BSL | {"negative_scale": 0.7}, scores, {})
        np.testing.assert_allclose(to_positive, np.full((6, 3), -1 / 3), rtol=1e-6)
        wanted = 0.7 * tf.nn.softmax(scores.negative)
        np.testing.assert_allclose(to_negative, wanted, rtol=1e-4, atol=1e-7)

    def test_the_same_users_columns_attract_and_never_repel(self) -> None:
        given = world("bsl")
        scores = scores_of(given.positive, given.negative)
        options = BSL | {"positive_group": "batch"}
        _, to_positive, to_negative = evaluate("bsl", options, scores, {"same_query": tf.constant(given.same)})
        own = np.eye(6, 9, dtype=bool)
        assert (to_negative.numpy()[given.same & ~own] < 0).all()
        # The own column, the first positive once more, is in neither term.
        np.testing.assert_array_equal(to_negative.numpy()[own], np.zeros(6))
        attraction = to_positive.numpy().sum(axis=1) + (to_negative.numpy() * given.same).sum(axis=1)
        np.testing.assert_allclose(attraction, -np.ones(6), rtol=1e-5)

    def test_without_other_positives_batch_is_own(self) -> None:
        given = world("bsl")
        scores = scores_of(given.positive[:, :1], given.negative)
        own = FUNCTIONS["bsl"](scores, **BSL)
        for same in (None, tf.zeros([6, 9], tf.bool)):
            got = FUNCTIONS["bsl"](scores, **(BSL | {"positive_group": "batch"}), same_query=same)
            np.testing.assert_allclose(got, own, rtol=1e-5)


class TestExcluded:
    def test_over_all_other_items_its_gradient_is_the_full_softmaxs(self) -> None:
        """Uniform q, each other item drawn once: Q' = (N - 1) (1/N) / (1 - 1/N) = 1."""
        items = 8
        logits = np.random.default_rng(2).normal(0, 2, (4, items)).astype(np.float32)
        mask = np.ones((4, items), bool)
        mask[:, 0] = False
        scores = scores_of(logits[:, :1], logits)._replace(negative_mask=tf.constant(mask))
        _, to_positive, to_negative = evaluate("sampled_softmax", SOFTMAX | {"positive": "excluded"}, scores, {})
        wanted = tf.nn.softmax(logits).numpy()
        np.testing.assert_allclose(to_positive[:, 0], wanted[:, 0] - 1, rtol=1e-4)
        np.testing.assert_allclose(to_negative[:, 1:], wanted[:, 1:], rtol=1e-4, atol=1e-7)
        np.testing.assert_array_equal(to_negative[:, 0], np.zeros(4))

    def test_an_item_that_is_every_draw_leaves_the_loss_finite(self) -> None:
        scores = scores_of([[1.0]], [[1.0, 2.0]], math.log(2), math.log(2))  # q = 1
        losses, to_positive, _ = evaluate("sampled_softmax", SOFTMAX | {"positive": "excluded"}, scores, {})
        assert np.isfinite(losses).all()
        assert np.isfinite(to_positive).all()


@pytest.mark.parametrize("case", CASES, ids=label_of)
def test_the_order_of_the_batch_changes_nothing(case: tuple[str, dict[str, Any]]) -> None:
    name, options = case
    given = world(name, shared_log_q=False)
    # A query's own column is named by its place, so without one each query keeps its row whatever the order.
    given = given._replace(same=given.same & ~np.eye(6, 9, dtype=bool) & (np.arange(9) >= 6))
    order = np.random.default_rng(1).permutation(6)
    shuffled = given.taken(order)
    before, after = (
        FUNCTIONS[name](there.scores(), **options, **supplied(name, options, there)) for there in (given, shuffled)
    )
    np.testing.assert_allclose(after, before.numpy()[order], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("case", CASES, ids=label_of)
def test_the_order_of_candidates_and_positives_changes_nothing(case: tuple[str, dict[str, Any]]) -> None:
    name, options = case
    given = world(name, shared_log_q=True)
    same = given.same & (np.arange(9) >= 6)
    columns = np.concatenate([np.arange(6), 6 + np.random.default_rng(1).permutation(3)])
    places = np.array([2, 0, 1])
    shuffled = given._replace(
        positive=given.positive[:, places],
        present=given.present[:, places],
        log_q_positive=given.log_q_positive[:, places],
        labels=given.labels[:, places],
        negative=given.negative[:, columns],
        mask=given.mask[:, columns],
        log_q_negative=given.log_q_negative[columns],
        same=same[:, columns],
    )
    before, after = (
        FUNCTIONS[name](there.scores(), **options, **supplied(name, options, there))
        for there in (given._replace(same=same), shuffled)
    )
    np.testing.assert_allclose(after, before, rtol=1e-5, atol=1e-6)
