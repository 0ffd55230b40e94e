"""Recall: plan, encode, search, fill up to k, fall back. No web code, no TensorFlow.

`serving.recall.planner` has the rules for what a query is answered from.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter

import numpy as np

from serving.bundle.reader import Bundle
from serving.bundle.request_features import TowerEncoder
from serving.catalogue.catalogue import Catalogue, Snapshot, Wanted
from serving.catalogue.user_events import UserEvents
from serving.errors import RequestError
from serving.recall.planner import Planner
from serving.recall.query import EVERYTHING, Embedded, Plan, Recalled, RecallQuery
from serving.search.diversity import search_diverse
from serving.search.index import Floats, Index, Mask, Rows
from serving.telemetry import metrics


@dataclass
class Work:
    """Queries in progress: `Recaller.begin` plans them, `encode` and `answers` do the rest.

    Attributes:
        items: the catalogue that answers them.
        plans: plans of the valid queries, in order.
        errors: errors of the others, by position.
        vectors: [P, D] of the plans, zero until the tower has encoded them.
    """

    items: Snapshot
    plans: list[Plan]
    vectors: Floats
    errors: dict[int, RequestError] = field(default_factory=dict)

    @property
    def unencoded(self) -> list[int]:
        """Positions of the plans that need the tower."""
        return [place for place, plan in enumerate(self.plans) if plan.vector is None and plan.source != "popular"]


class Recaller:
    """Answers from one bundle and the changes since it was made.

    Args:
        bundle: an opened bundle.
        index: searches the bundle's `recall_vectors`.
        encoder: the query tower; without one only stored vectors, similar items and popular items are served.
        users: users' events since the bundle was made; shared by the bundles of one service.

    Attributes:
        exact: exact search over the same vectors; may be `index` itself.
    """

    def __init__(
        self, bundle: Bundle, index: Index, encoder: TowerEncoder | None = None, users: UserEvents | None = None
    ) -> None:
        self.bundle, self.encoder = bundle, encoder
        users = UserEvents() if users is None else users
        self.catalogue = Catalogue(bundle, index, users.item_counts)
        self.exact = self.catalogue.exact
        self.planner = Planner(bundle, users, encodes=encoder is not None)

    @property
    def index(self) -> Index:
        """Searches the bundle's item vectors."""
        return self.catalogue.index

    def recall(self, query: RecallQuery) -> Recalled:
        """Answers one query.

        Raises:
            RequestError: a feature is invalid, or features are given without an encoder.
        """
        return self.recall_many([query])[0]

    def recall_many(self, queries: Sequence[RecallQuery]) -> list[Recalled]:
        """Answers several queries, each as `recall` would, with one call of the tower and few searches.

        Raises:
            RequestError: as `recall`, for the first invalid query.
        """
        return self.answers(self.encoded(queries))

    def begin(self, queries: Sequence[RecallQuery]) -> Work:
        """Plans queries; an invalid one gets its own error, the others their plans."""
        started = perf_counter()
        items = self.catalogue.snapshot()
        plans: list[Plan] = []
        errors, stored = {}, self.planner.stored(queries, items)
        for place, query in enumerate(queries):
            try:
                plans.append(stored.get(place) or self.planner.plan(query, items))
            except RequestError as error:
                # Without its traceback: the frames hold this dictionary, and so the error itself and the bundle.
                errors[place] = error.with_traceback(None)
        vectors = np.zeros((len(plans), self.bundle.manifest.dimension), np.float32)
        for place, plan in enumerate(plans):
            if plan.vector is not None:
                vectors[place] = plan.vector
        metrics.stage("plan", perf_counter() - started)
        return Work(items, plans, vectors, errors)

    def encode(self, work: Work) -> None:
        """Computes the missing vectors with one call of the tower.

        Raises:
            RequestError: a feature is invalid, or there is no encoder.
        """
        if not (places := work.unencoded):
            return
        if self.encoder is None:
            raise RequestError("features: no query tower is loaded here", code="no_encoder", field="features")
        started = perf_counter()
        work.vectors[places] = self.encoder.encode([work.plans[place].features for place in places])
        metrics.stage("encode", perf_counter() - started)

    def answers(self, work: Work) -> list[Recalled]:
        """Answers the plans of encoded work with few searches."""
        started = perf_counter()
        (plans, vectors), items = self.searches(work), work.items
        found: dict[int, tuple[Rows, Floats]] = {}
        for places in _alike(plans):
            first = plans[places[0]].query
            queries = vectors if len(places) == len(plans) else vectors[places]
            rows, scores = items.search(queries, first.k, [plans[place].excluded for place in places], first.wanted)
            counts = (rows >= 0).sum(axis=1).tolist()
            found |= zip(places, [(r[:n], s[:n]) for r, s, n in zip(rows, scores, counts, strict=True)], strict=True)
        for place, plan in enumerate(plans):
            if place not in found:
                found[place] = _alone(plan, vectors[place], items)
            if plan.source == "popular":
                metrics.fell_back("popular")
        version = self.bundle.manifest.model_version
        recalled = [Recalled(items, *found[place], version, plan.source) for place, plan in enumerate(plans)]
        metrics.answered([plan.source for plan in plans], version)
        metrics.stage("search", perf_counter() - started)
        return recalled

    def embed(self, queries: Sequence[RecallQuery]) -> list[Embedded]:
        """The vectors that `recall_many` would search with."""
        work = self.encoded(queries)
        return [
            Embedded(vector, plan.source) for plan, vector in zip(_plans_with_sources(work), work.vectors, strict=True)
        ]

    def searches(self, work: Work) -> tuple[list[Plan], Floats]:
        """The plans of encoded work with the sources that answer, and what searches `recall_vectors` for each."""
        plans = _plans_with_sources(work)
        return plans, self.bundle.recall_queries(work.vectors, np.array([plan.history for plan in plans], np.int64))

    def encoded(self, queries: Sequence[RecallQuery]) -> Work:
        """Plans and encodes queries.

        Raises:
            RequestError: as `recall`, for the first invalid query.
        """
        work = self.begin(queries)
        if work.errors:
            raise work.errors[min(work.errors)]
        self.encode(work)
        return work

    def recall_users(self, query_rows: Rows, k: int) -> tuple[Rows, Floats]:
        """Answers many known users at once, without the items they have seen.

        Args:
            query_rows: rows of `bundle.query_vectors`, [B].
            k: how many items, at least 1.

        Returns:
            Item rows [B, k] and scores [B, k], best first; row -1 with score -inf where fewer are eligible. Popular
            items for a user whose stored vector is zero.
        """
        items = self.catalogue.snapshot()
        excluded = self.bundle.seen_sets(query_rows)
        vectors = self.bundle.recall_queries(self.bundle.query_vectors[query_rows], self.bundle.seen_counts(query_rows))
        rows, scores = items.search(vectors, k, excluded, EVERYTHING)
        for place in np.flatnonzero(~self.bundle.has_vector(query_rows)):
            found, counts = items.popular(k, excluded[place], EVERYTHING)
            rows[place], scores[place] = -1, -np.inf
            rows[place, : len(found)], scores[place, : len(found)] = found, counts
        return rows, scores


def _plans_with_sources(work: Work) -> list[Plan]:
    """The plans of encoded work; a zero vector, about which training learnt nothing, makes a plan "popular"."""
    known = np.any(work.vectors != 0, axis=1).tolist()
    return [plan if knows else plan._replace(source="popular") for plan, knows in zip(work.plans, known, strict=True)]


def _alike(plans: Sequence[Plan]) -> list[list[int]]:
    """Positions of plans that share a search: equal k and wanted items, so that batching changes no answer."""
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


def _alone(plan: Plan, vector: Floats, items: Snapshot) -> tuple[Rows, Floats]:
    """The answer to a plan that shares no search."""
    query = plan.query

    def search(k: int, hidden: Mask | None) -> tuple[Rows, Floats]:
        if plan.source == "popular":
            return items.popular(k, plan.excluded, query.wanted, query.segment, hidden)
        rows, scores = items.search(vector[np.newaxis], k, [plan.excluded], query.wanted, hidden)
        return rows[0], scores[0]

    return search(query.k, None) if query.diversity is None else diverse(search, query, items)


def diverse(
    search: Callable[[int, Mask | None], tuple[Rows, Floats]], query: RecallQuery, items: Snapshot
) -> tuple[Rows, Floats]:
    """The best items of which at most `query.diversity.most` share a value; `search` as of `search_diverse`."""
    assert query.diversity is not None
    column, most = query.diversity.column, query.diversity.most
    values, holding = partial(items.values, column), partial(items.holding, column)
    return search_diverse(search, values, holding, most, query.k, items.total)
