"""Why an answer holds an item: every number against a loop over the query without one item of its history."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serving.bundle.encoder import Encoder
from serving.bundle.manifest import FeatureSpec, PriorInfo
from serving.bundle.reader import Bundle
from serving.catalogue.overlay import Change
from serving.catalogue.user_events import Taken
from serving.recall.loading import open_recaller
from serving.recall.query import RecallQuery
from serving.recall.recaller import Recaller
from serving.search.exact import ExactIndex
from serving.window.explain import MOST_HISTORY, NEAREST, Explanation, explain
from serving.window.inquiry import ask
from tests.support.paths import ROOT
from tests.support.worlds.serving import (
    FEATURES,
    ITEMS,
    WITHOUT_HISTORY,
    ArithmeticEncoder,
    item_vectors,
    query_vector,
    seen_rows,
    write_world,
)

ROWS = {f"i{row}": row for row in range(ITEMS)}
LENGTH = 4  # items of a history that the world's tower reads


def world(out: Path, features: Sequence[FeatureSpec] = FEATURES, **changes: Any) -> Bundle:
    write_world(out, features=features, **changes)
    return Bundle.open(out)


def recaller_of(bundle: Bundle, *, encodes: bool = True) -> Recaller:
    return Recaller(bundle, ExactIndex(bundle.recall_vectors), ArithmeticEncoder() if encodes else None)


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> dict[bool, Bundle]:
    """With and without a history feature in the tower."""
    out = tmp_path_factory.mktemp("explained")
    return {has: world(out / str(has), FEATURES if has else WITHOUT_HISTORY) for has in (True, False)}


def dot(one: Sequence[float], other: Sequence[float]) -> float:
    return float(np.float32(sum(float(a) * float(b) for a, b in zip(one, other, strict=True))))


def check(found: Explanation, read: list[str], score_of: Any) -> None:
    """Against loops: `score_of` scores an item for a history, None if nothing is known of it."""
    newest = list(dict.fromkeys(reversed(read)))
    assert found.history == newest
    for reason in found.items:
        row = ROWS[reason.item.id]
        complete = score_of(read, row)
        assert reason.complete == pytest.approx(complete, rel=1e-6)
        expected = {}
        for item_id in newest:
            without = score_of([each for each in read if each != item_id], row)
            expected[item_id] = (dot(item_vectors()[row], item_vectors()[ROWS[item_id]]), without)
        listed = {each.id: each for each in (*reason.nearest, *reason.helped, *reason.hurt)}
        for item_id, each in listed.items():
            similarity, without = expected[item_id]
            assert each.similarity == similarity
            assert (each.without is None) == (without is None)
            if without is not None:
                assert each.without == pytest.approx(without, rel=1e-6)
                assert each.effect == pytest.approx(complete - without, abs=1e-5)
        nearest = sorted((similarity for similarity, _ in expected.values()), reverse=True)[:NEAREST]
        assert [each.similarity for each in reason.nearest] == nearest
        effects = [0.0 if without is None else complete - without for _, without in expected.values()]
        for lists, sign in ((reason.helped, 1), (reason.hurt, -1)):
            want = sorted((sign * effect for effect in effects if sign * effect > 1e-5), reverse=True)[:NEAREST]
            assert [sign * (each.effect or 0) for each in lists if abs(each.effect or 0) > 1e-5] == pytest.approx(
                want, abs=1e-5
            )


histories = st.lists(st.sampled_from([f"i{row}" for row in range(0, ITEMS, 7)]), min_size=1, max_size=7)


@settings(max_examples=40)
@given(histories, st.sampled_from([None, "u1", "u6"]), st.sampled_from([None, {"country": "g2"}, {"age": 3.0}]))
def test_the_tower_without_one_item(
    bundles: dict[bool, Bundle], history: list[str], user: str | None, features: dict[str, Any] | None
) -> None:
    query = RecallQuery(user_id=user, history=history, features=features, k=15, exclude_seen=False)
    inquiry = ask(recaller_of(bundles[True]), query)
    found = explain(inquiry)
    assert inquiry.plan.source == ("features" if features else "history")
    assert (found.without_reason, found.history_length) == (None, len(history))

    def score_of(read: list[str], row: int) -> float:
        return dot(query_vector({"user": user, **(features or {}), "history": read}), item_vectors()[row])

    check(found, history[-LENGTH:], score_of)
    assert [reason.item.id for reason in found.items] == inquiry.answer.ids
    assert [reason.complete for reason in found.items] == [reason.item.score for reason in found.items]
    assert all(reason.prior is None for reason in found.items)


@settings(max_examples=20)
@given(histories, st.booleans())
def test_similar_items_without_one_item(bundles: dict[bool, Bundle], history: list[str], similar_to: bool) -> None:
    query = RecallQuery(similar_to=history) if similar_to else RecallQuery(history=history)
    found = explain(ask(recaller_of(bundles[similar_to]), query))
    assert found.without_reason is None

    def score_of(read: list[str], row: int) -> float | None:
        units = [item_vectors()[ROWS[each]] / np.linalg.norm(item_vectors()[ROWS[each]]) for each in read]
        return dot(np.mean(units, axis=0), item_vectors()[row]) if units else None

    check(found, history, score_of)


def test_a_known_user_is_encoded_again_with_the_stored_history(bundles: dict[bool, Bundle]) -> None:
    inquiry = ask(recaller_of(bundles[True]), RecallQuery(user_id="u5", k=10))
    assert inquiry.plan.source == "user"
    stored = [f"i{row}" for row in seen_rows(5)]

    def score_of(read: list[str], row: int) -> float:
        return dot(query_vector({"user": "u5", "history": read}), item_vectors()[row])

    found = explain(inquiry)
    check(found, stored, score_of)
    assert found.history_length == len(stored)
    # The world's stored vectors were made without the history: the complete score is not that of the answer.
    assert all(reason.complete != reason.item.score for reason in found.items if ROWS[reason.item.id] % 4 == 1)


def test_an_event_that_repeats_the_stored_history_adds_nothing_to_it(bundles: dict[bool, Bundle]) -> None:
    recaller, stored = recaller_of(bundles[True]), [f"i{row}" for row in seen_rows(5)]
    before = explain(ask(recaller, RecallQuery(user_id="u5", k=10)))
    recaller.planner.users.apply([("u5", Taken(5, 1, stored[0], "event"))])
    inquiry = ask(recaller, RecallQuery(user_id="u5", k=10))
    assert inquiry.plan.source == "user" and explain(inquiry) == before


def test_items_deleted_live_stay_in_the_history_of_the_tower(bundles: dict[bool, Bundle]) -> None:
    recaller = recaller_of(bundles[True])
    recaller.catalogue.live.apply([Change("i7", None), Change("i1", None), Change("i5", None)])
    found = explain(ask(recaller, RecallQuery(history=["i7", "i14"])))
    assert found.history == ["i14", "i7"]
    # Also where all that a user has seen is gone.
    gone = explain(ask(recaller, RecallQuery(user_id="u5")))
    assert (gone.history, gone.without_reason) == (["i5", "i1"], None)
    assert None not in {reason.complete for reason in gone.items}


@pytest.mark.parametrize(
    ("query", "has_history", "encodes", "reason"),
    [
        (RecallQuery(vector=[1.0] * 8, user_id="u1"), True, True, "the request's own vector"),
        (RecallQuery(user_id="nobody"), True, True, "most popular items"),
        (RecallQuery(user_id="u1"), True, False, "no query tower is loaded"),
        (RecallQuery(user_id="u1"), False, True, "takes no history"),
        (RecallQuery(features={"country": "g1"}), False, True, "takes no history"),
        (RecallQuery(features={"country": "g1"}), True, True, "no item of a history"),
        (RecallQuery(user_id="u0"), True, True, "no item of a history"),  # has seen nothing
    ],
)
def test_where_there_is_no_score_without_an_item(
    bundles: dict[bool, Bundle], query: RecallQuery, has_history: bool, encodes: bool, reason: str
) -> None:
    found = explain(ask(recaller_of(bundles[has_history], encodes=encodes), query))
    assert found.without_reason is not None and reason in found.without_reason
    assert found.items
    for each in found.items:
        assert each.complete is None and not each.helped and not each.hurt
        assert all(near.without is None and near.effect is None for near in each.nearest)
        seen = query.user_id == "u1" and query.vector is None
        assert [near.id for near in each.nearest] == ([] if not seen else ["i1", "i5"])


@pytest.mark.parametrize("length", [0.0, 0.5])
def test_the_prior_is_a_part_of_the_score(tmp_path: Path, length: float) -> None:
    prior = PriorInfo(now=0.3, past=0.2, length=length, mean_count=1.0, new_item=(0.0, 0.0))
    shares = np.random.default_rng(0).normal(size=(ITEMS, 2)).astype(np.float32)
    bundle = world(tmp_path / "bundle", prior=prior, item_prior=shares)
    history = ["i3", "i8", "i8", "i20"]
    found = explain(ask(recaller_of(bundle), RecallQuery(history=history, k=10)))

    def prior_of(read: list[str], row: int) -> float:
        weight = max(0.0, prior.now + length * np.log1p(len(read)))
        return float(weight * shares[row, 0] - prior.past * shares[row, 1])

    assert len(found.items) == 10
    for reason in found.items:
        row = ROWS[reason.item.id]
        of_vectors = dot(query_vector({"history": history}), item_vectors()[row])
        assert reason.prior == pytest.approx(prior_of(history, row), abs=1e-5)
        assert reason.item.score == pytest.approx(of_vectors + prior_of(history, row), abs=1e-5)
        for near in reason.nearest:
            rest = [each for each in history if each != near.id]
            without = dot(query_vector({"history": rest}), item_vectors()[row]) + prior_of(rest, row)
            assert near.without == pytest.approx(without, abs=1e-5)
    # In a query by similarity alone the prior has no weight; popular items have no such score.
    for query in (RecallQuery(similar_to=["i1"]), RecallQuery()):
        assert {each.prior for each in explain(ask(recaller_of(bundle), query)).items} == {None}


def test_an_item_in_two_histories_of_types_counts_twice(tmp_path: Path) -> None:
    """What is left out counts as in a request without it."""
    prior = PriorInfo(now=0.3, past=0.2, length=0.5, mean_count=1.0, new_item=(0.0, 0.0))
    shares = np.random.default_rng(0).normal(size=(ITEMS, 2)).astype(np.float32)
    spec = FeatureSpec(name="see", kind="history", dtype="string", length=20, events=("see",))
    typed = spec, spec.model_copy(update={"name": "buy", "events": ("buy",)})
    recaller = recaller_of(world(tmp_path / "bundle", (FEATURES[0], *typed), prior=prior, item_prior=shares))
    sent = {"see": ["i5", "i9", "i13"], "buy": ["i5", "i2"]}
    found = explain(ask(recaller, RecallQuery(features=sent, k=10, exclude_seen=False)))
    assert {*found.history} == {"i5", "i9", "i13", "i2"} and found.history_length == 5
    for left_out in found.history:
        rest = {name: [each for each in item_ids if each != left_out] for name, item_ids in sent.items()}
        asked = recaller.recall(RecallQuery(features=rest, k=ITEMS, exclude_seen=False))
        scores = dict(zip(asked.ids, asked.scores.tolist(), strict=True))
        for reason in found.items:
            (without,) = [each.without for each in reason.nearest if each.id == left_out]
            assert without == pytest.approx(scores[reason.item.id], abs=1e-6)


def test_a_prior_without_weight_is_no_part_of_the_score(tmp_path: Path) -> None:
    prior = PriorInfo(now=0.0, past=0.0, length=0.5, mean_count=1.0, new_item=(0.0, 0.0))
    bundle = world(tmp_path / "bundle", prior=prior, item_prior=np.ones((ITEMS, 2), np.float32))
    # By its formula the weight is 0.5 log(1 + 0) = 0 without a history, and more with one.
    for query, has in ((RecallQuery(features={"country": "g1"}), False), (RecallQuery(history=["i3"]), True)):
        found = explain(ask(recaller_of(bundle), query))
        assert found.items and all((reason.prior is not None) == has for reason in found.items)


def test_a_long_history_is_cut_to_the_newest(tmp_path: Path) -> None:
    long = [each.model_copy(update={"length": 500}) if each.kind == "history" else each for each in FEATURES]
    write_world(tmp_path / "bundle", items=300, features=long)
    recaller = Recaller(
        bundle := Bundle.open(tmp_path / "bundle"), ExactIndex(bundle.item_vectors), ArithmeticEncoder(300)
    )
    history = [f"i{row}" for row in range(250)]
    found = explain(ask(recaller, RecallQuery(history=history, k=300)))
    assert found.history == history[::-1][:MOST_HISTORY]
    assert found.history_length == 250


def test_a_real_bundle_with_tower_prior_and_index() -> None:
    recaller = open_recaller(ROOT / "tests" / "golden" / "bundle", verify=False)
    bundle = recaller.bundle
    spec = bundle.manifest.query_feature("history")
    assert spec is not None and isinstance(recaller.encoder, Encoder)
    user = bundle.query_names[3]
    inquiry = ask(recaller, RecallQuery(user_id=user, k=20))
    found = explain(inquiry)
    stored = bundle.item_names.at(bundle.seen(3))
    assert found.history_length == len(stored) and found.without_reason is None
    profile = {"user_id": user, **bundle.profile(3)}
    read = stored[-(spec.length or 0) :]

    def score_of(ids: list[str], row: int, length: int) -> float:
        """One call of the tower for one query, in Python's own sums."""
        vector = recaller.encoder.encode([profile | {spec.name: ids}])  # type: ignore[union-attr]
        whole = bundle.recall_queries(vector, np.array([length]))[0]
        return dot(whole, bundle.recall_vectors[row])

    assert len(found.items) == 20
    for reason in found.items[:3]:
        row = bundle.item_rows[reason.item.id]
        assert reason.complete == pytest.approx(score_of(read, row, len(stored)), rel=1e-4, abs=1e-4)
        assert reason.prior is not None
        for near in (*reason.nearest, *reason.helped[:1], *reason.hurt[:1]):
            rest = [each for each in read if each != near.id]
            length = len(stored) - len(read) + len(rest)
            assert near.without == pytest.approx(score_of(rest, row, length), rel=1e-4, abs=1e-4)
            other = bundle.item_rows[near.id]
            assert near.similarity == dot(bundle.item_vectors[row], bundle.item_vectors[other])
