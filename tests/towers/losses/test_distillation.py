"""Distillation in one pass, against the relative entropy by slow loops in float64."""

import numpy as np
import pytest
import tensorflow as tf

import towers.losses.blockwise_softmax
from towers.losses.blockwise_softmax import Candidates
from towers.losses.distillation import Side, distillation
from towers.losses.scores import known

QUERIES, ITEMS, WIDTH, WIDER = 9, 7, 3, 5
NAMES = np.array([5, 9, 5, 0, 2, 9, 4])
MASK = np.array([True, True, True, False, True, True, True])


def side(width: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.normal(size=(QUERIES, width)), rng.normal(size=QUERIES), rng.normal(size=(ITEMS, width))


def as_side(parts: tuple[np.ndarray, np.ndarray, np.ndarray]) -> Side:
    return Side(*(tf.constant(part, tf.float32) for part in parts))


def slow(
    student: tuple[np.ndarray, ...],
    teacher: tuple[np.ndarray, ...],
    weight: np.ndarray,
    offset: np.ndarray,
    counts: np.ndarray,
) -> float:
    """The formula, query by query: the positive, then each candidate that counts."""
    total = 0.0
    for i in range(QUERIES):
        logits = [
            [own[i], *(query[i] @ vector[j] + offset[j] for j in range(ITEMS) if counts[i, j])]
            for query, own, vector in (student, teacher)
        ]
        log_p, log_t = (np.array(each) - np.log(np.sum(np.exp(each))) for each in logits)
        total += weight[i] * float(np.sum(np.exp(log_t) * (log_t - log_p)))
    return total


def masks(kind: str) -> tuple[dict[str, object], np.ndarray]:
    """What hides candidates, and which count for which query."""
    banned = np.random.default_rng(3).integers(-1, 10, (QUERIES, 2))
    hits = (banned[:, :, np.newaxis] == NAMES).any(axis=1)
    counts = np.broadcast_to(MASK, (QUERIES, ITEMS))
    if kind == "excluded":
        return {"excluded": tf.constant(banned)}, counts & ~hits
    if kind == "known":
        return {"known": known(tf.constant(banned), tf.constant(NAMES), 10)}, counts & ~hits
    if kind == "all":
        everything = np.broadcast_to(np.array([5, 9, 2, 4]), (QUERIES, 4))
        return {"excluded": tf.constant(everything)}, np.zeros((QUERIES, ITEMS), bool)
    return {}, counts


@pytest.mark.parametrize("block", [2, 100])
@pytest.mark.parametrize("kind", ["none", "excluded", "known", "all"])
def test_value_and_gradients_are_those_of_the_formula(kind: str, block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(towers.losses.blockwise_softmax, "FEWEST", block)
    monkeypatch.setattr(towers.losses.blockwise_softmax, "SCORES", 1)
    student, teacher = side(WIDTH, 0), side(WIDER, 1)
    weight, offset = np.arange(QUERIES) / 4, np.random.default_rng(2).normal(size=ITEMS)
    hiding, counts = masks(kind)
    candidates = Candidates(
        tf.zeros([ITEMS, 0]),
        tf.constant(offset, tf.float32),
        tf.constant(MASK),
        tf.constant(NAMES, tf.int64),
        **{"excluded": None} | hiding,
    )

    taught = as_side(teacher)
    with tf.GradientTape(persistent=True) as tape:
        learner = as_side(student)
        tape.watch([*learner, *taught])
        loss = 2 * distillation(learner, taught, tf.constant(weight, tf.float32), candidates)
    assert tape.gradient(loss, list(taught)) == [None, None, None]
    assert float(loss) == pytest.approx(2 * slow(student, teacher, weight, offset, counts), rel=1e-5, abs=1e-6)
    gradients = tape.gradient(loss, list(learner))
    step = 1e-5
    for place, gradient in enumerate(gradients):
        numeric = np.zeros(student[place].shape)
        for index in np.ndindex(*numeric.shape):
            moved = []
            for way in (step, -step):
                parts = [each.copy() for each in student]
                parts[place][index] += way
                moved.append(slow(tuple(parts), teacher, weight, offset, counts))
            numeric[index] = 2 * (moved[0] - moved[1]) / (2 * step)
        np.testing.assert_allclose(gradient.numpy(), numeric, rtol=1e-4, atol=1e-5)


def test_a_student_that_agrees_has_no_loss_and_no_gradient() -> None:
    parts = as_side(side(WIDTH, 0))
    candidates = Candidates(
        tf.zeros([ITEMS, 0]), tf.zeros(ITEMS), tf.constant(MASK), tf.constant(NAMES, tf.int64), None
    )
    with tf.GradientTape() as tape:
        tape.watch(list(parts))
        loss = distillation(parts, as_side(side(WIDTH, 0)), tf.ones(QUERIES), candidates)
    assert float(loss) == pytest.approx(0, abs=1e-6)
    for gradient in tape.gradient(loss, list(parts)):
        np.testing.assert_allclose(gradient.numpy(), 0, atol=1e-6)


@pytest.mark.parametrize("size", [1e4, -1e4])
def test_great_scores_keep_it_finite(size: float) -> None:
    query, own, vector = side(WIDTH, 0)
    far = as_side((query * size, own * size, vector))
    candidates = Candidates(
        tf.zeros([ITEMS, 0]), tf.zeros(ITEMS), tf.constant(MASK), tf.constant(NAMES, tf.int64), None
    )
    with tf.GradientTape() as tape:
        tape.watch(list(far))
        loss = distillation(far, as_side(side(WIDER, 1)), tf.ones(QUERIES), candidates)
    assert np.isfinite([float(loss), *(float(tf.reduce_sum(each)) for each in tape.gradient(loss, list(far)))]).all()
