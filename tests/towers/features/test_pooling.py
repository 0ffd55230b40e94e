"""Pooling by hand: mean, root and attention, as lists and bags; gradients against differences; what a mask hides."""

import numpy as np
import pytest
import tensorflow as tf

from towers.config.features import HistoryFeature, MultiFeature, TextFeature
from towers.config.recipe import parse_config
from towers.data.bags import distinct_bag
from towers.features.encoder import FeatureEncoder, FeatureSpec
from towers.model.two_tower import build_encoder

ROWS, WIDTH = 7, 3
LISTS = np.array([[1, 2, 0, 5], [0, 0, 0, 0], [6, 6, 3, 0], [0, 4, 0, 0], [1, 2, 3, 6]], np.int32)


def pooling(name: str, query: np.ndarray | None = None, **settings) -> FeatureEncoder:
    """The encoder of a history over random rows, with a trained query where it has one."""
    spec = FeatureSpec("h", HistoryFeature(kind="history", pooling=name, **settings), size=ROWS - 1, table="t")
    table = np.random.default_rng(2).normal(size=(ROWS, WIDTH)).astype(np.float32)
    encoder = build_encoder(spec, tf.Variable(table), parse_config({}))
    if query is not None:
        encoder.query.assign(query)
    return encoder


def by_hand(table: np.ndarray, query: np.ndarray) -> np.ndarray:
    """Attention in float64, one example after another."""
    out = np.zeros((len(LISTS), WIDTH))
    for example, rows in enumerate(LISTS):
        vectors = table[rows[rows > 0]].astype(np.float64)
        if len(vectors):
            scores = 20 * np.tanh(vectors @ query / 20)
            weights = np.exp(scores - scores.max())
            out[example] = weights @ vectors / weights.sum()
    return out


QUERIES = [np.zeros(WIDTH), np.array([0.5, -2.0, 1.0]), np.array([4e4, -3e4, 1e3])]


@pytest.mark.parametrize("query", QUERIES, ids=["untrained", "trained", "at the cap"])
def test_attention_is_a_softmax_over_the_values_present(query: np.ndarray) -> None:
    encoder = pooling("attention", query)
    expected = by_hand(encoder.table.numpy(), query)
    np.testing.assert_allclose(encoder.embed(tf.constant(LISTS)), expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(encoder.embed(distinct_bag(LISTS)), expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(expected[1], np.zeros(WIDTH))


def test_untrained_attention_is_the_mean() -> None:
    got, mean = (pooling(name).embed(tf.constant(LISTS)) for name in ("attention", "mean"))
    np.testing.assert_allclose(got, mean, rtol=1e-6)


@pytest.mark.parametrize("form", [tf.constant, distinct_bag], ids=["lists", "bag"])
def test_attention_learns_its_query_and_its_items(form) -> None:
    encoder = pooling("attention", QUERIES[1])
    direction = np.arange(1.0, 1 + WIDTH)
    with tf.GradientTape() as tape:
        value = tf.reduce_sum(encoder.embed(form(LISTS)) * direction.astype(np.float32))
    by_table, by_query = (tf.convert_to_tensor(each) for each in tape.gradient(value, [encoder.table, encoder.query]))
    table, query, step = encoder.table.numpy().astype(np.float64), QUERIES[1], 1e-6

    def loss(table: np.ndarray, query: np.ndarray) -> float:
        # Of the formula in float64, which differences of 1e-6 need.
        out = 0.0
        for rows in LISTS:
            vectors = table[rows[rows > 0]]
            weights = np.exp(20 * np.tanh(vectors @ query / 20))
            out += float(weights @ vectors @ direction / weights.sum()) if len(vectors) else 0.0
        return out

    for place in np.ndindex(ROWS, WIDTH):
        move = np.zeros((ROWS, WIDTH))
        move[place] = step
        slope = (loss(table + move, query) - loss(table - move, query)) / (2 * step)
        assert float(by_table[place]) == pytest.approx(slope, rel=1e-3, abs=1e-4)
    for place in range(WIDTH):
        move = np.eye(WIDTH)[place] * step
        slope = (loss(table, query + move) - loss(table, query - move)) / (2 * step)
        assert float(by_query[place]) == pytest.approx(slope, rel=1e-3, abs=1e-4)


@pytest.mark.parametrize("name", ["mean", "sqrt", "attention"])
def test_a_masked_example_pools_to_nothing_in_either_form(name: str) -> None:
    encoder = pooling(name, QUERIES[1] if name == "attention" else None, mask_share=0.5)
    lists = np.tile(LISTS[4:], (200, 1))
    seed = tf.constant([3, 4])
    whole = encoder.embed(tf.constant(lists[:1]))[0]
    # The mask is drawn per example and is the same whatever form the batch has.
    dense, bag = encoder.embed(tf.constant(lists), seed).numpy(), encoder.embed(distinct_bag(lists), seed).numpy()
    np.testing.assert_allclose(dense, bag, rtol=1e-5, atol=1e-6)
    masked = ~dense.any(axis=1)
    assert 60 < masked.sum() < 140
    np.testing.assert_allclose(dense[~masked], np.tile(whole, ((~masked).sum(), 1)), rtol=1e-5)


@pytest.mark.parametrize(
    "feature", [MultiFeature(kind="multi", pooling="attention"), TextFeature(kind="text", pooling="attention")]
)
def test_other_lists_take_attention_too_and_alone_have_a_weight_more(feature) -> None:
    spec = FeatureSpec("m", feature, size=3, table="t")
    encoder = build_encoder(spec, tf.Variable(tf.ones([spec.rows, WIDTH])), parse_config({}))
    assert [variable.name for variable in encoder.trainable_variables] == ["attention_m:0", "Variable:0"]
    mean = build_encoder(
        FeatureSpec("m", feature.model_copy(update={"pooling": "mean"}), size=3), encoder.table, parse_config({})
    )
    assert len(mean.trainable_variables) == 1
