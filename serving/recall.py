"""Recall: plan, encode, search, fill up to k, fall back. No web code, no TensorFlow.

In: `RecallQuery`s. Out: `Recalled`s. The rules of what a query is answered from stand in `serving.plan`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

import numpy as np

from serving.bundle import Bundle
from serving.catalogue import Catalogue, Mask, Snapshot, Wanted
from serving.diversity import search_diverse
from serving.errors import RequestError
from serving.index import ExactIndex, Floats, Index, Rows
from serving.live_users import LiveUsers
from serving.plan import Plan, Planner
from serving.query import EVERYTHING, Embedded, Recalled, RecallQuery


class QueryEncoder(Protocol):
    """What turns features into vectors: `serving.encoder.Encoder`, or a plain function's wrapper in a test."""

    def encode(self, requests: Sequence[Mapping[str, Any]]) -> Floats:
        """The vectors [B, D] of B requests."""
        ...


class Recaller:
    """Answers from one bundle, and from what changed since it was made.

    Args:
        bundle: an opened bundle.
        index: searches the bundle's item vectors.
        encoder: the query tower; without one only stored vectors, similar items and popular items are served.
        users: what users took since the bundle was made; shared by the bundles of one service.
    """

    def __init__(
        self, bundle: Bundle, index: Index, encoder: QueryEncoder | None = None, users: LiveUsers | None = None
    ) -> None:
        self.bundle, self.encoder = bundle, encoder
        self.catalogue = Catalogue(bundle, index)
        self.planner = Planner(bundle, LiveUsers() if users is None else users, encodes=encoder is not None)

    @property
    def index(self) -> Index:
        """What searches the bundle's item vectors."""
        return self.catalogue.index

    @property
    def exact(self) -> ExactIndex:
        """Exact search over the same vectors; may be `index` itself."""
        return self.catalogue.exact

    def recall(self, query: RecallQuery) -> Recalled:
        """Answers one query.

        Raises:
            RequestError: a feature is wrong, or features are given and there is no encoder.
        """
        return self.recall_many([query])[0]

    def recall_many(self, queries: Sequence[RecallQuery]) -> list[Recalled]:
        """Answers several queries, each as `recall` would, with one call of the tower and few searches.

        Raises:
            RequestError: as `recall`, for the first wrong query.
        """
        items = self.catalogue.snapshot()
        plans, vectors = self._encoded([self.planner.plan(query, items) for query in queries])
        answers: dict[int, tuple[Rows, Floats]] = {}
        for places in _alike(plans):
            excluded = [plans[place].excluded for place in places]
            first = plans[places[0]].query
            rows, scores = items.search(vectors[places], first.k, excluded, first.wanted)
            answers |= {place: (rows[i], scores[i]) for i, place in enumerate(places)}
        for place, plan in enumerate(plans):
            if plan.query.diversity is not None:
                answers[place] = _diverse(plan, vectors[place], items)
            elif plan.source == "popular":
                answers[place] = items.popular(plan.query.k, plan.excluded, plan.query.wanted, plan.query.segment)
        return [self._answer(plan, items, *answers[place]) for place, plan in enumerate(plans)]

    def embed(self, queries: Sequence[RecallQuery]) -> list[Embedded]:
        """The vectors that `recall_many` would search with."""
        items = self.catalogue.snapshot()
        plans, vectors = self._encoded([self.planner.plan(query, items) for query in queries])
        return [Embedded(vector, plan.source) for plan, vector in zip(plans, vectors, strict=True)]

    def recall_users(self, query_rows: Rows, k: int, *, exclude_seen: bool = True) -> tuple[Rows, Floats]:
        """Answers for many known users at once: the batched form for bulk recall and offline checks.

        Args:
            query_rows: rows of `bundle.query_vectors`, [B].
            k: how many items, at least 1.
            exclude_seen: leave out what each user has seen.

        Returns:
            Item rows [B, k] and scores [B, k], best first; row -1 with score -inf where fewer are eligible. Popular
            items for a user whose stored vector is zero.
        """
        items = self.catalogue.snapshot()
        excluded = [
            np.unique(self.bundle.seen(int(row))).astype(np.int64) if exclude_seen else np.empty(0, np.int64)
            for row in query_rows
        ]
        rows, scores = items.search(self.bundle.query_vectors[query_rows], k, excluded, EVERYTHING)
        for place in np.flatnonzero(~self.bundle.has_vector(query_rows)):
            found, counts = items.popular(k, excluded[place], EVERYTHING)
            rows[place], scores[place] = -1, -np.inf
            rows[place, : len(found)], scores[place, : len(found)] = found, counts
        return rows, scores

    def _encoded(self, plans: list[Plan]) -> tuple[list[Plan], Floats]:
        """The query vectors of the plans, [B, D], by one call of the tower; a zero vector's plan becomes "popular"."""
        vectors = np.zeros((len(plans), self.bundle.manifest.dimension), np.float32)
        encoded = [place for place, plan in enumerate(plans) if plan.vector is None and plan.source != "popular"]
        for place, plan in enumerate(plans):
            if plan.vector is not None:
                vectors[place] = plan.vector
        if encoded:
            if self.encoder is None:
                raise RequestError("features: no query tower is loaded here", code="no_encoder", field="features")
            vectors[encoded] = self.encoder.encode([plans[place].features for place in encoded])
        known = np.any(vectors != 0, axis=1).tolist()
        return [plan if knows else replace(plan, source="popular") for plan, knows in zip(plans, known, strict=True)], (
            vectors
        )

    def _answer(self, plan: Plan, items: Snapshot, rows: Rows, scores: Floats) -> Recalled:
        count = min(plan.query.k, int(np.count_nonzero(rows >= 0)))
        rows, scores = rows[:count], scores[:count]
        return Recalled(rows, items.names(rows), scores, self.bundle.manifest.model_version, plan.source)


def _alike(plans: Sequence[Plan]) -> list[list[int]]:
    """Places of the plans that one search answers together: as many of the same items, so that none gets other ones."""
    groups: list[tuple[tuple[int, Wanted], list[int]]] = []
    for place, plan in enumerate(plans):
        if plan.source == "popular" or plan.query.diversity is not None:
            continue
        asked = plan.query.k, plan.query.wanted
        group = next((places for each, places in groups if each == asked), None)
        if group is None:
            groups.append((asked, group := []))
        group.append(place)
    return [places for _, places in groups]


def _diverse(plan: Plan, vector: Floats, items: Snapshot) -> tuple[Rows, Floats]:
    """The best items of which at most so many share a value."""
    query = plan.query
    assert query.diversity is not None
    column = query.diversity.column

    def search(k: int, hidden: Mask | None) -> tuple[Rows, Floats]:
        if plan.source == "popular":
            return items.popular(k, plan.excluded, query.wanted, query.segment, hidden)
        rows, scores = items.search(vector[np.newaxis], k, [plan.excluded], query.wanted, hidden)
        return rows[0], scores[0]

    return search_diverse(
        search,
        lambda rows: items.values(column, rows),
        lambda values: items.holding(column, values),
        query.diversity.most,
        query.k,
        items.total,
    )
