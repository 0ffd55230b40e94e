"""Neighbours of items in a report of `task = "similarity"`: are they of the same class, or known partners?

In: item vectors, labels, and events for the baselines. Out: one row per item asked about, one column per ranker and k,
and how often a like item is nearer than an unlike one. Only labelled items are ranked: of others nobody can judge.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.stats
from numpy.typing import NDArray

from pipelines.evaluation.knn import ItemKnn, too_large
from pipelines.evaluation.popular import popular_lists
from pipelines.evaluation.rankers import BEST, EXACT, KNN, POPULARITY
from pipelines.labels import HELD_OUT, TRAINING, Labels, questions
from serving.index import ExactIndex, Floats
from towers.events import Int32s, Int64s
from towers.relations import ByClass, Relation, counts
from towers.similarity import found

CHANCE = "chance"
GROUPS = {"training": TRAINING, "held_out": HELD_OUT}
QUERIES, ANCHORS, SEED = 10_000, 2_000, 0  # items of each group at most, seeded samples of larger ones
BLOCK = 64  # anchors whose distances to all items are sorted at once
DIGITS = 6  # of a similarity: equal vectors must not be told apart by rounding

Values = NDArray[np.float64]


@dataclass(frozen=True)
class Neighbours:
    """What was measured of one group of items.

    Attributes:
        places: [Q] the items asked about, by place among the labelled ones.
        likes: [Q] how many others each one is like.
        columns: ``<ranker>_<metric>@<k>`` -> [Q].
        nearer: [Q] share of (like, unlike) pairs of which the like one is nearer, equal ones half; NaN where the item
            has no vector, all or none are like it, or it is not in the sample.
        triples: number of (item, like, unlike) that make those shares.
    """

    places: Int64s
    likes: Int64s
    columns: Mapping[str, Values]
    nearer: Values
    triples: int


class Ranked:
    """The labelled items of a bundle, and who ranks them.

    Args:
        labels: the labelled items.
        vectors: [n, D] of each, anything where there is none.
        has_vector: [n].
        known: offsets [U + 1] and items of every user's events before the test, for the baselines.
    """

    def __init__(
        self, labels: Labels, vectors: Floats, has_vector: NDArray[np.bool_], known: tuple[Int64s, Int32s]
    ) -> None:
        self.labels, self.vectors, self.has_vector = labels, vectors, has_vector
        self.stored = np.flatnonzero(has_vector)
        self.index = ExactIndex(np.ascontiguousarray(vectors[self.stored]))
        place_of = np.full(max(int(known[1].max(initial=0)), int(labels.items.max())) + 1, -1, np.int64)
        place_of[labels.items] = np.arange(len(labels.items))
        users = np.repeat(np.arange(len(known[0]) - 1), np.diff(known[0]))
        place = place_of[known[1]]
        users, place = users[place >= 0], place[place >= 0]
        popularity = np.bincount(place, minlength=len(labels.items))
        self.order = np.argsort(-popularity, kind="stable").astype(np.int32)
        self.left_out = too_large(np.bincount(users), len(labels.items)) if len(users) else "left out: no events"
        shape = (len(known[0]) - 1, len(labels.items))
        self.knn = ItemKnn.fit(users, place, shape) if self.left_out is None else None

    def lists(self, query: Int64s, k: int) -> dict[str, NDArray[np.integer[Any]]]:
        """For each ranker the k nearest of `query` [Q], itself left out: places [Q, k], -1 where a list has ended."""
        own = np.arange(len(query) + 1)
        popular = popular_lists(self.order, own, query, k)
        nearest: NDArray[np.integer[Any]] = popular.copy()  # a query without a vector is answered so
        asked = np.flatnonzero(self.has_vector[query])
        itself = np.searchsorted(self.stored, query[asked])
        rows, _ = self.index.search(self.vectors[query[asked]], k, [row[np.newaxis] for row in itself])
        nearest[asked] = np.where(rows >= 0, self.stored[rows], -1)
        lists = {EXACT: nearest, POPULARITY: popular}
        return lists if self.knn is None else lists | {KNN: self.knn.lists(own, query, k)}


def metric_of(labels: Labels) -> str:
    """Precision for classes; recall for pairs, of which an item has few."""
    return "precision" if isinstance(labels.relation, ByClass) else "recall"


def neighbours(ranked: Ranked, part: int, ks: Sequence[int]) -> Neighbours:
    """Measures the items of one part.

    Args:
        ranked: the labelled items.
        part: `TRAINING` or `HELD_OUT`.
        ks: lengths at which lists are judged, each below the number of labelled items.
    """
    generator = np.random.default_rng(SEED)
    candidates, asked = questions(ranked.labels, part)
    asked = np.sort(generator.choice(asked, min(QUERIES, len(asked)), replace=False))
    relation, metric = ranked.labels.relation, metric_of(ranked.labels)
    likes, others = counts(relation, asked, candidates), len(candidates) - 1
    columns: dict[str, Values] = {}
    for ranker, lists in ranked.lists(asked, max(ks)).items():
        hits = found(relation, asked, lists)
        for k in ks:
            columns[f"{ranker}_{metric}@{k}"] = hits[:, :k].sum(axis=1) / (k if metric == "precision" else likes)
    for k in ks:
        # Of a random order: each of its k places holds one of the like items with probability likes / others.
        chance = likes / others if metric == "precision" else np.full(len(likes), k / others)
        columns[f"{CHANCE}_{metric}@{k}"] = chance
        columns[f"{BEST}_{metric}@{k}"] = np.minimum(k, likes) / (k if metric == "precision" else likes)
    nearer, triples = np.full(len(asked), np.nan), 0
    with_vector = np.flatnonzero(ranked.has_vector[asked])
    sample = np.sort(generator.choice(with_vector, min(ANCHORS, len(with_vector)), replace=False))
    for begin in range(0, len(sample), BLOCK):
        block = sample[begin : begin + BLOCK]
        nearer[block], count = like_is_nearer(ranked.vectors, ranked.stored, relation, asked[block])
        triples += count
    return Neighbours(asked, likes, columns, nearer, triples)


def like_is_nearer(vectors: Floats, places: Int64s, relation: Relation, anchors: Int64s) -> tuple[Values, int]:
    """How often d(within) < d(between): the exact share over all pairs of one like and one unlike item.

    ``(sum of the like items' ranks - m (m + 1) / 2) / (m l)`` with ranks by rising similarity, m like and l unlike
    items: the Mann-Whitney U over its greatest value.

    Args:
        vectors: [n, D].
        places: those that have a vector, rising.
        relation: who is like whom, among all n.
        anchors: [A] places, each one of `places`.

    Returns:
        [A], NaN where m or l is 0; and the number of pairs.

    Source: Mann & Whitney, Annals of Mathematical Statistics 18(1), 1947.
    """
    itself = anchors[:, np.newaxis] == places[np.newaxis, :]
    similar = np.round(vectors[anchors].astype(np.float64) @ vectors[places].astype(np.float64).T, DIGITS)
    like = relation.between(anchors, places) & ~itself
    # The anchor itself has the lowest rank, and is taken off the others'.
    ranks = scipy.stats.rankdata(np.where(itself, -np.inf, similar), axis=1) - 1
    m = like.sum(axis=1)
    pairs = m * (len(places) - 1 - m)
    wins = np.where(like, ranks, 0).sum(axis=1) - m * (m + 1) / 2
    share: Values = np.divide(wins, pairs, out=np.full(len(anchors), np.nan), where=pairs > 0)
    return share, int(pairs.sum())
