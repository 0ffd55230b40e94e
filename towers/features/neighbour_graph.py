"""One hop of the user-item graph: the trained neighbours of every node, and the products that pool them.

`Neighbours` pools the rows of an embedding table, ``sum_j r_j e_j / sqrt(d d_j)`` over the neighbours j of each node,
where d and d_j are the numbers of neighbours of the node and of j. With recency R the n neighbours of a node, oldest
first, have weights ``r_k = n R^(k/n) (R^(1/n) - 1) / (R - 1)``, with mean 1; without it, all are 1. With companions
(`towers.features.cooccurrence`) a neighbour's vector is ``e_j + c sum_k a_jk e_k``.
Source: He et al., LightGCN, SIGIR 2020, its propagation without layers.
"""

import math
from collections.abc import Callable

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from towers.data.bags import MISSING, Bag, bag_of
from towers.data.events import Floats, Int64s
from towers.features.cooccurrence import Companions
from towers.ops.row_gradients import every_row


class Neighbours:
    """The neighbours of every node. Not a `tf.Module`: it holds data, which stays out of checkpoints.

    Args:
        node: [E] the node of each pair, below `count`.
        row: [E] the table row of its neighbour; MISSING ones are left out.
        count: number of nodes.
        rows: length of the table.
        most: neighbours kept per node, the last ones.
        recency: R; 1 weighs all neighbours of a node alike.
        companions: of the table's rows; None if c is 0.
        cooccurrence: c.

    Attributes:
        offsets: [count + 1]; the neighbours of node n are ``row[offsets[n]:offsets[n + 1]]``.
        row: their table rows.
        weight: [rows] ``1 / sqrt(d_j)`` of each row as a neighbour; 0 if it is no node's neighbour.
    """

    def __init__(
        self,
        node: NDArray[np.int32],
        row: NDArray[np.int32],
        count: int,
        rows: int,
        most: int,
        recency: float = 1.0,
        companions: Companions | None = None,
        cooccurrence: float = 0.0,
    ) -> None:
        kept = row != MISSING
        node, row = node[kept], row[kept]
        order = np.argsort(node, kind="stable")
        node, row = node[order], row[order]
        from_end = np.cumsum(np.bincount(node, minlength=count))[node] - np.arange(len(node))
        node, row = node[from_end <= most], row[from_end <= most]
        self.offsets: Int64s = np.concatenate([np.zeros(1, np.int64), np.cumsum(np.bincount(node, minlength=count))])
        self.row = row
        degree = np.bincount(row, minlength=rows)
        self.weight: Floats = np.where(degree, 1 / np.sqrt(np.maximum(degree, 1)), 0).astype(np.float32)
        self.companions = companions
        self._recency, self._cooccurrence = recency, cooccurrence
        self._pool: Callable[[tf.Tensor], tf.Tensor] | None = None

    def bag(self, nodes: Int64s) -> Bag:
        """The neighbours of `nodes` [B] as a `Bag`, each distinct row once."""
        counts = np.diff(self.offsets)[nodes]
        example = np.repeat(np.arange(len(nodes)), counts)
        place = np.arange(len(example)) - np.repeat(np.cumsum(counts) - counts, counts) + self.offsets[nodes][example]
        return bag_of(self.row[place], example, len(nodes))

    def pool_all(self, table: tf.Tensor) -> tf.Tensor:
        """The pooled neighbours of every node: [nodes, D] from `table` [rows, D].

        Uses CSR matrices: on a CPU, TensorFlow's product over `tf.SparseTensor` takes fifteen times as long, and so
        does the built-in gradient of the CSR product.
        """
        if self._pool is None:
            self._pool = self._products(int(table.shape[0]))
        return self._pool(table)

    def _products(self, rows: int) -> Callable[[tf.Tensor], tf.Tensor]:
        counts = np.diff(self.offsets)
        node = np.repeat(np.arange(len(counts)), counts)
        rank = np.arange(len(node)) - self.offsets[node]
        # Outside of any graph: the matrices are built once and captured.
        with tf.init_scope():
            recent = recent_weights(tf.cast(rank, tf.float64), tf.cast(counts[node], tf.float64), self._recency).numpy()
            value: Floats = (self.weight[self.row] * recent / np.sqrt(counts[node])).astype(np.float32)
            pairs = _Matrix(node, self.row, value, (len(counts), rows))
            near = None if self.companions is None else _near(self.companions, self._cooccurrence)

        @tf.custom_gradient
        def pool(table: tf.Tensor) -> tuple[tf.Tensor, Callable[[tf.Tensor], tf.IndexedSlices]]:
            def gradient(upstream: tf.Tensor) -> tf.IndexedSlices:
                back = pairs.transposed_times(tf.convert_to_tensor(upstream))
                return every_row(back if near is None else back + near.transposed_times(back))

            return pairs.times(table if near is None else table + near.times(table)), gradient

        products: Callable[[tf.Tensor], tf.Tensor] = pool
        return products


def recent_weights(rank: tf.Tensor, count: tf.Tensor, recency: float) -> tf.Tensor:
    """r_k of neighbours of `rank` k, counted from the oldest, in lists of `count` n: same shape and type."""
    if recency == 1:
        return tf.ones_like(rank)
    logarithm = math.log(recency) / tf.maximum(count, 1.0)
    return count * tf.exp(logarithm * rank) * tf.math.expm1(logarithm) / (recency - 1)


class _Matrix:
    """A sparse matrix [shape] of `value` [n] at `row`, `column`, and its transpose."""

    def __init__(
        self, row: NDArray[np.integer], column: NDArray[np.integer], value: Floats, shape: tuple[int, int]
    ) -> None:
        self._forward = _by_rows(row, column, value, shape)
        self._backward = _by_rows(column, row, value, shape[::-1])

    def times(self, dense: tf.Tensor) -> tf.Tensor:
        return tf.raw_ops.SparseMatrixMatMul(a=self._forward, b=dense)

    def transposed_times(self, dense: tf.Tensor) -> tf.Tensor:
        return tf.raw_ops.SparseMatrixMatMul(a=self._backward, b=dense)


def _near(companions: Companions, cooccurrence: float) -> _Matrix:
    """``c a_jk`` for table rows j and k."""
    row, place = np.nonzero(companions.closeness)
    value = (cooccurrence * companions.closeness[row, place]).astype(np.float32)
    return _Matrix(row, companions.item[row, place], value, (len(companions.item), len(companions.item)))


def _by_rows(row: NDArray[np.integer], column: NDArray[np.integer], value: Floats, shape: tuple[int, int]) -> tf.Tensor:
    """The matrix as a variant, in CSR form."""
    order = np.lexsort((column, row))
    places = np.stack([row[order], column[order]], axis=1).astype(np.int64)

    def by_rows(places: tf.Tensor, value: tf.Tensor) -> tf.Tensor:
        return tf.raw_ops.SparseTensorToCSRSparseMatrix(indices=places, values=value, dense_shape=shape)

    # A function, because it tells the graph that captures its result type and shape; a bare operation does not.
    made = tf.function(by_rows, autograph=False).get_concrete_function(
        tf.TensorSpec(places.shape, tf.int64), tf.TensorSpec(value.shape, tf.float32)
    )
    return made(tf.constant(places), tf.constant(value[order]))
