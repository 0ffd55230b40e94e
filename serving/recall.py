"""Recall: encode, search, filter, fill up to k, fall back. No web code, no TensorFlow.

In: a `RecallQuery`. Out: a `Recalled`. The rules, in this order:

1. informative features -> the query tower, source "features";
2. a history with known items -> the query tower where it has a history feature, source "history"; otherwise the mean of
   those items' normalised vectors, source "similar";
3. a known user -> the stored vector, source "user";
4. otherwise the most popular items with their event counts as scores, source "popular"; so too where the vector of the
   rules above is zero, which says that training learnt nothing of what was given.

Features are informative unless they hold only missing values, an unknown user id, or a history without a known item.
Beside features or a history, the tower also gets the user id and, for a known user who sends no history, the stored
one. What `features` say of user id or history goes into the tower before what stands beside them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol

import numpy as np

from serving.bundle import Bundle
from serving.errors import RequestError
from serving.features import check_features, history_of, is_missing
from serving.filtering import popular, search_filtered
from serving.index import ExactIndex, Floats, Index, Rows

Source = Literal["user", "features", "history", "similar", "popular"]


class QueryEncoder(Protocol):
    """What turns features into vectors: `serving.encoder.Encoder`, or a plain function's wrapper in a test."""

    def encode(self, requests: Sequence[Mapping[str, Any]]) -> Floats:
        """The vectors [B, D] of B requests."""
        ...


@dataclass(frozen=True)
class RecallQuery:
    """What one caller asks.

    Attributes:
        user_id: a known user is answered from the stored vector.
        features: raw features of the query tower, by name.
        history: item ids, newest last.
        k: how many items.
        exclude: item ids that must not come back; unknown ones are ignored.
        exclude_seen: also leave out what a known user has seen, the given history, and an item asked with.
    """

    user_id: str | None = None
    features: Mapping[str, Any] | None = None
    history: Sequence[str] | None = None
    k: int = 100
    exclude: Sequence[str] = ()
    exclude_seen: bool = True


@dataclass(frozen=True)
class Recalled:
    """The answer: at most k items, best first, fewer only where fewer are eligible.

    Attributes:
        rows: item rows, [n].
        ids: item ids, n of them.
        scores: dot products, [n]; event counts where the source is "popular".
        model_version: of the bundle.
        source: what answered.
    """

    rows: Rows
    ids: list[str]
    scores: Floats
    model_version: str
    source: Source


@dataclass(frozen=True)
class _Plan:
    """How one query is answered: a vector at hand, features to encode, or neither."""

    source: Source
    excluded: Rows
    k: int
    vector: Floats | None = None
    features: dict[str, Any] = field(default_factory=dict)


class Recaller:
    """Answers from one bundle.

    Args:
        bundle: an opened bundle.
        index: searches the bundle's item vectors.
        encoder: the query tower; without one only stored vectors, similar items and popular items are served.
    """

    def __init__(self, bundle: Bundle, index: Index, encoder: QueryEncoder | None = None) -> None:
        self.bundle, self.index, self.encoder = bundle, index, encoder
        self.exact = index if isinstance(index, ExactIndex) else ExactIndex(bundle.item_vectors)
        self._id_feature = bundle.manifest.query_feature("id")
        self._history_feature = bundle.manifest.query_feature("history")
        self._times_feature = bundle.manifest.query_feature("history_times")
        self._item_feature = bundle.manifest.query_feature("item")

    def recall(self, query: RecallQuery) -> Recalled:
        """Answers one query.

        Raises:
            RequestError: a feature is wrong, or features are given and there is no encoder.
        """
        return self.recall_many([query])[0]

    def recall_many(self, queries: Sequence[RecallQuery]) -> list[Recalled]:
        """Answers several queries, each as `recall` would, with one call of the tower and one search.

        Raises:
            RequestError: as `recall`, for the first wrong query.
        """
        plans = [self._plan(query) for query in queries]
        answers: dict[int, tuple[Rows, Floats]] = {}
        searched = [place for place, plan in enumerate(plans) if plan.source != "popular"]
        vectors = self._vectors([plans[place] for place in searched])
        known = np.any(vectors != 0, axis=1).tolist()
        for place in (place for place, knows in zip(searched, known, strict=True) if not knows):
            plans[place] = replace(plans[place], source="popular")
        searched = [place for place, knows in zip(searched, known, strict=True) if knows]
        if searched:
            vectors = vectors[known]
            k = max(plans[place].k for place in searched)
            excluded = [plans[place].excluded for place in searched]
            rows, scores = search_filtered(self.index, self.exact, vectors, k, excluded)
            answers = {place: (rows[i], scores[i]) for i, place in enumerate(searched)}
        for place, plan in enumerate(plans):
            if plan.source == "popular":
                answers[place] = popular(self.bundle, plan.k, plan.excluded)
        return [self._answer(plan, *answers[place]) for place, plan in enumerate(plans)]

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
        excluded = [
            np.unique(self.bundle.seen(int(row))).astype(np.int64) if exclude_seen else np.empty(0, np.int64)
            for row in query_rows
        ]
        rows, scores = search_filtered(self.index, self.exact, self.bundle.query_vectors[query_rows], k, excluded)
        for place in np.flatnonzero(~self.bundle.has_vector(query_rows)):
            found, counts = popular(self.bundle, k, excluded[place])
            rows[place], scores[place] = -1, -np.inf
            rows[place, : len(found)], scores[place, : len(found)] = found, counts
        return rows, scores

    def _plan(self, query: RecallQuery) -> _Plan:
        if query.k < 1:
            raise RequestError(f"k: must be at least 1, got {query.k}", field="k")
        features = query.features or {}
        check_features(self.bundle.manifest.query_features, features)
        features = {name: value for name, value in features.items() if not is_missing(value)}
        user_row = self._user_row(query, features)
        history = self._known(query.history)
        excluded = self._excluded(query, features, user_row)

        def tower(source: Source) -> _Plan:
            return _Plan(source, excluded, query.k, features=self._tower_features(query, features, user_row, history))

        if self._informative(features):
            return tower("features")
        if history and self._history_feature is not None:
            return tower("history")
        if history:
            return _Plan("similar", excluded, query.k, vector=self._mean_vector(history))
        if user_row is not None:
            return _Plan("user", excluded, query.k, vector=self.bundle.query_vectors[user_row])
        return _Plan("popular", excluded, query.k)

    def _user_row(self, query: RecallQuery, features: Mapping[str, Any]) -> int | None:
        """The known user a query is about; one among the features goes before the one beside them."""
        rows = self.bundle.query_rows
        row = None if self._id_feature is None else rows.get(features.get(self._id_feature.name, ""))
        return rows.get(query.user_id or "") if row is None else row

    def _informative(self, features: Mapping[str, Any]) -> bool:
        for name, value in features.items():
            if self._id_feature is not None and name == self._id_feature.name:
                if value in self.bundle.query_rows:
                    return True
            elif self._history_feature is not None and name == self._history_feature.name:
                if self._known(value):
                    return True
            elif self._times_feature is None or name != self._times_feature.name:
                return True
        return False

    def _tower_features(
        self, query: RecallQuery, features: Mapping[str, Any], user_row: int | None, history: list[int]
    ) -> dict[str, Any]:
        """The features as sent, completed by user id and history where the tower takes them."""
        complete = dict(features)
        if self._id_feature is not None and query.user_id is not None:
            complete.setdefault(self._id_feature.name, query.user_id)
        if self._history_feature is not None:
            name = self._history_feature.name
            rows: Sequence[int] = self._known(features.get(name)) or history
            if not rows and user_row is not None:
                rows = self.bundle.seen(user_row)[-(self._history_feature.length or 0) :].tolist()
            # Unknown items would only push known ones out of the last `length`.
            complete[name] = [self.bundle.item_names[row] for row in rows]
        if self._times_feature is not None:
            sent = features.get(history_of(self._times_feature)) or ()
            times = complete.pop(self._times_feature.name, None) or ()
            known = [time for item, time in zip(sent, times, strict=False) if item in self.bundle.item_rows]
            complete |= {self._times_feature.name: known} if known else {}
        return complete

    def _excluded(self, query: RecallQuery, features: Mapping[str, Any], user_row: int | None) -> Rows:
        rows = self._known(query.exclude)
        seen = []
        if query.exclude_seen:
            rows += self._known(query.history)
            if self._history_feature is not None:
                rows += self._known(features.get(self._history_feature.name))
            if self._item_feature is not None:
                rows += self._known([features.get(self._item_feature.name, "")])
            if user_row is not None:
                seen.append(self.bundle.seen(user_row))
        return np.unique(np.concatenate([np.array(rows, np.int64), *seen])).astype(np.int64)

    def _known(self, item_ids: Sequence[str] | None) -> list[int]:
        rows = self.bundle.item_rows
        return [rows[item_id] for item_id in item_ids or () if item_id in rows]

    def _mean_vector(self, rows: Sequence[int]) -> Floats:
        vectors = self.bundle.item_vectors[np.array(rows, np.int64)]
        lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
        mean: Floats = (vectors / np.where(lengths > 0, lengths, 1)).mean(axis=0)
        return mean

    def _vectors(self, plans: Sequence[_Plan]) -> Floats:
        """The query vectors of the plans, [B, D]; one call of the tower for all that need it."""
        vectors = np.empty((len(plans), self.bundle.manifest.dimension), np.float32)
        encoded = [place for place, plan in enumerate(plans) if plan.vector is None]
        for place, plan in enumerate(plans):
            if plan.vector is not None:
                vectors[place] = plan.vector
        if encoded:
            if self.encoder is None:
                raise RequestError("features: no query tower is loaded here", code="no_encoder", field="features")
            vectors[encoded] = self.encoder.encode([plans[place].features for place in encoded])
        return vectors

    def _answer(self, plan: _Plan, rows: Rows, scores: Floats) -> Recalled:
        count = min(plan.k, int(np.count_nonzero(rows >= 0)))
        rows, scores = rows[:count], scores[:count]
        names = self.bundle.item_names
        ids = [names[row] for row in rows.tolist()]
        return Recalled(rows, ids, scores, self.bundle.manifest.model_version, plan.source)
