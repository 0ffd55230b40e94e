"""Live items, filters, allowed items and diversity against a catalogue that is a list of dictionaries."""

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serving.bundle.reader import Bundle
from serving.catalogue.catalogue import Wanted
from serving.catalogue.overlay import Change
from serving.catalogue.user_events import Taken, UserEvents
from serving.errors import RequestError
from serving.recall.query import Diversity, RecallQuery
from serving.recall.recaller import Recaller
from serving.search.conditions import Comparison
from serving.search.exact import ExactIndex
from serving.search.scann import ScannIndex
from serving.search.scann_parameters import ScannParameters
from tests.support.worlds.serving import (
    DIMENSION,
    ITEMS,
    USERS,
    ArithmeticEncoder,
    item_vectors,
    query_vector,
    write_world,
)

GENRES = ("drama", "noir", "war")
# Segment of users -> popular row -> count; one is called "", which is no other name for "no segment".
SEGMENTS: dict[str, dict[int, int]] = {"": {33: 2}, "no": {40: 9, 3: 5, 16: 5, 59: 1}}


def columns(row: int) -> dict[str, Any]:
    return {"year": 1990 + row % 20 if row % 7 else None, "genres": [GENRES[row % 3]], "maker": f"m{row % 5}"}


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    schema = {"year": pl.Int64, "genres": pl.List(pl.String), "maker": pl.String}
    attributes = pl.DataFrame([columns(row) for row in range(ITEMS)], schema=schema)
    out = tmp_path_factory.mktemp("catalogue") / "bundle"
    frame = pl.DataFrame(
        {"segment": list(SEGMENTS), "rows": [list(counts) for counts in SEGMENTS.values()],
         "counts": [list(counts.values()) for counts in SEGMENTS.values()]}
    )  # fmt: skip
    write_world(out, item_attributes=attributes, segmented_by="country", popular_segments=frame)
    return Bundle.open(out)


@pytest.fixture(scope="module", params=["exact", "scann"])
def index(request: pytest.FixtureRequest, bundle: Bundle) -> Any:
    if request.param == "exact":
        return ExactIndex(bundle.item_vectors)
    return ScannIndex.build(bundle.item_vectors, ScannParameters(leaves=4, leaves_searched=4, rescored=ITEMS))


def world() -> dict[str, dict[str, Any]]:
    """Item id -> vector, columns and popularity."""
    vectors = item_vectors()
    return {f"i{row}": {"vector": vectors[row], "count": (ITEMS - row) * 10, **columns(row)} for row in range(ITEMS)}


# Vectors from a small grid of which no two items of the bundle, and no two puts, have one: no ties to break.
# Some of them the users have seen.
ids = st.sampled_from([f"i{row}" for row in (*range(0, ITEMS, 4), 1, 2, 5, 6)] + [f"new{n}" for n in range(8)])
puts = st.tuples(ids, st.integers(1, 10**6), st.integers(1985, 2015) | st.none(), st.sampled_from(GENRES))
changes = st.lists(puts | st.tuples(ids) | st.tuples(ids, st.none()), max_size=12)  # puts, deleted, undone
filters = st.sampled_from(
    [
        None,
        Comparison(column="year", op="gte", value=2000),
        Comparison(column="genres", op="has", value="noir"),
        Comparison(column="year", op="not_in", value=[1995, 2001]),
        Comparison(column="maker", op="eq", value="nobody"),
    ]
)
FITS = {
    "gte": lambda item: item["year"] is not None and item["year"] >= 2000,
    "has": lambda item: "noir" in item["genres"],
    "not_in": lambda item: item["year"] not in (1995, 2001),
    "eq": lambda item: item["maker"] == "nobody",
}


def vector_of(seed: int, item_id: str = "") -> np.ndarray:
    """With an id, of each item another one: two with the same would tie, and the order of the puts would decide."""
    return np.random.default_rng([seed, *item_id.encode()]).normal(size=DIMENSION).astype(np.float32)


@given(
    batches=st.lists(changes, max_size=3),
    user=st.sampled_from(["u1", "u6", "nobody"]),
    k=st.integers(1, 70),
    chosen=filters,
    allow=st.none() | st.lists(ids, max_size=20),
    most=st.none() | st.integers(1, 3),
    column=st.sampled_from(["maker", "genres", "year"]),
    exclude=st.lists(ids, max_size=5),
    segment=st.sampled_from([None, "", "no", "unknown"]),
)
@settings(max_examples=80)
def test_answers_are_those_of_a_loop_over_the_items(
    bundle: Bundle,
    index: Any,
    batches: list[list[tuple[Any, ...]]],
    user: str,
    k: int,
    chosen: Any,
    allow: list[str] | None,
    most: int | None,
    column: str,
    exclude: list[str],
    segment: str | None,
) -> None:
    recaller, items, first = Recaller(bundle, index, ArithmeticEncoder()), world(), world()
    for batch in batches:
        made = []
        for item_id, *rest in batch:
            items_count = items.pop(item_id, {}).get("count")
            if not rest:
                made.append(Change(item_id, None))
                continue
            if rest == [None]:
                made.append(Change(item_id, None, undone=True))
                items |= {item_id: first[item_id]} if item_id in first else {}
                continue
            seed, year, genre = rest
            attributes = {"year": year, "genres": [genre], "maker": None}
            made.append(Change(item_id, vector_of(seed, item_id), attributes))
            counted = (ITEMS - int(item_id[1:])) * 10 if item_id.startswith("i") else 0
            assert items_count in (None, counted)
            items[item_id] = {"vector": vector_of(seed, item_id), "count": counted, **attributes}
        recaller.catalogue.live.apply(made)
    query = RecallQuery(
        user_id=user,
        k=k,
        exclude=exclude,
        wanted=Wanted(None if allow is None else tuple(allow), chosen),
        diversity=None if most is None else Diversity(column, most),
        segment=segment,
    )
    recalled = recaller.recall(query)

    number = int(user[1:]) if user != "nobody" else None
    seen = [] if number is None else [f"i{row}" for row in bundle.seen(number).tolist()]
    row_of = {item_id: row for row, item_id in enumerate(bundle.item_names)}
    scored = []
    for item_id, item in items.items():
        if item_id in exclude or item_id in seen or (allow is not None and item_id not in allow):
            continue
        if chosen is not None and not FITS[chosen.op](item):
            continue
        special = SEGMENTS.get(segment) if segment is not None else None
        score = item["count"] if special is None else special.get(row_of.get(item_id, ITEMS), 0)
        if number is not None:
            score = float(np.float32(item["vector"].astype(float) @ bundle.query_vectors[number].astype(float)))
        scored.append((-score, -item["count"] if number is None else 0, row_of.get(item_id, ITEMS), item_id))
    taken: dict[Any, int] = {}
    expected = []
    for negative, _, _, item_id in sorted(scored):
        values = items[item_id][column] if most is not None else None
        values = values if isinstance(values, list) else [] if values is None else [values]
        if most is not None and any(taken.get(value, 0) >= most for value in values):
            continue
        for value in values:
            taken[value] = taken.get(value, 0) + 1
        expected.append((item_id, -negative))
    assert recalled.source == ("popular" if number is None else "user")
    assert recalled.scores.tolist() == [score for _, score in expected[:k]]
    if number is not None and most is None:
        assert recalled.ids == [item_id for item_id, _ in expected[:k]]
    assert len(set(recalled.ids)) == len(recalled.ids)
    assert set(recalled.ids) <= items.keys()
    if number is None and not any(each.startswith("new") for each in items):
        assert recalled.ids == [item_id for item_id, _ in expected[:k]]


def test_a_view_does_not_change_under_a_reader(bundle: Bundle) -> None:
    recaller = Recaller(bundle, ExactIndex(bundle.item_vectors))
    before = recaller.catalogue.snapshot()
    recaller.catalogue.live.apply([Change("i5", None), Change("fresh", vector_of(1))])
    assert before.row_of("i5") == 5 and before.row_of("fresh") is None
    after = recaller.catalogue.snapshot()
    assert after.row_of("i5") is None and after.names(np.array([after.row_of("fresh")])) == ["fresh"]


def test_an_item_that_changes_again_and_again_leaves_nothing_behind(bundle: Bundle) -> None:
    recaller = Recaller(bundle, ExactIndex(bundle.item_vectors))
    for seed in range(100):
        recaller.catalogue.live.apply([Change("fresh", vector_of(seed)), Change("i3", vector_of(seed + 1000))])
    view = recaller.catalogue.live.view
    assert len(view.ids) <= 4 and len(view.living) == 2
    assert recaller.recall(RecallQuery(vector=vector_of(99).tolist(), k=1)).ids == ["fresh"]


def test_the_columns_of_live_items_stay_in_one_piece(bundle: Bundle) -> None:
    """However many changes they came in: each piece costs every filter a comparison of its own."""
    recaller = Recaller(bundle, ExactIndex(bundle.item_vectors))
    for seed in range(20):
        recaller.catalogue.live.apply([Change(f"fresh {seed}", vector_of(seed), {"year": seed})])
    attributes = recaller.catalogue.live.view.attributes
    assert attributes["year"].to_list() == list(range(20)) and attributes.n_chunks("all") == [1] * attributes.width


def test_similar_items_leave_themselves_out(bundle: Bundle) -> None:
    recaller = Recaller(bundle, ExactIndex(bundle.item_vectors))
    recalled = recaller.recall(RecallQuery(similar_to=["i1", "i5", "no such item"], k=2))
    assert (recalled.source, recalled.ids) == ("similar", ["i9", "i13"])
    assert recaller.recall(RecallQuery(similar_to=["no such item"], k=1)).source == "popular"


def test_live_events_are_seen_and_are_history(bundle: Bundle) -> None:
    users = UserEvents()
    recaller = Recaller(bundle, ExactIndex(bundle.item_vectors), ArithmeticEncoder(), users)
    taken = [("stranger", 20, 2, "i7"), ("stranger", 10, 1, "i3"), ("u5", 5, 3, "i9")]
    users.apply([(user, Taken(time, seq, item, "event")) for user, time, seq, item in taken])
    stranger = recaller.recall(RecallQuery(user_id="stranger", k=2))
    assert (stranger.source, stranger.ids) == ("history", ["i11", "i15"]), "i3 and i7, of group 3, are seen"
    known = recaller.recall(RecallQuery(user_id="u5", k=1))
    assert (known.source, known.ids) == ("history", ["i13"])
    assert recaller.recall(RecallQuery(user_id="u5", k=1, exclude_seen=False)).ids == ["i1"]
    without = Recaller(bundle, ExactIndex(bundle.item_vectors), None, users)
    assert without.recall(RecallQuery(user_id="u5", k=1)).source == "user"
    assert without.recall(RecallQuery(user_id="stranger", k=1)).source == "similar"


def test_of_a_user_about_whom_training_learnt_nothing_live_events_tell_all(tmp_path: Path) -> None:
    vectors = np.array([query_vector({"user": f"u{user}"}) for user in range(USERS)])
    vectors[5] = 0.0
    users = UserEvents()
    users.apply([(user, Taken(1, seq, "i3", "event")) for seq, user in enumerate(("stranger", "u5", "u6"))])
    write_world(tmp_path / "bundle", query_vectors=vectors)
    bundle = Bundle.open(tmp_path / "bundle")
    recaller = Recaller(bundle, ExactIndex(bundle.item_vectors), None, users)
    stranger, known, learnt = (
        recaller.recall(RecallQuery(user_id=user, k=2, exclude_seen=False)) for user in ("stranger", "u5", "u6")
    )
    assert (stranger.source, stranger.ids) == (known.source, known.ids) == ("similar", ["i3", "i7"])
    assert learnt.source == "user"


@pytest.mark.parametrize(
    ("query", "field"),
    [
        (RecallQuery(vector=[1.0]), "vector"),
        (RecallQuery(vector=[1e30] * DIMENSION), "vector"),
        (RecallQuery(diversity=Diversity("nothing", 1)), "diversity.column"),
        (RecallQuery(wanted=Wanted(filter=Comparison(column="nothing", op="eq", value=1))), "filter.column"),
    ],
)
def test_what_does_not_fit_names_its_field(bundle: Bundle, query: RecallQuery, field: str) -> None:
    with pytest.raises(RequestError) as raised:
        Recaller(bundle, ExactIndex(bundle.item_vectors), ArithmeticEncoder()).recall(query)
    assert raised.value.field == field and raised.value.message.startswith(field)


def test_popular_items_pass_a_filter_by_their_live_columns(bundle: Bundle) -> None:
    recaller = Recaller(bundle, ExactIndex(bundle.item_vectors))
    recaller.catalogue.live.apply([Change("i4", vector_of(1), {"year": 2040})])
    late = RecallQuery(k=ITEMS, wanted=Wanted(filter=Comparison(column="year", op="gte", value=2030)))
    answer = recaller.recall(late)
    assert (answer.source, answer.ids, answer.scores.tolist()) == ("popular", ["i4"], [10.0 * (ITEMS - 4)])
