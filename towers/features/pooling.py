"""Encodes a feature with several values (`history`, `multi`, `text`) by pooling their vectors.

The pooled vector is the mean, the sum over a root, or a sum weighted by attention; zero if no value is present.
"""

import math
from typing import Any

import tensorflow as tf

from towers.data.bags import MISSING, Bag
from towers.features.encoder import FeatureEncoder, FeatureSpec

CAP = 20.0  # bound on attention scores: exp(20) and its inverse add up safely in float32


class PoolingEncoder(FeatureEncoder):
    """Looks up several values per example and pools the vectors e_1 ... e_n of those that are present.

    ``mean``: ``sum_i e_i / n``. ``sqrt``: ``sum_i e_i / sqrt n``. ``attention``: ``sum_i a_i e_i`` with
    ``a = softmax(s)`` over the values present, ``s_i = 20 tanh(q . e_i / 20)`` and one trained query q per feature.
    It starts at zero, where attention is the mean. The tanh keeps small scores and bounds large ones.

    Source: dot-product attention as in Luong et al., EMNLP 2015, with one trained query as in Yang et al.,
    Hierarchical attention networks, NAACL 2016; capped scores as in Bello et al., ICLR 2017.

    Args:
        spec: the feature and what it learnt.
        table: embedding rows `[spec.rows, D]`; a shared table comes from another encoder.
    """

    def __init__(self, spec: FeatureSpec, table: tf.Variable) -> None:
        super().__init__(spec, table)
        self.pooling: str = getattr(spec.config, "pooling", "mean")
        self.query: tf.Variable | None = None
        if self.pooling == "attention":
            self.query = tf.Variable(tf.zeros(table.shape[1:]), name=f"attention_{spec.name}")

    def embed(self, rows: Any, seed: tf.Tensor | None = None) -> tf.Tensor:
        """Vectors `[B, D]` of the looked-up values of B examples.

        Args:
            rows: `[B, L]`, or a `Bag`.
            seed: [2] of the masks; None outside training.
        """
        masked = seed is not None and self.spec.config.mask_share > 0
        if not isinstance(rows, Bag):
            return self._pooled(*self._sums(self.mask(rows, seed) if masked else rows))
        pooled = self._pooled(*self._bag_sums(rows))
        return pooled * tf.cast(self._kept(rows.size, seed), tf.float32)[:, tf.newaxis] if masked else pooled

    def _sums(self, rows: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """``sum_i w_i e_i`` [B, D] and ``sum_i w_i`` [B] over the values present in rows [B, L]."""
        vectors = self.vectors(rows)
        weight = self._weight(vectors) * tf.cast(rows != MISSING, tf.float32)
        return tf.reduce_sum(vectors * weight[:, :, tf.newaxis], axis=1), tf.reduce_sum(weight, axis=1)

    def _bag_sums(self, bag: Bag) -> tuple[tf.Tensor, tf.Tensor]:
        """The same for a `Bag`. A weight depends on the value alone, so it is computed once per distinct row."""
        vectors = self.vectors(bag.rows)
        weight = self._weight(vectors)
        total = tf.sparse.segment_sum(vectors * weight[:, tf.newaxis], bag.place, bag.example, num_segments=bag.size)
        return total, tf.math.unsorted_segment_sum(tf.gather(weight, bag.place), bag.example, bag.size)

    def _weight(self, vectors: tf.Tensor) -> tf.Tensor:
        """Weight of each of the vectors [..., D] in a sum: 1, or ``exp(s)``, which the sum of weights normalises."""
        if self.query is None:
            return tf.ones(tf.shape(vectors)[:-1])
        return tf.exp(CAP * tf.tanh(tf.linalg.matvec(vectors, self.query) / CAP))

    def _pooled(self, total: tf.Tensor, weight: tf.Tensor) -> tf.Tensor:
        # Without a value both are zero; with one, the weight is at least this.
        least = math.exp(-CAP) / 2 if self.pooling == "attention" else 1.0
        weight = tf.maximum(weight, least)[:, tf.newaxis]
        return total / (tf.sqrt(weight) if self.pooling == "sqrt" else weight)
