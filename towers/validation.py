"""The metric that chooses the epoch: held-out users, the whole catalogue, seen items masked, top-k in blocks.

In: looked-up features and the held-out users' targets. Out: metrics by name. TensorFlow's own top-k; memory is bounded
by one block of queries times one block of items.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from towers import metrics
from towers.events import Floats, Int32s, Int64s
from towers.model import Encoded, Tower, TwoTower
from towers.tables import bagged

ROWS = 8_192  # rows encoded at once
QUERIES, ITEMS = 512, 65_536  # one block of scores: 128 MB


@dataclass(frozen=True)
class Validation:
    """Held-out users.

    Attributes:
        query: their looked-up features, by name.
        candidate: every item's looked-up features, by name.
        seen_offsets, seen_items: [Q + 1] and flat, what each user has seen.
        target_offsets, target_items: [Q + 1] and flat, what each user took next.
        metric: ``recall@k`` or ``ndcg@k``.
    """

    query: Encoded
    candidate: Encoded
    seen_offsets: Int64s
    seen_items: Int32s
    target_offsets: Int64s
    target_items: Int32s
    metric: str

    def measure(self, model: TwoTower) -> float:
        """Mean of the metric over the held-out users.

        Only items of which training learnt something are ranked, as only they are served: an unlearnt item's zero
        vector scores 0, which is more than most items get from a loss that pushes scores down.
        """
        name, _, depth = self.metric.partition("@")
        k = int(depth)
        learnt = np.flatnonzero(informed(model.candidate_tower, self.candidate)).astype(np.int32)
        place = np.full(len(next(iter(self.candidate.values()))), -1, np.int32)
        place[learnt] = np.arange(len(learnt), dtype=np.int32)
        items = embed_all(model.candidate_tower, {key: rows[learnt] for key, rows in self.candidate.items()})
        queries = embed_all(model.query_tower, self.query)
        found = top_k(queries, items, k, self.seen_offsets, place[self.seen_items])
        lists = np.where(found >= 0, np.append(learnt, np.int32(-1))[found], np.int32(-1))
        hits = metrics.hits(lists, self.target_offsets, self.target_items)
        per_user = metrics.METRICS[name](hits, np.diff(self.target_offsets), k)
        return float(np.nanmean(per_user))


def informed(tower: Tower, features: Mapping[str, NDArray[Any]]) -> NDArray[np.bool_]:
    """Which rows have at least one feature that training learnt something of: bool [R]; see `Tower.informed`."""
    count = len(next(iter(features.values())))
    blocks = [
        tower.informed({name: tf.constant(rows[begin : begin + ROWS]) for name, rows in features.items()}).numpy()
        for begin in range(0, count, ROWS)
    ]
    return np.concatenate([np.empty(0, np.bool_), *blocks])


def embed_all(tower: Tower, encoded: Mapping[str, np.ndarray]) -> Floats:
    """Vectors [R, D] of every row of looked-up features."""
    rows = len(next(iter(encoded.values())))
    out: Floats | None = None
    for begin in range(0, rows, ROWS):
        features = bagged({name: values[begin : begin + ROWS] for name, values in encoded.items()})
        block = tower(tf.nest.map_structure(tf.constant, features)).numpy()
        if out is None:
            out = np.empty((rows, block.shape[1]), np.float32)
        out[begin : begin + len(block)] = block
    return out if out is not None else np.empty((0, 0), np.float32)


def top_k(queries: Floats, items: Floats, k: int, seen_offsets: Int64s, seen_items: Int32s) -> Int32s:
    """Rows [Q, k] of the highest dot products, best first, seen items left out; -1 where fewer are left."""
    out = np.full((len(queries), k), -1, np.int32)
    for begin in range(0, len(queries), QUERIES):
        block = queries[begin : begin + QUERIES]
        offsets = seen_offsets[begin : begin + len(block) + 1]
        seen_row = np.repeat(np.arange(len(block)), np.diff(offsets))
        seen = seen_items[offsets[0] : offsets[-1]]
        scores, rows = np.empty((len(block), 0), np.float32), np.empty((len(block), 0), np.int32)
        for first in range(0, len(items), ITEMS):
            part = items[first : first + ITEMS]
            inside = (seen >= first) & (seen < first + len(part))
            hidden = np.stack([seen_row[inside], seen[inside] - first], axis=1).astype(np.int32)
            values, places = _block_top_k(block, part, hidden, min(k, len(part)))
            scores = np.concatenate([scores, values.numpy()], axis=1)
            rows = np.concatenate([rows, places.numpy() + first], axis=1)
        best = np.argsort(-scores, axis=1, kind="stable")[:, :k]
        rows = np.where(np.isneginf(np.take_along_axis(scores, best, 1)), -1, np.take_along_axis(rows, best, 1))
        out[begin : begin + len(block), : rows.shape[1]] = rows
    return out


@tf.function(reduce_retracing=True, autograph=False)
def _block_top_k(queries: tf.Tensor, items: tf.Tensor, hidden: tf.Tensor, k: int) -> tuple[tf.Tensor, tf.Tensor]:
    scores = tf.matmul(queries, items, transpose_b=True)
    scores = tf.tensor_scatter_nd_update(scores, hidden, tf.fill(tf.shape(hidden)[:1], -np.inf))
    values, places = tf.math.top_k(scores, k)
    return values, places
