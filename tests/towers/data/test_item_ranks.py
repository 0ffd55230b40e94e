"""Candidate features in the graph: gathered by rank, as narrow as their longest list."""

import numpy as np
import tensorflow as tf

from towers.data.item_ranks import ItemFeatures, ItemRanks

# Items 3, 0 and 2 train, most often first.
CATALOGUE = ItemRanks.of(np.array([3, 3, 3, 0, 0, 2], np.int32), 4)
RANKS = tf.constant([2, 0])


def test_features_of_ranks():
    tables = {
        "id": np.arange(1, 5, dtype=np.int32),
        "words": np.array([[7, 0, 5, 0], [1, 2, 3, 4], [0, 0, 0, 0], [6, 0, 0, 0]], np.int32),
        "year": np.array([[0.5, 1], [0, 0], [-2, 0], [0, 1]], np.float32),
    }
    found = ItemFeatures(tables, CATALOGUE)(RANKS)
    np.testing.assert_array_equal(found["id"], [3, 4])
    # What stays is every place that a trained item fills: the first and the third.
    np.testing.assert_array_equal(found["words"], [[0, 0], [6, 0]])
    # A number without its part "is missing" would be another feature.
    np.testing.assert_array_equal(found["year"], [[-2, 0], [0, 1]])


def test_lists_of_nothing_keep_a_place():
    words = np.zeros((4, 16), np.int32)
    assert ItemFeatures({"words": words}, CATALOGUE)(RANKS)["words"].shape == (2, 1)
