"""The metric that chooses the epoch: held-out users, the whole catalogue, seen items masked, top-k in blocks.

In: looked-up features and the held-out users' targets. Out: one number.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from towers import metrics
from towers.events import Floats, Int32s, Int64s
from towers.model import Encoded, Tower, TwoTower
from towers.norm_exponent import best_exponent, scaled
from towers.tables import bagged
from towers.top_k import top_k

ROWS = 8_192  # rows encoded at once


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
        """Mean of the metric over the held-out users; chooses the model's norm exponent where the recipe says so.

        Only items of which training learnt something are ranked, as only they are served: an unlearnt item's zero
        vector scores 0, which is more than most items get from a loss that pushes scores down.
        """
        name, _, depth = self.metric.partition("@")
        k = int(depth)
        learnt = np.flatnonzero(informed(model.candidate_tower, self.candidate)).astype(np.int32)
        place = np.full(len(next(iter(self.candidate.values()))), -1, np.int32)
        place[learnt] = np.arange(len(learnt), dtype=np.int32)
        vectors = embed_all(
            partial(model.candidate_tower.serve, norm_exponent=0.0),
            {key: rows[learnt] for key, rows in self.candidate.items()},
        )
        queries = embed_all(model.query_tower.serve, self.query)
        hidden = place[self.seen_items]

        def metric(norm_exponent: float) -> float:
            found = top_k(queries, scaled(vectors, norm_exponent), k, self.seen_offsets, hidden)
            lists = np.where(found >= 0, np.append(learnt, np.int32(-1))[found], np.int32(-1))
            hits = metrics.hits(lists, self.target_offsets, self.target_items)
            return float(np.nanmean(metrics.METRICS[name](hits, np.diff(self.target_offsets), k)))

        own = model.candidate_tower.norm_exponent
        if model.settings.norm_exponent != "validation":
            return metric(float(own))
        best, value = best_exponent(metric, float(own))
        own.assign(best)
        return value


def informed(tower: Tower, features: Mapping[str, NDArray[Any]]) -> NDArray[np.bool_]:
    """Which rows have at least one feature that training learnt something of: bool [R]; see `Tower.informed`."""
    count = len(next(iter(features.values())))
    blocks = [
        tower.informed({name: tf.constant(rows[begin : begin + ROWS]) for name, rows in features.items()}).numpy()
        for begin in range(0, count, ROWS)
    ]
    return np.concatenate([np.empty(0, np.bool_), *blocks])


def embed_all(encode: Callable[[Encoded], tf.Tensor], encoded: Mapping[str, np.ndarray]) -> Floats:
    """Vectors [R, D] that `encode`, of a tower, makes of every row of looked-up features."""
    rows = len(next(iter(encoded.values())))
    out: Floats | None = None
    for begin in range(0, rows, ROWS):
        features = bagged({name: values[begin : begin + ROWS] for name, values in encoded.items()})
        block = encode(tf.nest.map_structure(tf.constant, features)).numpy()
        if out is None:
            out = np.empty((rows, block.shape[1]), np.float32)
        out[begin : begin + len(block)] = block
    return out if out is not None else np.empty((0, 0), np.float32)
