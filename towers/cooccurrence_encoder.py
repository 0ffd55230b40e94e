"""The encoder of a `cooccurrence` feature: the items that are taken near an item, pooled.

In: item numbers in training, lists of item ids in a request. Out: vectors `[B, D]`.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from towers.cooccurrence import Companions
from towers.events import Int32s
from towers.feature_settings import CooccurrenceFeature
from towers.features import MISSING, FeatureEncoder, FeatureSpec
from towers.half_precision import gathered


class CooccurrenceEncoder(FeatureEncoder):
    """Pools item embeddings, ``w sum_j a_ij e_j`` over the items j closest to each (`towers.cooccurrence`).

    Of a new item nothing is counted: those it is listed with weigh as they do on average, ``w sum_j a_j e_j``, a_j the
    mean of what j has as another's companion.

    Args:
        spec: what it learnt.
        config: its section of the recipe.
        table: embedding rows of items `[spec.rows, D]`.
    """

    def __init__(self, spec: FeatureSpec, config: CooccurrenceFeature, table: tf.Variable) -> None:
        super().__init__(spec, table)
        self.config = config
        # a_j: with the weights, because a request's list needs it.
        self.weight = tf.Variable(tf.zeros([spec.rows]), trainable=False, name=f"companions_{spec.name}")
        # A function is not tracked: whose companions are whose is data and stays out of checkpoints.
        self._of_items: Callable[[], tuple[tf.Tensor, tf.Tensor]] | None = None

    def connect(self, companions: Companions, rows: Int32s) -> None:
        """Tells it who is close to whom, before the first step and again before export.

        Args:
            companions: of every item.
            rows: [N] table row of every item.
        """
        row, value = companions.in_rows(rows).astype(np.int64), companions.closeness
        listed = np.bincount(row.ravel(), minlength=self.spec.rows)
        total = np.bincount(row.ravel(), value.ravel(), minlength=self.spec.rows)
        self.weight.assign((total / np.maximum(listed, 1)).astype(np.float32))
        tensors = tf.constant(row), tf.constant(value)
        self._of_items = lambda: tensors

    def embed(self, rows: Any, seed: tf.Tensor | None = None) -> tf.Tensor:
        """Vectors `[B, D]` of items by number `[B]`, or of lists of their companions: table rows `[B, L]`."""
        if rows.shape.rank == 1:
            if self._of_items is None:
                raise RuntimeError(f"{self.spec.name}: items are asked for before `connect`")
            listed, weight = (tf.gather(each, rows) for each in self._of_items())
            if seed is not None and self.config.mask_share > 0:
                weight *= tf.cast(self._kept(tf.shape(rows)[0], seed), tf.float32)[:, tf.newaxis]
        else:
            listed, weight = rows, tf.where(rows == MISSING, 0.0, tf.gather(self.weight, rows))
        return self.config.weight * tf.einsum("bld,bl->bd", gathered(self.table, listed), weight)

    def informs(self, rows: tf.Tensor) -> tf.Tensor:
        """Whether training learnt something of an item's companions, or of those in a list: bool [B]."""
        return tf.reduce_any(self.embed(rows) != 0, axis=1)
