"""Recall against brute force: any combination of user, features, history, exclusions and k, on any exhaustive index."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serving.bundle.encoder import Encoder
from serving.bundle.manifest import FeatureSpec
from serving.bundle.reader import Bundle
from serving.bundle.writer import write_bundle
from serving.errors import BundleError, RequestError
from serving.recall.loading import open_recaller
from serving.recall.query import Recalled, RecallQuery
from serving.recall.recaller import Recaller
from serving.search.exact import ExactIndex
from serving.search.scann import ScannIndex
from serving.search.scann_parameters import ScannParameters
from tests.support.worlds.serving import (
    FEATURES,
    GROUPS,
    ITEMS,
    USERS,
    WITHOUT_HISTORY,
    ArithmeticEncoder,
    item_vectors,
    query_vector,
    save_towers,
    seen_rows,
    write_world,
)


def world(directory: Path, name: str, features: Sequence[FeatureSpec]) -> Bundle:
    write_world(directory / name, features=features)
    return Bundle.open(directory / name)


@pytest.fixture(scope="module")
def recallers(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, bool], Recaller]:
    """Exact and exhaustive ScaNN, with and without a history feature in the tower."""
    made = {}
    for has_history, features in ((True, FEATURES), (False, WITHOUT_HISTORY)):
        bundle = world(tmp_path_factory.mktemp("world"), "bundle", features)
        parameters = ScannParameters(leaves=4, leaves_searched=4, rescored=ITEMS)
        indexes = {
            "exact": ExactIndex(bundle.item_vectors),
            "scann": ScannIndex.build(bundle.item_vectors, parameters),
        }
        for kind, index in indexes.items():
            made[kind, has_history] = Recaller(bundle, index, ArithmeticEncoder())
    return made


def brute_force(query: RecallQuery, has_history: bool) -> tuple[str, list[str], list[float]]:
    """The rules, written down once more as loops."""
    vectors = item_vectors()
    items = {f"i{row}": row for row in range(ITEMS)}
    users = {f"u{user}": user for user in range(USERS)}
    features = {name: value for name, value in (query.features or {}).items() if value not in (None, "", [])}
    history = [item for item in query.history or [] if item in items]
    feature_history = [item for item in features.get("history", []) if item in items]
    user = users.get(features.get("user", ""), users.get(query.user_id or ""))

    left_out = {items[item] for item in query.exclude if item in items}
    if query.exclude_seen:
        left_out |= {items[item] for item in [*history, *feature_history]}
        if user is not None:
            left_out |= set(seen_rows(user))

    says_something = {"country", "age", "hour", "tags"} & features.keys() or feature_history
    if says_something or features.get("user") in users:
        source = "features"
    elif history:
        source = "history" if has_history else "similar"
    else:
        source = "popular" if user is None else "user"

    vector = None
    if source in {"features", "history"}:
        request: dict[str, Any] = {"user": query.user_id} | features
        if has_history:
            stored = [] if user is None else [f"i{row}" for row in seen_rows(user)]
            request["history"] = feature_history or history or stored
        vector = query_vector(request)
    elif source == "similar":
        normalised = [vectors[items[item]] / np.linalg.norm(vectors[items[item]]) for item in history]
        vector = np.mean(normalised, axis=0, dtype=np.float32)
    elif source == "user":
        vector = query_vector({"user": query.user_id})

    scored = []
    for row in range(ITEMS):
        score = float(ITEMS - row) * 10 if vector is None else float(vectors[row].astype(float) @ vector.astype(float))
        if row not in left_out:
            scored.append((-float(np.float32(score)), row))
    best = sorted(scored)[: query.k]
    return source, [f"i{row}" for _, row in best], [-score for score, _ in best]


item_ids = st.sampled_from([f"i{row}" for row in range(ITEMS)] + ["i999", "", "zzz"])
some_items = st.lists(item_ids, max_size=8)
many_items = st.lists(item_ids, max_size=8) | st.lists(item_ids, min_size=40, max_size=90)
user_ids = st.sampled_from([f"u{user}" for user in range(USERS)] + ["nobody", ""])
values: dict[str, st.SearchStrategy[Any]] = {
    "user": user_ids,
    "country": st.sampled_from(["g0", "g1", "g2", "g3", "atlantis"]),
    "age": st.integers(0, 90) | st.floats(0, 90, width=32),
    "hour": st.integers(0, 23),
    "tags": st.lists(st.sampled_from(["a", "b"]), max_size=3),
    "history": some_items,
}


def queries(has_history: bool) -> st.SearchStrategy[RecallQuery]:
    usable = {name: value for name, value in values.items() if has_history or name != "history"}
    features = st.fixed_dictionaries({}, optional={name: st.none() | value for name, value in usable.items()})
    return st.builds(
        partial(RecallQuery),  # of a bare named tuple Hypothesis makes up every field, those with a default too
        user_id=st.none() | user_ids,
        features=st.none() | features,
        history=st.none() | some_items,
        k=st.integers(1, 70),
        exclude=many_items,
        exclude_seen=st.booleans(),
    )


def check(recalled: Recalled, query: RecallQuery, has_history: bool) -> None:
    source, ids, scores = brute_force(query, has_history)
    assert recalled.source == source
    if source == "similar":
        # The mean is a float32 sum in another order here; equal but for rounding, so compare scores, not ties.
        np.testing.assert_allclose(recalled.scores, scores, rtol=1e-5)
        assert len(set(recalled.ids)) == len(ids)
    else:
        assert recalled.ids == ids
        assert recalled.scores.tolist() == scores
    assert [f"i{row}" for row in recalled.rows.tolist()] == recalled.ids
    assert recalled.model_version == "world-1"


@pytest.mark.parametrize("has_history", [True, False])
@pytest.mark.parametrize("kind", ["exact", "scann"])
@given(data=st.data())
@settings(max_examples=150)
def test_any_query_equals_brute_force(
    recallers: dict[tuple[str, bool], Recaller], kind: str, has_history: bool, data: st.DataObject
) -> None:
    query = data.draw(queries(has_history))
    check(recallers[kind, has_history].recall(query), query, has_history)


@pytest.mark.parametrize("kind", ["exact", "scann"])
@given(batch=st.lists(queries(True), max_size=6))
@settings(max_examples=60)
def test_a_batch_equals_brute_force_query_by_query(
    recallers: dict[tuple[str, bool], Recaller], kind: str, batch: list[RecallQuery]
) -> None:
    answers = recallers[kind, True].recall_many(batch)
    assert len(answers) == len(batch)
    for query, answer in zip(batch, answers, strict=True):
        check(answer, query, True)


@pytest.mark.parametrize("kind", ["exact", "scann"])
def test_many_who_only_say_who_they_are_get_what_each_gets_alone(
    recallers: dict[tuple[str, bool], Recaller], kind: str
) -> None:
    batch = [RecallQuery(user_id=f"u{user}", k=k) for user in range(USERS + 1) for k in (7, 20)]
    batch += [RecallQuery(user_id="u1", exclude=["i0"]), RecallQuery(user_id="u1", exclude_seen=False), RecallQuery()]
    for query, answer in zip(batch, recallers[kind, True].recall_many(batch), strict=True):
        check(answer, query, True)


@pytest.mark.parametrize("kind", ["exact", "scann"])
def test_many_known_users_get_what_each_gets_alone(recallers: dict[tuple[str, bool], Recaller], kind: str) -> None:
    recaller = recallers[kind, True]
    rows, scores = recaller.recall_users(np.arange(USERS)[::-1], 20)
    for line, user in enumerate(reversed(range(USERS))):
        _, ids, wanted = brute_force(RecallQuery(user_id=f"u{user}", k=20), True)
        assert [f"i{row}" for row in rows[line].tolist()] == ids
        assert scores[line].tolist() == wanted


SOURCES = [
    (RecallQuery(), "popular"),
    (RecallQuery(features={}), "popular"),
    (RecallQuery(features={"age": None, "tags": None}), "popular"),
    (RecallQuery(features={"user": "nobody"}), "popular"),
    (RecallQuery(features={"user": "nobody", "history": ["zzz"]}), "popular"),
    (RecallQuery(user_id="nobody", history=["zzz"]), "popular"),
    (RecallQuery(user_id="u5", history=["zzz"], features={}), "user"),
    (RecallQuery(user_id="u5", features={"user": "nobody"}), "user"),
    (RecallQuery(user_id="u5", history=["i2"]), "history"),
    (RecallQuery(user_id="u5", history=["i2"], features={"history": ["i3"]}), "features"),
    (RecallQuery(features={"user": "u5"}), "features"),
    (RecallQuery(features={"tags": [], "country": ""}), "popular"),
    (RecallQuery(features={"hour": 0}), "features"),
]


@pytest.mark.parametrize(("query", "source"), SOURCES)
def test_what_answers(recallers: dict[tuple[str, bool], Recaller], query: RecallQuery, source: str) -> None:
    recalled = recallers["exact", True].recall(query)
    assert recalled.source == source
    check(recalled, query, True)


def test_only_the_last_items_of_a_long_history_count(recallers: dict[tuple[str, bool], Recaller]) -> None:
    # The tower keeps four: unknown items do not push known ones out.
    history = ["i3", "i3", "i3", "i0", "i4", "unknown", "i8", "i12"]
    recalled = recallers["exact", True].recall(RecallQuery(history=history, k=GROUPS, exclude_seen=False))
    assert recalled.ids == ["i0", "i4", "i8", "i12"]


def test_without_an_encoder_only_features_are_refused(recallers: dict[tuple[str, bool], Recaller]) -> None:
    recaller = Recaller(recallers["exact", True].bundle, recallers["exact", True].index)
    assert recaller.recall(RecallQuery(user_id="u1", k=1)).source == "user"
    with pytest.raises(RequestError, match="no query tower"):
        recaller.recall(RecallQuery(features={"age": 3}))


WRONG = {
    "unknown name": ({"agee": 1}, "features.agee", r"no such feature; this model knows age, country, history"),
    "unknown null": ({"agee": None}, "features.agee", r"no such feature"),
    "string for number": ({"age": "7"}, "features.age", r"must be a finite number.*, got a string"),
    "NaN": ({"age": float("nan")}, "features.age", r"must be a finite number.*, got NaN"),
    "infinity": ({"age": -np.inf}, "features.age", r"must be a finite number"),
    "beyond float32": ({"age": 10**400}, "features.age", r"must be a finite number.*, got a number"),
    "boolean": ({"age": True}, "features.age", r"must be a finite number.*, got true"),
    "number for string": ({"country": 3}, "features.country", r"must be a string, got 3"),
    "list for string": ({"country": ["g1"]}, "features.country", r"must be a string, got a list"),
    "fraction": ({"hour": 1.5}, "features.hour", r"must be a whole number from 0 to 23, got 1.5"),
    "hour 24": ({"hour": 24}, "features.hour", r"must be a whole number from 0 to 23, got 24"),
    "negative": ({"hour": -1}, "features.hour", r"must be a whole number from 0 to 23, got -1"),
    "string for list": ({"tags": "abc"}, "features.tags", r"must be a list, got a string"),
    "object for list": ({"tags": {"a": 1}}, "features.tags", r"must be a list, got an object"),
    "too long": ({"tags": ["a"] * 4}, "features.tags", r"at most 3 values, got 4"),
    "null in a list": ({"tags": ["a", None]}, "features.tags.1", r"must be a string, got null"),
    "number in a history": ({"history": ["i1", 2]}, "features.history.1", r"must be a string, got 2"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_feature_is_named(recallers: dict[tuple[str, bool], Recaller], name: str) -> None:
    features, field, message = WRONG[name]
    with pytest.raises(RequestError, match=message) as caught:
        recallers["exact", True].recall(RecallQuery(features=features))
    assert caught.value.field == field


def test_k_below_one_is_refused(recallers: dict[tuple[str, bool], Recaller]) -> None:
    with pytest.raises(RequestError, match="k: must be at least 1, got 0"):
        recallers["exact", True].recall(RecallQuery(k=0))


def test_the_saved_tower_computes_its_formula(tmp_path: Path) -> None:
    write_world(tmp_path / "bundle", write_towers=save_towers)
    encoder = Encoder.of_queries(Bundle.open(tmp_path / "bundle"))
    encoder.warm_up()
    requests: list[dict[str, Any]] = [
        {},
        {"user": "u2", "country": "g3", "age": 30, "hour": 5, "tags": ["a", "b"], "history": ["i1", "i6"]},
        {"user": "nobody", "age": None, "history": ["zzz", "i5", "i9", "i2", "i3", "i7"]},
        {"tags": [], "hour": 0, "age": 0.5},
    ]
    np.testing.assert_allclose(encoder.encode(requests), [query_vector(each) for each in requests], rtol=1e-6)
    # Alone, each has shorter lists beside it than in the batch.
    for request in requests:
        np.testing.assert_allclose(encoder.encode([request])[0], query_vector(request), rtol=1e-6)
    assert encoder.encode([]).shape == (0, 8)
    with pytest.raises(RequestError, match=r"features\.age"):
        encoder.encode([{}, {"age": "old"}])


def test_a_tower_that_is_not_the_manifests_is_refused(tmp_path: Path) -> None:
    write_world(tmp_path / "bundle", features=WITHOUT_HISTORY, write_towers=save_towers)
    with pytest.raises(BundleError, match=r"query_tower: takes .*'history': 'string'.*the manifest says"):
        Encoder.of_queries(Bundle.open(tmp_path / "bundle"))
    write_world(tmp_path / "broken")
    with pytest.raises(BundleError, match=r"query_tower: TensorFlow cannot load it"):
        Encoder.of_queries(Bundle.open(tmp_path / "broken"))


def test_a_whole_recaller_opens_from_a_path(tmp_path: Path) -> None:
    write_world(tmp_path / "bundle", write_towers=save_towers)
    recaller = open_recaller(tmp_path / "bundle")
    query = RecallQuery(user_id="u3", features={"country": "g1", "age": 20}, k=15)
    check(recaller.recall(query), query, True)


def test_a_vector_whose_squares_are_zero_is_no_zero_vector(tmp_path: Path) -> None:
    vectors = np.zeros((USERS, len(item_vectors()[0])), np.float32)
    vectors[1] = 1e-24 * item_vectors()[1]
    write_world(tmp_path / "bundle", query_vectors=vectors)
    recaller = Recaller(bundle := Bundle.open(tmp_path / "bundle"), ExactIndex(bundle.item_vectors))
    alone = recaller.recall(RecallQuery(user_id="u1", k=5))
    assert alone.source == "user"
    rows, scores = recaller.recall_users(np.array([1]), 5)
    assert (rows[0].tolist(), scores[0].tolist()) == (alone.rows.tolist(), alone.scores.tolist())


def test_a_query_without_a_user_is_not_of_the_user_whose_id_is_empty(tmp_path: Path) -> None:
    """As in logs of anonymous traffic; `towers prepare` drops such events."""
    write_world(tmp_path / "bundle", query_ids=["", *(f"u{user}" for user in range(1, USERS))])
    bundle = Bundle.open(tmp_path / "bundle")
    recaller = Recaller(bundle, ExactIndex(bundle.item_vectors), ArithmeticEncoder())
    nobody, empty = recaller.recall(RecallQuery(k=ITEMS)), recaller.recall(RecallQuery(user_id="", k=ITEMS))
    assert (nobody.source, len(nobody.ids)) == ("popular", ITEMS)
    assert (empty.source, len(empty.ids)) == ("user", ITEMS - len(seen_rows(0)))


def test_a_zero_vector_is_answered_by_popularity_without_what_was_seen(tmp_path: Path) -> None:
    """Training learnt nothing of user 1; of them only the seen items are known. The tower knows not "nowhere"."""
    vectors = np.zeros((2, 3), np.float32)
    vectors[0, 0] = 1
    bundle = write_bundle(
        tmp_path / "bundle",
        model_version="zero",
        metric="dot",
        query_features=[FeatureSpec(name="city", kind="categorical", dtype="string")],
        candidate_features=[],
        item_ids=["a", "b", "c"],
        item_vectors=np.eye(3, dtype=np.float32),
        item_attributes=pl.DataFrame({"item_id": ["a", "b", "c"]}),
        popularity=[1, 3, 2],
        query_ids=["u0", "u1"],
        query_vectors=vectors,
        seen_offsets=[0, 0, 1],
        seen_items=[1],
        write_towers=save_towers,
        libraries={},
        lineage={},
        training={},
    )
    assert bundle.queries == 2
    opened = Bundle.open(tmp_path / "bundle")

    class Ignorant:
        def encode(self, requests: Sequence[object]) -> np.ndarray:
            return np.zeros((len(requests), 3), np.float32)

    recaller = Recaller(opened, ExactIndex(opened.item_vectors), Ignorant())
    for query in (RecallQuery(user_id="u1", k=3), RecallQuery(user_id="u1", features={"city": "nowhere"}, k=3)):
        answer = recaller.recall(query)
        assert (answer.ids, answer.scores.tolist(), answer.source) == (["c", "a"], [2.0, 1.0], "popular")
    assert recaller.recall(RecallQuery(user_id="u0", k=1)).ids == ["a"]
    rows, scores = recaller.recall_users(np.array([0, 1]), 3)
    assert rows.tolist() == [[0, 1, 2], [2, 0, -1]]
    assert scores[1].tolist() == [2.0, 1.0, -np.inf]


def test_a_batch_gives_each_query_what_it_would_get_alone_whatever_the_others_ask(tmp_path: Path) -> None:
    bundle = world(tmp_path, "bundle", FEATURES)

    class Lazy(ExactIndex):
        """Gives other items where it is asked for more."""

        def search(self, queries: Any, k: int, excluded: Any = None) -> Any:
            rows, scores = super().search(queries, k, excluded)
            return rows[:, ::-1] if k > 20 else rows, scores

    recaller = Recaller(bundle, Lazy(bundle.item_vectors), ArithmeticEncoder())
    asked = [RecallQuery(user_id=f"u{n}", k=k) for n, k in ((1, 5), (2, 30), (3, 5))]
    assert [each.ids for each in recaller.recall_many(asked)] == [recaller.recall(query).ids for query in asked]


def test_a_vector_that_overflows_is_one_of_which_nothing_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_world(tmp_path / "bundle", write_towers=save_towers)
    encoder = Encoder.of_queries(Bundle.open(tmp_path / "bundle"))
    given = np.array([[np.nan, *[1] * 7], [1] * 8, [np.inf] * 8], np.float32)
    monkeypatch.setattr(encoder, "_raw", lambda requests: given)
    np.testing.assert_array_equal(encoder.encode([{}] * 3), [[0] * 8, [1] * 8, [0] * 8])


def test_an_item_of_which_training_learnt_nothing_takes_no_part_in_the_mean_of_others(tmp_path: Path) -> None:
    vectors = item_vectors()
    vectors[3] = 0
    write_world(tmp_path / "bundle", item_vectors=vectors)
    bundle = Bundle.open(tmp_path / "bundle")
    recaller = Recaller(bundle, ExactIndex(bundle.item_vectors))
    one = recaller.recall(RecallQuery(similar_to=["i5"], exclude=["i3"], k=3))
    both = recaller.recall(RecallQuery(similar_to=["i3", "i5"], k=3))
    assert (both.source, both.ids) == ("similar", one.ids)
    assert recaller.recall(RecallQuery(similar_to=["i3"], k=3)).source == "popular"
