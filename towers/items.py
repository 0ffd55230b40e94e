"""Candidate features of every trained item, inside the graph: a drawn rank becomes features without leaving the device.

In: looked-up item tables and a `Catalogue`. Out: features by name for ranks `[n]`, ready for the candidate tower.
"""

from collections.abc import Mapping

import numpy as np
import tensorflow as tf

from towers.catalogue import Catalogue
from towers.features import MISSING
from towers.tables import Array


class ItemFeatures:
    """Gathers looked-up features by rank. No `tf.Module`: data, not weights, and so in no checkpoint."""

    def __init__(self, tables: Mapping[str, Array], catalogue: Catalogue) -> None:
        # int64, because int32 arithmetic has no GPU kernel; variables, because a graph holds constants of at most 2 GB.
        self._tables = {
            name: tf.Variable(
                _narrow(rows[catalogue.items]).astype(np.float32 if rows.dtype.kind == "f" else np.int64),
                trainable=False,
            )
            for name, rows in tables.items()
        }

    def __call__(self, rank: tf.Tensor) -> dict[str, tf.Tensor]:
        """Features of `rank` [n], by name: [n], [n, L] or [n, 2]."""
        return {name: tf.gather(table, rank) for name, table in self._tables.items()}


def _narrow(rows: Array) -> Array:
    """Lists [N, L] without the places that no item fills: an empty one costs a step as much as a full one."""
    if rows.dtype.kind == "f" or rows.ndim != 2:
        return rows
    full = np.any(rows != MISSING, axis=0)
    return rows[:, full] if full.any() else rows[:, :1]
