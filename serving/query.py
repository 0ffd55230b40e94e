"""What a caller asks and what comes back, as plain records: no web code, no search.

In: fields of a request. Out: a `RecallQuery`, a `Recalled`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from serving.catalogue import Snapshot, Wanted
from serving.index import Floats, Rows

EVERYTHING = Wanted()

Source = Literal["user", "vector", "features", "history", "similar", "popular"]


@dataclass(frozen=True)
class Diversity:
    """At most so many items of one value of an item column; an item without a value is limited by nothing."""

    column: str
    most: int


class RecallQuery(NamedTuple):
    """What one caller asks; a tuple, since a frozen dataclass of so many fields takes four times as long to make.

    Attributes:
        user_id: a known user is answered from the stored vector.
        features: raw features of the query tower, by name.
        history: item ids, newest last.
        vector: a query vector [D] of the caller's own; goes before everything else, features too.
        similar_to: item ids; asks for items like these, whoever the user is.
        k: how many items.
        exclude: item ids that must not come back; unknown ones are ignored.
        exclude_seen: also leave out what a known user has seen, the given history, and an item asked with.
        wanted: which items may come back at all.
        diversity: how many items of one kind may come back.
        segment: whose popular items answer first where nothing else is known.
        attributes: item columns to send along with each item.
        path: where in a request it stood, as its errors name it: "" or "queries.3.".
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


class Recalled(NamedTuple):
    """The answer: at most k items, best first, fewer only where fewer are eligible.

    Attributes:
        items: the catalogue that the rows are of.
        rows: item rows, [n].
        scores: dot products and prior, [n]; popular counts where the source is "popular".
        model_version: of the bundle.
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
    """A query's vector [D] and what it was made of; zeros where nothing is known, with the source "popular"."""

    vector: Floats
    source: Source
