"""Evaluates item neighbours for a report of `task = "similarity"`: do they share a class, or are they known partners?

Returns one row per queried item, one column per ranker and k, and how often a similar item is nearer than a dissimilar
one. Only labelled items are ranked, since no other item can be evaluated.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
import scipy.stats
from numpy.typing import NDArray

from pipelines.console import Advance, no_bar, progress
from pipelines.rankers.item_knn import PHASE, ItemKnn, nearest_items, too_large
from pipelines.rankers.popular import Popular
from pipelines.rankers.ranker import BEST, EXACT, KNN, POPULARITY
from pipelines.training.similarity.labels import HELD_OUT, TRAINING, Labels, questions
from serving.search.exact import BLOCK_QUERIES, ExactIndex
from serving.search.index import Floats
from towers.data.events import Int32s, Int64s
from towers.data.item_relations import ByClass, Relation, counts
from towers.tasks.similarity import found

CHANCE = "chance"
GROUPS = {"training": TRAINING, "held_out": HELD_OUT}
QUERIES, ANCHORS, SEED = 10_000, 2_000, 0  # most items of each group; larger groups are sampled with the seed
NEIGHBOURS, SHRINKAGE = 100, 10.0  # of item-kNN: no validation chooses them here
BLOCK = 64  # anchors whose distances to all items are sorted at once
DIGITS = 6  # of a similarity: rounding errors must not separate equal vectors

Values = NDArray[np.float64]


@dataclass(frozen=True)
class Neighbours:
    """The figures of one group of items.

    Attributes:
        places: [Q] the queried items, by place among the labelled ones.
        likes: [Q] how many other items each is similar to.
        nearest: [Q, K] the model's nearest items, by place, best first, padded with -1.
        columns: ``<ranker>_<metric>@<k>`` -> [Q].
        nearer: [Q] share of (similar, dissimilar) pairs whose similar item is nearer, ties count half; NaN if the
            item has no vector, all or none are similar to it, or it is not in the sample.
        triples: number of (item, similar, dissimilar) triples behind those shares.
    """

    places: Int64s
    likes: Int64s
    nearest: Int64s
    columns: Mapping[str, Values]
    nearer: Values
    triples: int


class Ranked:
    """The labelled items of a bundle and their rankers.

    Args:
        labels: the labelled items.
        vectors: [n, D], arbitrary for items without one.
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
        self.knn = None if self.left_out else self._knn(users, place, (len(known[0]) - 1, len(labels.items)))

    def _knn(self, users: Int64s, places: Int64s, shape: tuple[int, int]) -> ItemKnn:
        with progress(PHASE, total=shape[1], unit="items") as advance:
            nearest = nearest_items(users, places, shape, neighbours=NEIGHBOURS, shrinkage=SHRINKAGE, advance=advance)
        return ItemKnn(sp.csr_array(nearest.T), self.order)

    def lists(self, query: Int64s, k: int) -> dict[str, NDArray[np.integer[Any]]]:
        """Returns each ranker's k nearest of `query` [Q], without the query itself: places [Q, k], padded with -1."""
        own = np.arange(len(query) + 1)
        popular = Popular(self.order).lists(own, query, k)
        nearest: NDArray[np.integer[Any]] = popular.copy()  # the answer for queries without a vector
        asked = np.flatnonzero(self.has_vector[query])
        itself = np.searchsorted(self.stored, query[asked])
        rows, _ = self.index.search(self.vectors[query[asked]], k, [row[np.newaxis] for row in itself])
        nearest[asked] = np.where(rows >= 0, self.stored[rows], -1)
        lists = {EXACT: nearest, POPULARITY: popular}
        return lists if self.knn is None else lists | {KNN: self.knn.lists(own, query, k)}


def metric_of(labels: Labels) -> str:
    """Returns precision for classes, and recall for pairs, because an item has few."""
    return "precision" if isinstance(labels.relation, ByClass) else "recall"


@dataclass(frozen=True)
class Asked:
    """The items of one part that are queried.

    Attributes:
        candidates: places of the items that may be their neighbours.
        places: [Q] their own, ascending.
        anchors: [A] rows of `places`, ascending: those whose distances to all items are sorted.
    """

    candidates: Int64s
    places: Int64s
    anchors: Int64s

    @classmethod
    def of(cls, ranked: Ranked, part: int) -> "Asked":
        """Samples the items of `TRAINING` or `HELD_OUT`, if there are many, with a fixed seed."""
        generator = np.random.default_rng(SEED)
        candidates, asked = questions(ranked.labels, part)
        asked = np.sort(generator.choice(asked, min(QUERIES, len(asked)), replace=False))
        with_vector = np.flatnonzero(ranked.has_vector[asked])
        anchors = np.sort(generator.choice(with_vector, min(ANCHORS, len(with_vector)), replace=False))
        return cls(candidates, asked, anchors)

    @property
    def steps(self) -> int:
        """How many items `neighbours` counts: each queried item, and each anchor once more."""
        return len(self.places) + len(self.anchors)


def neighbours(ranked: Ranked, asked: Asked, ks: Sequence[int], advance: Advance = no_bar) -> Neighbours:
    """Evaluates the items of one part.

    Args:
        ranked: the labelled items.
        asked: those of the part.
        ks: list lengths to evaluate, each below the number of labelled items.
        advance: of `pipelines.console.progress`, in items: `Asked.steps` in all.
    """
    relation, metric, places = ranked.labels.relation, metric_of(ranked.labels), asked.places
    likes, others = np.empty(len(places), np.int64), len(asked.candidates) - 1
    nearest = np.empty((len(places), max(ks)), np.int64)
    columns: dict[str, Values] = {}
    # At least one block, so that a part without items has its columns, too.
    for begin in range(0, max(len(places), 1), BLOCK_QUERIES):
        rows = slice(begin, begin + BLOCK_QUERIES)
        likes[rows] = counts(relation, places[rows], asked.candidates)
        ranked_lists = ranked.lists(places[rows], max(ks))
        nearest[rows] = ranked_lists[EXACT]
        for ranker, lists in ranked_lists.items():
            hits = found(relation, places[rows], lists)
            for k in ks:
                column = columns.setdefault(f"{ranker}_{metric}@{k}", np.empty(len(places)))
                column[rows] = hits[:, :k].sum(axis=1) / (k if metric == "precision" else likes[rows])
        advance(len(places[rows]))
    for k in ks:
        # A random order: each of its k places holds a similar item with probability likes / others.
        chance = likes / others if metric == "precision" else np.full(len(likes), k / others)
        columns[f"{CHANCE}_{metric}@{k}"] = chance
        columns[f"{BEST}_{metric}@{k}"] = np.minimum(k, likes) / (k if metric == "precision" else likes)
    nearer, triples = np.full(len(places), np.nan), 0
    for begin in range(0, len(asked.anchors), BLOCK):
        block = asked.anchors[begin : begin + BLOCK]
        nearer[block], count = like_is_nearer(ranked.vectors, ranked.stored, relation, places[block])
        triples += count
        advance(len(block))
    return Neighbours(places, likes, nearest, columns, nearer, triples)


def like_is_nearer(vectors: Floats, places: Int64s, relation: Relation, anchors: Int64s) -> tuple[Values, int]:
    """How often d(within) < d(between): the exact share over all pairs of one similar and one dissimilar item.

    ``(sum of the similar items' ranks - m (m + 1) / 2) / (m l)`` with ranks by ascending similarity, m similar and l
    dissimilar items: the Mann-Whitney U over its greatest value.

    Args:
        vectors: [n, D].
        places: of the items that have a vector, ascending.
        relation: which of all n items are similar.
        anchors: [A] places, each one of `places`.

    Returns:
        The shares [A], NaN where m or l is 0, and the number of pairs.

    Source: Mann & Whitney, Annals of Mathematical Statistics 18(1), 1947.
    """
    itself = anchors[:, np.newaxis] == places[np.newaxis, :]
    similar = np.round(vectors[anchors].astype(np.float64) @ vectors[places].astype(np.float64).T, DIGITS)
    like = relation.between(anchors, places) & ~itself
    # The anchor itself has rank 1; subtracting 1 removes it from the others' ranks.
    ranks = scipy.stats.rankdata(np.where(itself, -np.inf, similar), axis=1) - 1
    m = like.sum(axis=1)
    pairs = m * (len(places) - 1 - m)
    wins = np.where(like, ranks, 0).sum(axis=1) - m * (m + 1) / 2
    share: Values = np.divide(wins, pairs, out=np.full(len(anchors), np.nan), where=pairs > 0)
    return share, int(pairs.sum())
