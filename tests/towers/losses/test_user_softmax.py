"""The softmax of whole users in one pass, against the formula by slow loops in float64."""

import numpy as np
import pytest
import tensorflow as tf

import towers.losses.blockwise_softmax
from towers.losses.user_softmax import Teacher, user_softmax

USERS, ITEMS, WIDTH, LONGEST, WIDER, SHARE = 9, 7, 3, 8, 5, 0.3


def users(seed: int = 0) -> tuple[np.ndarray, ...]:
    """Queries, vectors, weights, lists of items with repeats, and which of these are there: the last user has all."""
    rng = np.random.default_rng(seed)
    item = rng.integers(0, ITEMS, (USERS, LONGEST))
    present = np.arange(LONGEST) < rng.integers(1, LONGEST, USERS)[:, np.newaxis]
    item[-1], present[-1] = [*range(ITEMS), 0], True
    return (
        rng.normal(size=(USERS, WIDTH)),
        rng.normal(size=(ITEMS, WIDTH)),
        rng.uniform(0.5, 2, USERS),
        item,
        present,
    )


def teacher(seed: int = 5) -> tuple[np.ndarray, np.ndarray]:
    """Its queries and vectors."""
    rng = np.random.default_rng(seed)
    return rng.normal(size=(USERS, WIDER)), rng.normal(size=(ITEMS, WIDER))


def slow(
    query: np.ndarray,
    vector: np.ndarray,
    weight: np.ndarray,
    item: np.ndarray,
    present: np.ndarray,
    taught: tuple[np.ndarray, np.ndarray] | None = None,
) -> float:
    total = entropy = 0.0
    for u in range(len(query)):
        own = {int(each) for each, there in zip(item[u], present[u], strict=True) if there}
        scores, left = vector @ query[u], [j for j in range(len(vector)) if j not in own]
        others = sum(np.exp(scores[j]) for j in left)
        total += weight[u] * np.mean([np.log(np.exp(scores[y]) + others) - scores[y] for y in own])
        if taught is not None and left:
            wanted = np.exp(taught[1] @ taught[0][u])[left]
            t, p = wanted / wanted.sum(), np.exp(scores[left]) / others
            entropy += weight[u] * float(np.sum(t * np.log(t / p)))
    return total if taught is None else (1 - SHARE) * total + SHARE * entropy


def fast(
    parts: tuple[np.ndarray, ...], taught: tuple[np.ndarray, np.ndarray] | None = None
) -> tuple[float, np.ndarray, np.ndarray]:
    """The loss and its gradients."""
    query, vector, weight = (tf.constant(each, tf.float32) for each in parts[:3])
    goal = None if taught is None else Teacher(*(tf.constant(each, tf.float32) for each in taught), SHARE)
    with tf.GradientTape() as tape:
        tape.watch([query, vector])
        loss = user_softmax(query, vector, tf.constant(parts[3]), tf.constant(parts[4]), weight, goal)
    return float(loss), *(np.asarray(each) for each in tape.gradient(loss, [query, vector]))


@pytest.mark.parametrize("taught", [None, teacher()], ids=["alone", "taught"])
@pytest.mark.parametrize("block", [2, 100])
def test_the_loss_is_the_formula_and_the_gradients_are_its_slopes(
    block: int, taught: tuple[np.ndarray, np.ndarray] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(towers.losses.blockwise_softmax, "FEWEST", block)
    monkeypatch.setattr(towers.losses.blockwise_softmax, "SCORES", 1)
    parts = users()
    loss, *gradients = fast(parts, taught)
    assert loss == pytest.approx(slow(*parts, taught), rel=1e-5)
    for place, gradient in enumerate(gradients):
        for row, column in np.ndindex(gradient.shape):
            ends = []
            for step in (1e-6, -1e-6):
                moved = [each.copy() for each in parts]
                moved[place][row, column] += step
                ends.append(slow(*moved, taught))
            assert gradient[row, column] == pytest.approx((ends[0] - ends[1]) / 2e-6, rel=1e-3, abs=1e-5)


@pytest.mark.parametrize("taught", [None, (teacher()[0][-1:], teacher()[1])], ids=["alone", "taught"])
def test_a_user_who_took_everything_learns_nothing(taught: tuple[np.ndarray, np.ndarray] | None) -> None:
    parts = tuple(each[-1:] if len(each) == USERS else each for each in users())
    loss, *gradients = fast(parts, taught)
    assert loss == 0 and not any(gradient.any() for gradient in gradients)


def test_of_a_teacher_that_agrees_the_events_alone_are_left() -> None:
    parts = users()
    loss, *gradients = fast(parts, (parts[0], parts[1]))
    alone, *expected = fast(parts)
    assert loss == pytest.approx((1 - SHARE) * alone, rel=1e-5)
    for gradient, each in zip(gradients, expected, strict=True):
        np.testing.assert_allclose(gradient, (1 - SHARE) * each, rtol=1e-4, atol=1e-6)


def test_a_user_of_one_item_has_the_full_softmax() -> None:
    query, vector, weight, *_ = users(1)
    item = np.arange(USERS)[:, np.newaxis] % ITEMS
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(item[:, 0], query @ vector.T)
    loss = fast((query, vector, weight, item, np.ones(item.shape, bool)))[0]
    assert loss == pytest.approx(float(tf.reduce_sum(losses * weight)), rel=1e-5)


def test_it_compiles_with_xla_with_its_gradients() -> None:
    parts, taught = users(), teacher()
    query, vector, weight = (tf.constant(each, tf.float32) for each in parts[:3])
    goal = Teacher(*(tf.constant(each, tf.float32) for each in taught), SHARE)

    @tf.function(jit_compile=True)
    def compiled(query: tf.Tensor, vector: tf.Tensor) -> tuple[tf.Tensor, list[tf.Tensor]]:
        with tf.GradientTape() as tape:
            tape.watch([query, vector])
            loss = user_softmax(query, vector, tf.constant(parts[3]), tf.constant(parts[4]), weight, goal)
        return loss, tape.gradient(loss, [query, vector])

    loss, gradients = compiled(query, vector)
    wanted = fast(parts, taught)
    assert float(loss) == pytest.approx(slow(*parts, taught), rel=1e-5)
    for gradient, expected in zip(gradients, wanted[1:], strict=True):
        np.testing.assert_allclose(gradient, expected, rtol=1e-4, atol=1e-6)


def test_in_bfloat16_it_is_close_and_not_the_same() -> None:
    query, vector, weight, item, present = users()
    floats = [tf.constant(each, tf.float32) for each in (query, vector)]
    goal = Teacher(*(tf.constant(each, tf.float32) for each in teacher()), SHARE)
    own = tf.constant(item), tf.constant(present), tf.constant(weight, tf.float32), goal
    rounded = float(user_softmax(*floats, *own, half=True))
    assert rounded == pytest.approx(slow(query, vector, weight, item, present, teacher()), rel=2e-2)
    assert rounded != float(user_softmax(*floats, *own))
