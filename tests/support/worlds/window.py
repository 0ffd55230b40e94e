"""A catalogue full of ties, live changes and queries, with the rules of recall written down once more as loops.

Items are dictionaries: id, row, vector, popular count, columns. A query needs no tower: the caller's vector, a known
user "u<n>", or nobody, who gets popular items.
"""

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from hypothesis import strategies as st

from serving.bundle.reader import Bundle
from serving.catalogue.catalogue import Wanted
from serving.catalogue.overlay import Change
from serving.recall.query import Diversity, RecallQuery
from serving.recall.recaller import Recaller
from serving.search.conditions import And, Comparison, Condition, Not
from serving.search.exact import ExactIndex
from serving.search.index import Floats, Index, Rows
from tests.support.worlds.serving import DIMENSION, ITEMS, USERS, seen_rows, write_world

GENRES = ("drama", "noir", "war")
VECTORS = np.random.default_rng(3).integers(-1, 2, (ITEMS, DIMENSION)).astype(np.float32)
USER_VECTORS = np.random.default_rng(4).integers(-1, 2, (USERS, DIMENSION)).astype(np.float32)
COUNTS = [(ITEMS - row) // 3 for row in range(ITEMS)]
Item = dict[str, Any]


def columns(row: int) -> dict[str, Any]:
    genres = [GENRES[row % 3], GENRES[row % 2]] if row % 5 else None
    return {
        "year": 1990 + row % 20 if row % 7 else None,
        "genres": genres,
        "maker": f"m{row % 5}" if row % 11 else None,
    }


def write_ties(out: Path) -> Bundle:
    schema = {"year": pl.Int64, "genres": pl.List(pl.String), "maker": pl.String}
    attributes = pl.DataFrame([columns(row) for row in range(ITEMS)], schema=schema)
    arrays = {"item_vectors": VECTORS, "query_vectors": USER_VECTORS, "popularity": COUNTS}
    write_world(out, item_attributes=attributes, **arrays)
    return Bundle.open(out)


NEW = Comparison(column="year", op="gte", value=2000)
NOIR = Comparison(column="genres", op="has", value="noir")
LEAVES: list[tuple[Condition, Callable[[Item], bool]]] = [
    (NEW, lambda item: item["year"] is not None and item["year"] >= 2000),
    (NOIR, lambda item: "noir" in (item["genres"] or [])),
    (Not(**{"not": NOIR}), lambda item: "noir" not in (item["genres"] or [])),
    (Comparison(column="maker", op="in", value=["m1", "m2"]), lambda item: item["maker"] in ("m1", "m2")),
]
# A filter as the places of its leaves: one alone, or several in an outer "and".
filters = st.none() | st.lists(st.sampled_from(range(len(LEAVES))), min_size=1, max_size=3)
ids = st.sampled_from([f"i{row}" for row in range(0, ITEMS, 2)] + [f"new{n}" for n in range(4)] + ["zzz"])
changes = st.lists(
    st.builds(
        Change, ids, st.none() | st.sampled_from(list(VECTORS[:9])), st.sampled_from([columns(r) for r in range(9)])
    ),
    max_size=8,
)
vectors = st.lists(st.integers(-2, 2), min_size=DIMENSION, max_size=DIMENSION).filter(any)
EVERY_ID = [f"i{row}" for row in range(ITEMS)] + [f"new{n}" for n in range(4)] + ["zzz"]


def condition_of(places: list[int] | None) -> Condition | None:
    if places is None:
        return None
    leaves = [LEAVES[place][0] for place in places]
    return leaves[0] if len(leaves) == 1 else And(**{"and": leaves})


@st.composite
def queries(draw: st.DrawFn) -> tuple[RecallQuery, list[int] | None]:
    """A query, and the places of its filter's leaves."""
    source = draw(
        st.fixed_dictionaries({"vector": vectors})
        | st.fixed_dictionaries({"user_id": st.sampled_from([f"u{n}" for n in range(USERS)])})
        | st.just({"user_id": "nobody"})
    )
    places = draw(filters)
    allow = draw(st.none() | st.lists(ids, min_size=1, max_size=30))
    return RecallQuery(
        **source,
        k=draw(st.integers(1, 25)),
        exclude=draw(st.lists(ids, max_size=5)),
        exclude_seen=draw(st.booleans()),
        wanted=Wanted(None if allow is None else tuple(allow), condition_of(places)),
        diversity=draw(
            st.none() | st.builds(Diversity, st.sampled_from(["maker", "genres", "year"]), st.integers(1, 3))
        ),
    ), places


def asked(bundle: Bundle, index: Index, applied: list[Change]) -> Recaller:
    recaller = Recaller(bundle, index)
    recaller.catalogue.live.apply(applied)
    return recaller


class Gaps:
    """An index that never finds some rows."""

    def __init__(self, exact: ExactIndex, gaps: Collection[int]) -> None:
        self.exact, self.gaps = exact, np.array(sorted(gaps), np.int64)

    def search(self, queries: Floats, k: int, excluded: Sequence[Rows] | None = None) -> tuple[Rows, Floats]:
        left_out = [self.gaps if excluded is None else np.union1d(self.gaps, rows) for rows in excluded or queries]
        return self.exact.search(queries, k, left_out)


def living(applied: list[Change]) -> dict[str, Item]:
    """Id to item, of those that may be recalled; a changed item comes last, in the order of the changes."""
    items = {f"i{row}": {"vector": VECTORS[row], "count": COUNTS[row], **columns(row)} for row in range(ITEMS)}
    for change in applied:
        items.pop(change.item_id, None)
        if change.vector is not None:
            row = int(change.item_id[1:]) if change.item_id.startswith("i") else None
            count = 0 if row is None else COUNTS[row]
            items[change.item_id] = {"vector": change.vector, "count": count, **change.attributes}
    return items


def scored(query: RecallQuery, items: dict[str, Item]) -> list[tuple[str, float]]:
    """All items, best first, with their scores."""
    if query.vector is None and query.user_id == "nobody":
        # A changed item keeps its place among the popular ones; new items come last.
        places = {
            item_id: int(item_id[1:]) if item_id.startswith("i") else ITEMS + n for n, item_id in enumerate(items)
        }
        order = sorted(items, key=lambda item_id: (-items[item_id]["count"], places[item_id]))
        return [(item_id, float(items[item_id]["count"])) for item_id in order]
    vector = USER_VECTORS[int(query.user_id[1:])] if query.vector is None else query.vector  # type: ignore[index]
    scores = {
        item_id: float(np.float32(sum(float(a) * float(b) for a, b in zip(vector, item["vector"], strict=True))))
        for item_id, item in items.items()
    }
    order = sorted(items, key=lambda item_id: -scores[item_id])  # stable: ties stay in the order of the rows
    return [(item_id, scores[item_id]) for item_id in order]


def barriers(
    query: RecallQuery, places: list[int] | None, items: dict[str, Item]
) -> list[tuple[str, Condition | None, set[str]]]:
    """Kind, the condition of a filter and the ids that fail, in the order of a trace."""
    found: list[tuple[str, Condition | None, set[str]]] = []
    if query.wanted.allow is not None:
        found.append(("allow", None, set(items) - set(query.wanted.allow)))
    for condition, passes in (LEAVES[place] for place in places or ()):
        found.append(("filter", condition, {item_id for item_id, item in items.items() if not passes(item)}))
    if query.exclude:
        found.append(("exclude", None, set(query.exclude) & set(items)))
    if query.exclude_seen:
        known = query.user_id is not None and query.user_id != "nobody"
        rows = seen_rows(int(query.user_id[1:])) if known else []  # type: ignore[index]
        found.append(("seen", None, {f"i{row}" for row in rows} & set(items)))
    return found


def greedy(query: RecallQuery, left: list[str], items: dict[str, Item]) -> tuple[list[str], list[str]]:
    """The answer, and what diversity skipped on the way to its last item."""
    kept: list[str] = []
    skipped: list[str] = []
    used: Counter[Any] = Counter()
    for item_id in left:
        if len(kept) == query.k:
            break
        values = set() if query.diversity is None else values_of(items[item_id][query.diversity.column])
        if query.diversity is not None and any(used[value] >= query.diversity.most for value in values):
            skipped.append(item_id)
            continue
        used.update(values)
        kept.append(item_id)
    return kept, skipped


def values_of(value: Any) -> set[Any]:
    return set() if value is None else set(value) if isinstance(value, list) else {value}
