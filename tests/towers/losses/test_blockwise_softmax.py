"""The softmax that makes value and gradients in one pass, against the formula over all scores in float64."""

from itertools import product

import numpy as np
import pytest
import tensorflow as tf

import towers.losses.blockwise_softmax
from towers.losses.blockwise_softmax import Candidates, softmax_losses
from towers.losses.scores import known

QUERIES, ITEMS, WIDTH = 11, 7, 3


def world(excluded: str) -> tuple[tuple[np.ndarray, ...], Candidates, np.ndarray]:
    """Queries, own logits and vectors; the candidates; which of them count for which query: bool [B, M]."""
    rng = np.random.default_rng(0)
    query, own, vector = (rng.normal(size=shape) for shape in ((QUERIES, WIDTH), QUERIES, (ITEMS, WIDTH)))
    offset, name = rng.normal(size=ITEMS), np.array([5, 9, 5, 0, 2, 9, 4])
    mask = np.array([True, True, True, False, True, True, True])
    banned = rng.integers(-1, 10, (QUERIES, 3))
    counts = np.broadcast_to(mask, (QUERIES, ITEMS))
    given, liked = None, None
    if excluded == "known":
        liked = known(tf.constant(banned), tf.constant(name), 10)
    if excluded in ("some", "all of one"):
        if excluded == "all of one":
            name = np.full(ITEMS, 5)
            banned[4, 1] = 5
        given = tf.constant(banned)
    if excluded == "own":
        # As many queries as candidates, of which the first is the first query's own, and so on.
        query, own, counts = query[:ITEMS], own[:ITEMS], counts[:ITEMS] & ~np.eye(ITEMS, dtype=bool)
    elif excluded != "none":
        counts = counts & ~(banned[:, :, np.newaxis] == name).any(axis=1)
    candidates = Candidates(
        tf.constant(vector, tf.float32),
        tf.constant(offset, tf.float32),
        tf.constant(mask),
        tf.constant(name, tf.int64),
        given,
        liked,
        excluded == "own",
    )
    return (query, own, vector, offset), candidates, counts


EXCLUDED = ("none", "some", "known", "all of one", "own")
CELLS = [
    *product(EXCLUDED, (1, 4, 5, 100), [False]),
    *product(EXCLUDED, [4], [True]),
    # XLA compiles one block as one of several.
    ("none", 100, True),
    *(pytest.param(excluded, 100, True, marks=pytest.mark.long) for excluded in EXCLUDED[1:]),
]


@pytest.mark.parametrize(("excluded", "block", "jit"), CELLS)
def test_value_and_gradients_are_those_of_the_formula(
    excluded: str, block: int, jit: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(towers.losses.blockwise_softmax, "FEWEST", block)
    monkeypatch.setattr(towers.losses.blockwise_softmax, "SCORES", 1)
    (query, own, vector, offset), candidates, counts = world(excluded)
    weight = np.arange(len(query)) / 4
    parts = [tf.constant(each, tf.float64) for each in (query, own, vector)]
    with tf.GradientTape() as tape:
        tape.watch(parts)
        powers = tf.exp(tf.matmul(parts[0], parts[2], transpose_b=True) + offset) * counts
        each = tf.math.log1p(tf.reduce_sum(powers, axis=1) / tf.exp(parts[1]))
        right = 3 * tf.reduce_sum(weight * each)
    expected = [right, *tape.gradient(right, parts)]

    @tf.function(jit_compile=jit, autograph=False)
    def run(query: tf.Tensor, own: tf.Tensor, vector: tf.Tensor) -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            tape.watch([query, own, vector])
            loss = 3 * softmax_losses(query, own, tf.constant(weight, tf.float32), candidates._replace(vector=vector))
        return [loss, *tape.gradient(loss, [query, own, vector])]

    found = run(*(tf.cast(part, tf.float32) for part in parts))
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-5, atol=2e-6)


def test_logits_beyond_the_exponential_stay_finite() -> None:
    query, vector = tf.constant([[1.0], [-1.0]]), tf.constant([[500.0], [-500.0]])
    candidates = Candidates(vector, tf.zeros([2]), tf.constant([True, True]), tf.constant([0, 1], tf.int64), None)
    loss = softmax_losses(query, tf.constant([0.0, 500.0]), tf.ones([2]), candidates)
    np.testing.assert_allclose(loss, 500 + np.log(2), rtol=1e-6)


def test_in_bfloat16_it_is_the_same_within_its_precision() -> None:
    (query, own, _, _), candidates, _ = world("some")
    query, own = tf.constant(query, tf.float32), tf.constant(own, tf.float32)
    results = []
    for half in (False, True):
        with tf.GradientTape() as tape:
            tape.watch([query, own])
            loss = softmax_losses(query, own, tf.ones([QUERIES]), candidates, half=half)
        results.append([loss, *tape.gradient(loss, [query, own])])
    assert not np.array_equal(results[0][0], results[1][0])
    for one, other in zip(*results, strict=True):
        assert one.dtype == other.dtype == tf.float32
        np.testing.assert_allclose(one, other, rtol=0.05, atol=0.05)
