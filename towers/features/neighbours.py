"""Encoders that pool over graphs: of users and items (`neighbours`), and of items taken together (`cooccurrence`).

They take numbers of training nodes or items, or the lists of ids in a request. In training, a sparse product pools
every node of a `neighbours` feature at once; elsewhere only the requested nodes are pooled. A node that training did
not see is pooled from the list in the request.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import tensorflow as tf

from towers.config.features import COMPANIONS, CooccurrenceFeature, NeighboursFeature
from towers.data.bags import MISSING, Bag
from towers.data.events import Int32s
from towers.errors import ConfigError
from towers.features.cooccurrence import Companions
from towers.features.encoder import FeatureEncoder, FeatureSpec
from towers.features.neighbour_graph import Neighbours, recent_weights
from towers.ops.row_gradients import gathered, whole

MOST_PAIRS = 50_000_000  # pooled in each step; with more, a step takes seconds
BLOCK_ROWS = 65_536  # of a table, summed at a time: 16 MB of 64 numbers


class GraphEncoder(FeatureEncoder):
    """Looks up lists of ids and pools them with their companions: ``w sum_j r_j e_j / sqrt(d d_j)``.

    See `towers.features.neighbour_graph`.

    Args:
        spec: the feature and what it learnt.
        config: the recipe's section for it.
        table: embedding rows of the neighbours' ids `[spec.rows, D]`.
    """

    def __init__(self, spec: FeatureSpec, config: NeighboursFeature, table: tf.Variable) -> None:
        super().__init__(spec, table)
        self.config = config
        # 1 / sqrt(d_j): saved with the weights, because the list of a request needs it too.
        self.weight = tf.Variable(tf.zeros([spec.rows]), trainable=False, name=f"neighbours_{spec.name}")
        # The companions of each table row, which `connect` sets.
        self.near: tuple[tf.Variable, tf.Variable] | None = None
        if config.cooccurrence:
            shape, name = [spec.rows, COMPANIONS], f"companions_{spec.name}"
            self.near = (
                tf.Variable(tf.zeros(shape, tf.int32), trainable=False, name=name),
                tf.Variable(tf.zeros(shape), trainable=False, name=f"{name}_closeness"),
            )
        # A function is not tracked: the graph is data and stays out of checkpoints.
        self._graph: Callable[[], Neighbours] | None = None

    def connect(self, neighbours: Neighbours) -> None:
        """Sets the graph, before the first step.

        Raises:
            ConfigError: the graph is too large to be pooled whole in each step.
        """
        if len(neighbours.row) > MOST_PAIRS and self.config.window != "earlier":
            others = "set window = 'earlier', or take a history" if self.config.window == "all" else "or leave it out"
            raise ConfigError(
                f"features: {self.spec.name!r} of kind 'neighbours' pools every pair of the graph in each step: at "
                f"most {MOST_PAIRS:,}, got {len(neighbours.row):,}; lower its max_length, {others}"
            )
        self._graph = lambda: neighbours
        self.weight.assign(neighbours.weight)
        if self.near is not None and neighbours.companions is not None:
            row, closeness = self.near
            row.assign(neighbours.companions.item)
            closeness.assign(neighbours.companions.closeness)

    def embed(self, rows: Any, seed: tf.Tensor | None = None) -> tf.Tensor:
        """Vectors `[B, D]` of nodes `[B]`, or of lists of neighbours: table rows `[B, L]` or a `Bag` of them."""
        return self.config.weight * self._embed(rows, seed)

    def _embed(self, rows: Any, seed: tf.Tensor | None) -> tf.Tensor:
        if isinstance(rows, Bag):
            return self._masked(self._pooled(rows), seed)
        if rows.shape.rank == 1:
            if self._graph is None:
                raise RuntimeError(f"{self.spec.name}: nodes are asked for before `connect`")
            if tf.executing_eagerly():
                return self._pooled(self._graph().bag(rows.numpy()))
            return self._masked(tf.gather(self._graph().pool_all(whole(self.table)), rows), seed)
        present = tf.cast(rows != MISSING, tf.float32)
        count = tf.reduce_sum(present, axis=1, keepdims=True)
        recent = present * recent_weights(tf.cumsum(present, axis=1, exclusive=True), count, self.config.recency)
        weight = tf.gather(self.weight, rows) * recent
        pooled = tf.reduce_sum(self._vectors(rows) * weight[:, :, tf.newaxis], axis=1)
        return pooled * tf.math.rsqrt(tf.maximum(count, 1.0))

    def _masked(self, pooled: tf.Tensor, seed: tf.Tensor | None) -> tf.Tensor:
        """`pooled` [B, D] with zeros for the examples that `seed` masks."""
        if seed is None or not self.config.mask_share:
            return pooled
        return pooled * tf.cast(self._kept(tf.shape(pooled)[0], seed), tf.float32)[:, tf.newaxis]

    def served(self) -> FeatureEncoder:
        """With companions: one of lists, whose rows are `_vectors` of all rows, so that it reads one row per id."""
        if self.near is None:
            return self
        config, shape = self.config.model_copy(update={"cooccurrence": 0.0}), [self.spec.rows, self.table.shape[1]]
        table = tf.Variable(tf.zeros(shape), trainable=False, name=f"table_{self.spec.table}")
        for begin in range(0, shape[0], BLOCK_ROWS):
            rows = tf.range(begin, min(begin + BLOCK_ROWS, shape[0]))
            table[begin : begin + BLOCK_ROWS].assign(self._vectors(rows))
        alone = GraphEncoder(replace(self.spec, config=config), config, table)
        alone.weight = self.weight
        return alone

    def informs(self, rows: tf.Tensor) -> tf.Tensor:
        """Whether training learnt something about a node's neighbours, or about those in a list: bool [B]."""
        if rows.shape.rank == 1:
            return tf.reduce_any(self.embed(rows) != 0, axis=1)
        return tf.reduce_any((rows != MISSING) & (tf.gather(self.weight, rows) > 0), axis=1)

    def _vectors(self, rows: tf.Tensor) -> tf.Tensor:
        """``e_j + c sum_k a_jk e_k`` of table rows j, in the shape of `rows` plus one axis."""
        vectors = gathered(self.table, rows)
        if self.near is not None:
            near, closeness = (tf.gather(each, rows) for each in self.near)
            for place in range(COMPANIONS):  # one by one: all at once would take COMPANIONS times the memory
                weight = self.config.cooccurrence * closeness[..., place, tf.newaxis]
                vectors += weight * gathered(self.table, near[..., place])
        return vectors

    def _pooled(self, bag: Bag) -> tf.Tensor:
        count = tf.math.unsorted_segment_sum(tf.ones_like(bag.place), bag.example, bag.size)
        weighted = self._vectors(bag.rows) * tf.gather(self.weight, bag.rows)[:, tf.newaxis]
        if self.config.recency == 1:
            pooled = tf.sparse.segment_sum(weighted, bag.place, bag.example, num_segments=bag.size)
        else:
            rank = tf.range(tf.size(bag.place, tf.int64)) - tf.gather(tf.cumsum(count, exclusive=True), bag.example)
            length = tf.gather(count, bag.example)
            recent = recent_weights(tf.cast(rank, tf.float32), tf.cast(length, tf.float32), self.config.recency)
            # A product: slower than the sum above, but with long lists one row per value, [n, D], would not fit.
            shape = [tf.cast(bag.size, tf.int64), tf.size(bag.rows, tf.int64)]
            lists = tf.SparseTensor(tf.stack([bag.example, bag.place], axis=1), recent, shape)
            pooled = tf.sparse.sparse_dense_matmul(lists, weighted)
        return pooled * tf.math.rsqrt(tf.maximum(tf.cast(count, tf.float32), 1.0))[:, tf.newaxis]


class CooccurrenceEncoder(FeatureEncoder):
    """Pools item embeddings, ``w sum_j a_ij e_j`` over the items j closest to i (`towers.features.cooccurrence`).

    A new item has no counts. The items listed with it get average weights, ``w sum_j a_j e_j``, a_j the mean closeness
    of j as another item's companion.

    Args:
        spec: the feature and what it learnt.
        config: the recipe's section for it.
        table: embedding rows of items `[spec.rows, D]`.
    """

    def __init__(self, spec: FeatureSpec, config: CooccurrenceFeature, table: tf.Variable) -> None:
        super().__init__(spec, table)
        self.config = config
        # a_j: saved with the weights, because the list of a request needs it.
        self.weight = tf.Variable(tf.zeros([spec.rows]), trainable=False, name=f"companions_{spec.name}")
        # A function is not tracked: the companions are data and stay out of checkpoints.
        self._of_items: Callable[[], tuple[tf.Tensor, tf.Tensor]] | None = None

    def connect(self, companions: Companions, rows: Int32s) -> None:
        """Sets the companions, before the first step and again before export.

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
        """Vectors `[B, D]` of item numbers `[B]`, or of lists of companions: table rows `[B, L]`."""
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
        """Whether training learnt something about an item's companions, or about those in a list: bool [B]."""
        return tf.reduce_any(self.embed(rows) != 0, axis=1)
