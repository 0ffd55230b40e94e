"""Plans answers: what a query is answered from, and which items are excluded. No search.

Turns a `RecallQuery` into a `Plan`, given the catalogue and users' live events. The rules, in order:

1. the caller's own vector -> that vector, source "vector"; features sent with it are only validated;
2. items to be similar to -> the mean of those items' normalised vectors, source "similar";
3. informative features -> the query tower, source "features";
4. a history with known items -> the query tower if it takes a history of all types of events, source "history";
   otherwise the mean of those items' normalised vectors, source "similar". The history is the caller's; without a known
   item in it, that of a user with events since the bundle was made, of types that the tower reads, or for the mean of a
   user without a stored vector;
5. a known user -> the stored vector, source "user";
6. otherwise the most popular items with their popular counts as scores, source "popular"; also if the vector of the
   rules above is zero, which means that training learnt nothing about the input.

Features are informative unless they hold only missing values, an unknown user id, or a history without a known item.
The tower knows the items that it was trained on, also those deleted since; the mean is of those that may be recalled.
With features or a history, the tower also gets the user id and, for a known user, the stored profile and, for each
history that is not in the request, the stored one plus later events (`serving.recall.histories`). What is in
`features` takes precedence over all of these.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from serving.bundle.reader import Bundle
from serving.bundle.request_features import check_features, is_missing
from serving.catalogue.catalogue import Snapshot
from serving.catalogue.user_events import Taken, UserEvents
from serving.errors import RequestError, refuse_unknown_column
from serving.recall.histories import Histories
from serving.recall.query import NO_ROWS, Plan, RecallQuery, Source
from serving.search.conditions import Kind, check
from serving.search.filtered import distinct
from serving.search.index import Floats, Rows

FEW = 16  # queries
GREATEST_NUMBER = 1e18  # in a caller's vector, so that its products stay finite in float32


class Planner:
    """Plans queries.

    Args:
        bundle: an opened bundle.
        users: users' events since it was made.
        encodes: whether a query tower is loaded.
    """

    def __init__(self, bundle: Bundle, users: UserEvents, *, encodes: bool) -> None:
        self.bundle, self.users, self.encodes = bundle, users, encodes
        self.histories = Histories(bundle)
        # Feature names by kind; "" if the tower has no such feature.
        features = [bundle.manifest.query_feature(kind) for kind in ("id", "item")]
        self._id, self._item = ["" if each is None else each.name for each in features]

    def stored(self, queries: Sequence[RecallQuery], items: Snapshot) -> dict[int, Plan]:
        """Plans, by position, of queries that only name a known user: the same as `plan`, but faster in bulk."""
        if len(queries) < FEW or len(items.view.buried):
            return {}
        find, known = self.bundle.query_rows.find, {}
        for place, query in enumerate(queries):
            plain = query.exclude_seen and not query.exclude and query.diversity is None and query.wanted.filter is None
            if plain and query.k > 0 and self._names_a_user_only(query) and (row := find(query.user_id)) >= 0:
                known[place] = row
        rows = np.array([*known.values()], np.int64)
        vectors, seen = self.bundle.query_vectors[rows], self.bundle.seen_sets(rows)
        lengths = self.bundle.seen_counts(rows).tolist()
        return {
            place: Plan(queries[place], "user", excluded, vector, history=length)
            for place, excluded, vector, length in zip(known, seen, vectors, lengths, strict=True)
        }

    def plan(self, query: RecallQuery, items: Snapshot, *, encoded: bool = False) -> Plan:
        """Plans one query.

        Args:
            query: the query.
            items: the catalogue.
            encoded: whether the tower encodes the stored history of a known user, too, instead of rule 5.

        Raises:
            RequestError: names the invalid field.
        """
        try:
            return self._plan(query, items, encoded=encoded)
        except RequestError as error:
            error.inside(query.path)
            raise

    def _plan(self, query: RecallQuery, items: Snapshot, *, encoded: bool) -> Plan:
        self._check(query, items.catalogue.kinds)
        if not encoded and self._names_a_user_only(query):
            user_row = self.row_of(query.user_id)
            return self._of_user(query, user_row, self._excluded(query, user_row, [], items))
        if (plan := self._of_history_alone(query, items)) is not None:
            return plan
        features = {name: value for name, value in (query.features or {}).items() if not is_missing(value)}
        user_id = self.user_id(query, features)
        user_row = self.row_of(user_id)
        live = self.live(user_id, user_row)
        history, similar = items.rows_of(query.history or ()), items.rows_of(query.similar_to or ())
        recent = items.rows_of([each.item_id for each in live])
        sent = self.histories.sent(features)
        played = items.rows_of(sent)
        item = items.rows_of([features[self._item]] if self._item in features else ())
        excluded = self._excluded(query, user_row, [*history, *similar, *recent, *played, *item], items)
        if query.vector is not None:
            return Plan(query, "vector", excluded, np.array(query.vector, np.float32))
        if query.similar_to is not None:
            if similar:
                return Plan(query, "similar", excluded, _mean_vector(items, similar))
            return Plan(query, "popular", excluded)
        source: Source | None = "features" if self.histories.knows(sent) or self._informative(features) else None
        if source or self._reads_history(query, history, user_row, live, encoded=encoded):
            # All were found, no item has changed and each has training events: known without a second lookup.
            found = len(history) == len(query.history or ())
            known = found and not items.view.rows and not self.histories.partial
            beside = list(query.history or ()) if known else self.histories.trained(query.history)
            named = self.histories.known(features, beside)
            complete = self._tower_features(query, features, named, user_row, live)
            length = self.histories.length(named, beside) or self._stored(user_row) + len(live)
            return Plan(query, source or "history", excluded, features=complete, history=length)
        near = [] if self.histories.of_all_types else history
        if recent and not history and not (self.encodes and self.histories.of_all_types):
            learnt = user_row is not None and self.bundle.has_vector(np.array([user_row]))[0]
            near = near if learnt else recent
        if near:
            return Plan(query, "similar", excluded, _mean_vector(items, near))
        return self._of_user(query, user_row, excluded, len(live))

    def _of_user(self, query: RecallQuery, user_row: int | None, excluded: Rows, later: int = 0) -> Plan:
        """The plan by rule 5 or 6; `later` items came after the stored history."""
        if user_row is None:
            return Plan(query, "popular", excluded)
        vector = self.bundle.query_vectors[user_row]
        return Plan(query, "user", excluded, vector, history=self._stored(user_row) + later)

    def _stored(self, user_row: int | None) -> int:
        """How many items the stored history of a user holds."""
        return 0 if user_row is None else len(self.bundle.seen(user_row))

    def _reads_history(
        self, query: RecallQuery, history: Sequence[int], user_row: int | None, live: Sequence[Taken], *, encoded: bool
    ) -> bool:
        """Whether the tower answers by rule 4; it also reads items that have no row because they were deleted.

        `history` are the rows of the caller's, whose mean comes first where the tower takes no history of all types.
        """
        if self.histories.of_all_types and self.histories.knows(query.history):
            return True
        if not self.encodes or not self.histories.specs:
            return False
        alone = self.histories.of_all_types or not history
        later = alone and self.histories.knows(self.histories.read(live))
        return later or (encoded and self._stored(user_row) > 0)

    def _of_history_alone(self, query: RecallQuery, items: Snapshot) -> Plan | None:
        """The plan by rule 4 of a query with nothing but a history of items that all are known: the other steps would
        take nearly as long again. None for any other query."""
        told = query.user_id is not None or query.features or query.vector is not None or query.similar_to is not None
        if told or not query.history or query.exclude or not query.exclude_seen:
            return None
        # No item has changed and each has training events: what has a row is known to the tower.
        if items.view.rows or self.histories.partial or not self.histories.of_all_types:
            return None
        rows = items.rows_of(query.history)
        if len(rows) < len(query.history):
            return None
        excluded, features = np.array(sorted({*rows}), np.int64), self.histories.known({}, query.history)
        return Plan(query, "history", excluded, features=features, history=len(rows))

    def _names_a_user_only(self, query: RecallQuery) -> bool:
        """Whether only rules 5 and 6 can apply: the most common query, which skips the other steps."""
        if query.features or query.history or query.vector is not None or query.similar_to is not None:
            return False
        return query.user_id not in self.users

    def _check(self, query: RecallQuery, kinds: Mapping[str, Kind]) -> None:
        if query.k < 1:
            raise RequestError.at("k", f"must be at least 1, got {query.k}")
        if query.wanted.filter is not None:
            check(query.wanted.filter, kinds)
        if query.diversity is not None:
            refuse_unknown_column(query.diversity.column, kinds, "diversity.column")
        if query.features:
            check_features(self.bundle.manifest.query_features, query.features)
        if query.vector is None:
            return
        dimension = self.bundle.manifest.dimension
        if len(query.vector) != dimension:
            raise RequestError.at("vector", f"must hold {dimension} numbers, got {len(query.vector)}")
        if not all(abs(number) <= GREATEST_NUMBER for number in query.vector):
            raise RequestError.at("vector", f"its numbers must lie within +-{GREATEST_NUMBER:g}")

    def user_id(self, query: RecallQuery, features: Mapping[str, Any]) -> str | None:
        """The user of a query; a known one in the features takes precedence over the one beside them."""
        named = features.get(self._id)
        if named is None or named == query.user_id:
            return query.user_id
        return named if named in self.bundle.query_rows or self.live(named, None) else query.user_id

    def live(self, user_id: str | None, user_row: int | None) -> Sequence[Taken]:
        """What a user took since the bundle was made, newest last, without what is in the user's stored history."""
        return self.histories.later(self.users.taken(user_id), user_row)

    def row_of(self, user_id: str | None) -> int | None:
        """The row of a user in the bundle; None for an unknown one, and for nobody, who is not the user ""."""
        return None if user_id is None else self.bundle.query_rows.get(user_id)

    def _informative(self, features: Mapping[str, Any]) -> bool:
        """Whether features say something besides a history: a known user, or what is not an id."""
        told = features.keys() - self.histories.names
        if told == {self._id}:
            return features[self._id] in self.bundle.query_rows
        return bool(told)

    def _tower_features(
        self,
        query: RecallQuery,
        features: Mapping[str, Any],
        named: Mapping[str, Sequence[str]],
        user_row: int | None,
        live: Sequence[Taken],
    ) -> dict[str, Any]:
        """The features as sent, plus profile, user id and histories if the tower takes them."""
        complete = self.bundle.profile(user_row) | dict(features)
        if self._id and query.user_id is not None:
            complete.setdefault(self._id, query.user_id)
        self.histories.fill(complete, named, user_row, live)
        return complete

    def _excluded(self, query: RecallQuery, user_row: int | None, named: list[int], items: Snapshot) -> Rows:
        """The rows that the caller excludes and, with `exclude_seen`, those `named` and the user's stored ones."""
        rows, seen = items.rows_of(query.exclude), NO_ROWS
        if query.exclude_seen:
            rows = rows + named
            if user_row is not None:
                seen = items.current(self.bundle.seen(user_row).astype(np.int64))
        return distinct(np.concatenate([np.array(rows, np.int64), seen]) if rows else seen)


def _mean_vector(items: Snapshot, rows: Sequence[int]) -> Floats:
    vectors = items.vectors(rows)
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    mean: Floats = (vectors / np.where(lengths > 0, lengths, 1)).mean(axis=0)
    return mean
