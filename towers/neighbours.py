"""The metric that chooses the epoch of `task = "similarity"`: held-out items, and who stands next to them.

In: looked-up features of training and validation items, and who of them is like a validation item. Out: one number.
"""

from dataclasses import dataclass

import numpy as np

from towers.events import Int64s
from towers.model import Encoded, TwoTower
from towers.relations import Marks, Places, Relation
from towers.top_k import top_k
from towers.training_parts import Measured
from towers.validation import embed_all


@dataclass(frozen=True)
class NeighbourValidation:
    """Held-out items, each a query among all candidates but itself.

    Attributes:
        candidate: looked-up features of the candidates, by name.
        query: [Q] places of the held-out items among them.
        relation: who is like whom, among the candidates.
        likes: [Q] how many candidates each one is like; at least one.
        metric: ``precision@k``, hits / k, or ``recall@k``, hits / likes.
    """

    candidate: Encoded
    query: Int64s
    relation: Relation
    likes: Int64s
    metric: str

    def measure(self, model: TwoTower) -> Measured:
        """Mean of the metric over the held-out items, which chooses the epoch."""
        name, _, depth = self.metric.partition("@")
        k = int(depth)
        vectors = embed_all(model.candidate_tower.serve, self.candidate)
        own = np.arange(len(self.query) + 1)
        lists = top_k(vectors[self.query], vectors, k, own, self.query.astype(np.int32))
        hits = found(self.relation, self.query, lists).sum(axis=1)
        value = float(np.mean(hits / (k if name == "precision" else self.likes)))
        return Measured(value, value)


def found(relation: Relation, query: Int64s, lists: Places) -> Marks:
    """Which entries of `lists` [Q, k] their query [Q] is like; an entry of -1 is none."""
    rows = np.repeat(query, lists.shape[1])
    marks = relation.alike(rows, np.maximum(lists, 0).ravel()).reshape(lists.shape)
    return marks & (lists >= 0)
