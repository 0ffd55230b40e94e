"""Exact top-k by dot product for many queries, seen items masked, in little more time than the matrix product.

Each row of scores is split into groups of adjacent items. An item among the best k lies in one of the k groups with the
largest maxima, so only those are searched. Memory beside the vectors is bounded by one block of queries times one block
of items.
"""

from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from towers.data.events import Floats, Int32s, Int64s

QUERIES, ITEMS = 512, 65_536  # one block of scores: 128 MB; with fewer queries the product itself takes longer
GROUP = 64  # adjacent items that share a maximum
# The signature of `_merged`: one graph for all sizes.
MATRIX, ROWS, NUMBER = tf.TensorSpec([None, None]), tf.TensorSpec([None, None], tf.int64), tf.TensorSpec([], tf.int64)
SIGNATURE = [MATRIX, MATRIX, ROWS, MATRIX, ROWS, NUMBER, NUMBER]


def top_k(queries: Floats, items: Floats, k: int, seen_offsets: Int64s, seen_items: Int32s) -> Int32s:
    """Rows of the highest dot products, best first, ties by lower row, seen items left out.

    Args:
        queries: [Q, D].
        items: [N, D].
        k: how many, at least 1; may exceed the number of items.
        seen_offsets: [Q + 1]; query q has seen ``seen_items[seen_offsets[q]:seen_offsets[q + 1]]``.
        seen_items: rows, in any order, repeats allowed; a negative one is none.

    Returns:
        int32 [Q, k], padded with -1.
    """
    scores = np.full((len(queries), k), -np.inf, np.float32)
    rows = np.full((len(queries), k), -1, np.int64)
    # Items in the outer loop, so that each block of them becomes a tensor once.
    for first in range(0, len(items), ITEMS):
        block = items[first : first + ITEMS]
        padding = -len(block) % GROUP
        padded = tf.constant(np.pad(block, ((0, padding), (0, 0))))
        for begin in range(0, len(queries), QUERIES):
            part = slice(begin, begin + QUERIES)
            hidden = _hidden(seen_offsets[begin : begin + QUERIES + 1], seen_items, first, len(block), padding)
            best = _merged(queries[part], padded, hidden, scores[part], rows[part], first, k)
            scores[part], rows[part] = best[0].numpy(), best[1].numpy()
    return np.where(np.isneginf(scores), -1, rows).astype(np.int32)


def _hidden(offsets: Int64s, seen_items: Int32s, first: int, count: int, padding: int) -> NDArray[np.int64]:
    """[n, 2] positions in a block of scores that must not be found: seen items and the padding."""
    queries = np.arange(len(offsets) - 1)
    query = np.repeat(queries, np.diff(offsets))
    item = seen_items[offsets[0] : offsets[-1]].astype(np.int64) - first
    here = (item >= 0) & (item < count)
    query = np.concatenate([query[here], np.repeat(queries, padding)])
    return np.stack([query, np.concatenate([item[here], np.tile(np.arange(count, count + padding), len(queries))])], 1)


@tf.function(autograph=False, input_signature=SIGNATURE)
def _merged(
    queries: Any, items: tf.Tensor, hidden: Any, best: Any, best_rows: Any, first: Any, k: Any
) -> tuple[tf.Tensor, tf.Tensor]:
    """The best of [Q, k] so far and the items from row `first` on: scores and rows, [Q, k] each."""
    scores = tf.matmul(queries, items, transpose_b=True)
    # Not `tensor_scatter_nd_update`, which copies the scores on a CPU. This one does not, as nothing else uses them.
    nothing = tf.fill(tf.shape(hidden)[:1], -np.inf)
    scores = tf.raw_ops.ScatterNdNonAliasingAdd(input=scores, indices=hidden, updates=nothing)
    groups = tf.reshape(scores, [tf.shape(queries)[0], -1, GROUP])
    k = tf.cast(k, tf.int32)
    count = tf.minimum(k, tf.shape(groups)[1])
    _, chosen = tf.math.top_k(tf.reduce_max(groups, axis=2), count, sorted=False)
    # Sorted, because among equal scores `top_k` takes the first: the result so far, then the lower row.
    chosen = tf.cast(tf.sort(chosen, axis=1), tf.int64)
    candidates = tf.gather(groups, chosen, batch_dims=1)
    own = first + chosen[:, :, tf.newaxis] * GROUP + tf.range(GROUP, dtype=tf.int64)
    both = tf.concat([best, tf.reshape(candidates, [tf.shape(queries)[0], -1])], axis=1)
    both_rows = tf.concat([best_rows, tf.reshape(own, [tf.shape(queries)[0], -1])], axis=1)
    values, places = tf.math.top_k(both, k)
    return values, tf.gather(both_rows, places, batch_dims=1)
