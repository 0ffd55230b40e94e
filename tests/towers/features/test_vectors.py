"""Vectors by hand: standardised, projected, missing, masked; and what no training example reads stays zero."""

import numpy as np
import tensorflow as tf

from towers.config.features import IdFeature, VectorFeature
from towers.config.recipe import parse_config
from towers.data.events import Events
from towers.data.feature_tables import FeatureTables
from towers.features.encoder import FeatureEncoder, FeatureSpec, new_table
from towers.model.two_tower import TwoTower, build_encoder
from towers.model.untrained_rows import zero_untrained_rows

MEAN, DEVIATION = [1.0, -20.0, 0.5, 300.0], [2.0, 5.0, 0.25, 100.0]
NAN = float("nan")


def spec(**settings: object) -> FeatureSpec:
    config = VectorFeature(kind="vector", **settings)  # type: ignore[arg-type]
    return FeatureSpec("look", config, size=4, mean=MEAN, deviation=DEVIATION, table="look")


def encoder(**settings: object) -> FeatureEncoder:
    return build_encoder(spec(**settings), new_table(spec(), 3, seed=1), parse_config({}))


def by_hand(vector: list[float]) -> list[float]:
    """z / sqrt(L), then whether it is missing."""
    if any(np.isnan(vector)):
        return [0.0] * 4 + [1.0]
    return [(x - m) / s / 2 for x, m, s in zip(vector, MEAN, DEVIATION, strict=True)] + [0.0]


def test_vectors_are_standardised_and_missing_ones_marked() -> None:
    raw = [[3.0, -20.0, 0.0, 500.0], [NAN] * 4, [1.0, NAN, 0.5, 300.0], [1.0, -20.0, 0.5, 300.0]]
    np.testing.assert_allclose(encoder().lookup(tf.constant(raw)), [by_hand(each) for each in raw], rtol=1e-6)
    assert encoder().lookup(tf.zeros([0, 4])).shape == (0, 5)


def test_the_vector_is_a_product_and_a_missing_one_has_its_own_direction() -> None:
    look = encoder()
    matrix = np.random.default_rng(2).normal(size=(5, 3)).astype(np.float32)
    look.table.assign(matrix)
    raw = [[3.0, -22.0, 0.0, 500.0], [NAN] * 4]
    wanted = [sum(z * row for z, row in zip(by_hand(raw[0]), matrix, strict=True)), matrix[4]]
    np.testing.assert_allclose(look.embed(look.lookup(tf.constant(raw))), wanted, rtol=1e-5)
    assert look.informs(look.lookup(tf.constant(raw))).numpy().tolist() == [True, False]
    look.table.assign(np.concatenate([np.zeros((4, 3)), matrix[4:]]))
    assert not look.informs(look.lookup(tf.constant(raw))).numpy().any(), "training learnt nothing of the numbers"


def test_a_table_starts_with_short_rows_and_nothing_for_missing() -> None:
    big = FeatureSpec("look", VectorFeature(kind="vector"), size=400, table="look")
    table = new_table(big, 64, seed=3, dtype="bfloat16")
    assert table.dtype == tf.float32 and table.shape == (401, 64)
    np.testing.assert_array_equal(table[400], np.zeros(64))
    # Standardised vectors over sqrt(L) come out about as long as the row of an id, 0.1.
    drawn = np.random.default_rng(4).normal(size=(200, 400)) / 20
    assert abs(np.linalg.norm(drawn @ table[:400].numpy(), axis=1).mean() - 0.1) < 0.01


def test_a_mask_makes_its_share_missing() -> None:
    look = encoder(mask_share=0.25)
    rows = tf.tile(tf.constant([by_hand([3.0, -20.0, 0.0, 500.0])]), [20_000, 1])
    masked = look.mask(rows, tf.constant([1, 2])).numpy()
    gone = masked[:, 4] == 1
    # 20,000 draws: the share's standard deviation is 0.003.
    assert abs(gone.mean() - 0.25) < 0.015
    np.testing.assert_array_equal(masked[gone], np.tile([0, 0, 0, 0, 1], (gone.sum(), 1)))
    np.testing.assert_array_equal(masked[~gone], rows[: (~gone).sum()])


def test_what_no_training_example_reads_is_zero() -> None:
    """Item 0 and 1 are taken, 2 is not: only it has a missing vector and a number in place 2."""
    looks = np.array([[1, 0, 0, -1, 0], [0, 2, 0, 0, 0], [0, 0, 3, 0, 1]], np.float32)
    ids = FeatureSpec("user_id", IdFeature(kind="id"), size=1, table="u")
    towers = TwoTower([ids], [spec()], parse_config({"model": {"dimension": 3}}))
    table = towers.candidate_tower.encoders[0].table
    table.assign(tf.ones([5, 3]))
    events = Events(np.zeros(2, np.int32), np.array([0, 1], np.int32), np.array([0, 2]))
    zero_untrained_rows(towers, FeatureTables({"user_id": np.ones(1, np.int32)}, {"look": looks}), events)
    np.testing.assert_array_equal(table.numpy().any(axis=1), [True, True, False, True, False])
