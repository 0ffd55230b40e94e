"""Queries, their plans and their answers as plain records: no web code, no search."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

import numpy as np

from serving.bundle.prior import NO_PRIOR
from serving.catalogue.catalogue import Snapshot, Wanted
from serving.search.index import Floats, Rows

EVERYTHING = Wanted()
NO_ROWS = np.empty(0, np.int64)
NO_FEATURES: Mapping[str, Any] = MappingProxyType({})

Source = Literal["user", "vector", "features", "history", "similar", "popular"]


@dataclass(frozen=True)
class Diversity:
    """At most `most` items per value of an item column; items without a value are not limited."""

    column: str
    most: int


class RecallQuery(NamedTuple):
    """One caller's query; a tuple, since a frozen dataclass with this many fields takes four times as long to create.

    Attributes:
        user_id: a known user is answered from the stored vector.
        features: raw features of the query tower, by name.
        history: item ids, newest last.
        vector: the caller's own query vector [D]; takes precedence over everything else, features included.
        similar_to: item ids; asks for items like these, regardless of the user.
        k: how many items.
        exclude: item ids that must not be returned; unknown ones are ignored.
        exclude_seen: also exclude a known user's seen items, the given history, and the items of the query itself.
        wanted: which items may be returned at all.
        diversity: how many items of one kind may be returned.
        segment: whose popular items come first if nothing else is known.
        attributes: item columns to return with each item.
        path: its position in the request, for error messages: "" or "queries.3.".
    """

    user_id: str | None = None
    features: Mapping[str, Any] | None = None
    history: Sequence[str] | None = None
    vector: Sequence[float] | None = None
    similar_to: Sequence[str] | None = None
    k: int = 100
    exclude: Sequence[str] = ()
    exclude_seen: bool = True
    wanted: Wanted = EVERYTHING
    diversity: Diversity | None = None
    segment: str | None = None
    attributes: Sequence[str] = ()
    path: str = ""

    @property
    def listed(self) -> int:
        """How many ids the lists of a recall hold."""
        count = len(self.exclude) + len(self.history or ()) + len(self.wanted.allow or ())
        return count + sum(len(values) for _, values in string_lists(self.features)) if self.features else count


def string_lists(features: Mapping[str, Any]) -> list[tuple[str, list[Any]]]:
    """The lists of strings among features; how many numbers a list holds, the model or another list says."""
    lists = ((name, each) for name, each in features.items() if isinstance(each, list))
    return [(name, each) for name, each in lists if isinstance(next(iter(each), None), str)]


class Plan(NamedTuple):
    """How one query is answered: from a vector, from features to encode, or from neither.

    Attributes:
        query: the query.
        source: what answers it.
        excluded: distinct rows that must not be returned, ascending.
        vector: [D], if it is known already.
        features: the tower's input, if it is not.
        history: length of the history, which weights the prior; `NO_PRIOR` for a query by similarity alone.
    """

    query: RecallQuery
    source: Source
    excluded: Rows
    vector: Floats | None = None
    features: Mapping[str, Any] = NO_FEATURES
    history: int = NO_PRIOR


class Recalled(NamedTuple):
    """The answer: at most k items, best first, fewer only where fewer are eligible.

    Attributes:
        items: the catalogue that the rows refer to.
        rows: item rows, [n].
        scores: dot products plus prior, [n]; popular counts if the source is "popular".
        model_version: the bundle's model version.
        source: what answered.
    """

    items: Snapshot
    rows: Rows
    scores: Floats
    model_version: str
    source: Source

    @property
    def ids(self) -> list[str]:
        """Item ids, n of them."""
        return self.items.names(self.rows)


@dataclass(frozen=True)
class Embedded:
    """A query's vector [D] and its source; zeros, with the source "popular", if nothing is known."""

    vector: Floats
    source: Source
