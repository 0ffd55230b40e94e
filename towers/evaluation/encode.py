"""Encodes all users or items of a data set, in blocks."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from towers.data.events import Floats
from towers.data.feature_tables import bagged
from towers.model.two_tower import Encoded, Tower

ROWS = 8_192  # rows encoded at once


def informed(tower: Tower, features: Mapping[str, NDArray[Any]]) -> NDArray[np.bool_]:
    """Which rows have at least one feature that training learnt something about: bool [R]; see `Tower.informed`."""
    count = len(next(iter(features.values())))
    blocks = [
        tower.informed({name: tf.constant(rows[begin : begin + ROWS]) for name, rows in features.items()}).numpy()
        for begin in range(0, count, ROWS)
    ]
    return np.concatenate([np.empty(0, np.bool_), *blocks])


def embed_all(
    encode: Callable[[Encoded], tf.Tensor],
    encoded: Mapping[str, np.ndarray],
    advance: Callable[[int], None] = lambda _: None,
) -> Floats:
    """Vectors [R, D] of every row of looked-up features, computed by `encode`, a method of a tower.

    `advance` is told the number of rows of each block, once it is encoded.
    """
    rows = len(next(iter(encoded.values())))
    out: Floats | None = None
    for begin in range(0, rows, ROWS):
        features = bagged({name: values[begin : begin + ROWS] for name, values in encoded.items()})
        block = encode(tf.nest.map_structure(tf.constant, features)).numpy()
        if out is None:
            out = np.empty((rows, block.shape[1]), np.float32)
        out[begin : begin + len(block)] = block
        advance(len(block))
    return out if out is not None else np.empty((0, 0), np.float32)
