"""The live events of a user make the history that a training on the same events would have made."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.bundle.reader import Bundle
from serving.catalogue.overlay import Change
from serving.catalogue.user_events import Taken, UserEvents
from serving.recall.query import RecallQuery
from serving.recall.recaller import Recaller
from serving.search.exact import ExactIndex
from tests.support.worlds.serving import ITEMS, ArithmeticEncoder, seen_rows, write_world

LINEAGES = {how: {"config": {"data": {"duplicates": how}}} for how in ("first", "last", "keep")} | {"unknown": {}}
taken = st.lists(st.sampled_from(["i1", "i2", "i4", "i9"]), min_size=1, max_size=4)


@pytest.fixture(scope="module")
def recallers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Recaller]:
    found = {}
    for how, lineage in LINEAGES.items():
        folder = tmp_path_factory.mktemp("worlds") / how
        write_world(folder, lineage=lineage)
        bundle = Bundle.open(folder)
        found[how] = Recaller(bundle, ExactIndex(bundle.recall_vectors), ArithmeticEncoder(), UserEvents())
    return found


def of_training(items: list[str], how: str) -> list[str]:
    """The items of a user's events of which `data.duplicates` keeps one, or all, for each item."""
    others = {"first": lambda place: items[:place], "last": lambda place: items[place + 1 :]}.get(how, lambda _: [])
    return [item for place, item in enumerate(items) if item not in others(place)]


@given(items=taken, how=st.sampled_from(sorted(LINEAGES)))
def test_a_repeated_live_item_counts_as_in_training(recallers: dict[str, Recaller], items: list[str], how: str) -> None:
    recaller = recallers[how]
    recaller.planner.users.apply(
        [("new", Taken(100 + seq, seq, item, "event")) for seq, item in enumerate(items)], anew=True
    )
    plan = recaller.planner.plan(RecallQuery(user_id="new", k=1), recaller.catalogue.snapshot())
    assert plan.features is not None and plan.features["history"] == of_training(items, how)
    assert plan.history == len(of_training(items, how))


@pytest.mark.parametrize("how", ["first", "last", "keep"])
def test_types_that_training_left_out_count_for_nothing(tmp_path: Path, how: str) -> None:
    write_world(tmp_path / "world", lineage={"config": {"data": {"event_types": ["buy"], "duplicates": how}}})
    bundle = Bundle.open(tmp_path / "world")
    recaller = Recaller(bundle, ExactIndex(bundle.recall_vectors), ArithmeticEncoder(), UserEvents())
    sent = [("i1", "click"), ("i1", "buy"), ("i4", "click"), ("i9", "event"), ("i9", "click")]
    applied = [(name, Taken(100 + seq, seq, *each)) for name in ("new", "u5") for seq, each in enumerate(sent)]
    recaller.planner.users.apply([*applied, ("clicker", Taken(100, 9, "i2", "click"))], anew=True)
    items = recaller.catalogue.snapshot()
    plan = recaller.planner.plan(RecallQuery(user_id="new", k=1), items)
    assert plan.features is not None and plan.features["history"] == ["i1", "i9"]
    assert bundle.item_names.at(plan.excluded) == ["i1", "i9"]
    clicker = recaller.planner.plan(RecallQuery(user_id="clicker", k=1), items)
    assert (clicker.source, len(clicker.excluded)) == ("popular", 0)
    # Nor do they make a user known who would take precedence over the one beside the features.
    id_feature = bundle.manifest.query_feature("id")
    assert id_feature is not None
    named = RecallQuery(user_id="u6", features={id_feature.name: "clicker"}, k=1)
    assert recaller.planner.user_id(named, named.features) == "u6"


def test_a_user_whom_features_name_and_only_live_events_know_has_a_history(tmp_path: Path) -> None:
    write_world(tmp_path / "world")
    bundle, users = Bundle.open(tmp_path / "world"), UserEvents()
    users.apply([("stranger", Taken(1, 1, "i7", "event"))])
    recaller = Recaller(bundle, ExactIndex(bundle.recall_vectors), ArithmeticEncoder(), users)
    id_feature = bundle.manifest.query_feature("id")
    assert id_feature is not None
    named = recaller.recall(RecallQuery(features={id_feature.name: "stranger"}, k=2))
    beside = recaller.recall(RecallQuery(user_id="stranger", k=2))
    assert named.source == beside.source == "history" and named.ids == beside.ids


def test_a_known_user_adds_each_live_item_once(recallers: dict[str, Recaller]) -> None:
    recaller, stored = recallers["first"], seen_rows(5)
    fresh = next(f"i{row}" for row in range(20) if row not in stored)
    events = [fresh, f"i{stored[0]}", fresh]
    recaller.planner.users.apply(
        [("u5", Taken(100 + seq, seq, item, "event")) for seq, item in enumerate(events)], anew=True
    )
    plan = recaller.planner.plan(RecallQuery(user_id="u5", k=1), recaller.catalogue.snapshot())
    assert plan.history == len(stored) + 1


@pytest.fixture
def changed(tmp_path: Path) -> Recaller:
    """Item i3 was deleted, and i-new added."""
    write_world(tmp_path / "world")
    bundle = Bundle.open(tmp_path / "world")
    recaller = Recaller(bundle, ExactIndex(bundle.recall_vectors), ArithmeticEncoder(), UserEvents())
    recaller.catalogue.live.apply([Change("i3", None), Change("i-new", np.eye(8, dtype=np.float32)[4])])
    return recaller


def events(recaller: Recaller, item: str) -> None:
    taken = Taken(100, 1, item, "event")
    recaller.planner.users.apply([("newcomer", taken), ("u5", taken)], anew=True)


DELETED: list[tuple[dict[str, Any], str, list[str]]] = [
    ({"history": ["i3"]}, "history", ["i3"]),
    ({"history": ["i3", "i2"]}, "history", ["i3", "i2"]),
    ({"features": {"history": ["i3"]}}, "features", ["i3"]),
    ({"user_id": "newcomer"}, "history", ["i3"]),
    ({"user_id": "u5"}, "history", [f"i{row}" for row in seen_rows(5)] + ["i3"]),
]


@pytest.mark.parametrize(("asked", "source", "read"), DELETED)
def test_a_deleted_item_still_says_what_its_takers_like(
    changed: Recaller, asked: dict[str, Any], source: str, read: list[str]
) -> None:
    events(changed, "i3")
    query = RecallQuery(k=ITEMS, exclude_seen=False, **asked)
    plan, recalled = changed.planner.plan(query, changed.catalogue.snapshot()), changed.recall(query)
    assert (recalled.source, plan.features["history"], plan.history) == (source, read, len(read))
    assert len(recalled.ids) == ITEMS and "i3" not in recalled.ids
    if "i2" not in read and "u5" not in asked.values():
        assert recalled.ids[0] == "i7", "the best of the group that is left"


@pytest.mark.parametrize(
    ("asked", "source"),
    [
        ({"history": ["i-new"]}, "popular"),
        ({"features": {"history": ["i-new"]}}, "popular"),
        ({"user_id": "newcomer"}, "popular"),
        ({"user_id": "u5"}, "user"),
        ({"user_id": "u5", "history": ["i-new"]}, "user"),
    ],
)
def test_an_item_that_the_tower_never_saw_says_nothing(changed: Recaller, asked: dict[str, Any], source: str) -> None:
    events(changed, "i-new")
    recalled = changed.recall(RecallQuery(k=ITEMS, **asked))
    assert recalled.source == source and "i-new" not in recalled.ids


UNKNOWN: list[tuple[dict[str, Any], str, list[str]]] = [
    ({"user_id": "newcomer", "history": ["nobody"]}, "history", ["i2"]),
    ({"user_id": "newcomer", "history": ["nobody", "i-new"]}, "history", ["i2"]),
    ({"user_id": "newcomer", "features": {"history": ["nobody"]}}, "history", ["i2"]),
    ({"user_id": "u5", "history": ["nobody"]}, "history", [f"i{row}" for row in seen_rows(5)] + ["i2"]),
    ({"user_id": "newcomer", "history": ["nobody", "i4"]}, "history", ["i4"]),
]


@pytest.mark.parametrize(("asked", "source", "read"), UNKNOWN)
def test_unknown_items_of_a_request_do_not_hide_the_live_events(
    changed: Recaller, asked: dict[str, Any], source: str, read: list[str]
) -> None:
    """A client sends the click of a moment ago, on an item that came after the model."""
    events(changed, "i2")
    plan = changed.planner.plan(RecallQuery(k=ITEMS, **asked), changed.catalogue.snapshot())
    assert plan.features is not None and (plan.source, plan.features["history"]) == (source, read)


@pytest.mark.parametrize("history", [[], ["nobody"], ["nobody", "nothing"]])
def test_without_a_tower_unknown_items_do_not_hide_them_either(changed: Recaller, history: list[str]) -> None:
    recaller = Recaller(changed.bundle, ExactIndex(changed.bundle.recall_vectors), None, UserEvents())
    events(recaller, "i2")
    asked = RecallQuery(user_id="newcomer", history=history, k=ITEMS)
    plan = recaller.planner.plan(asked, recaller.catalogue.snapshot())
    assert plan.source == "similar" and plan.vector is not None
    own = recaller.bundle.item_vectors[2]
    np.testing.assert_allclose(plan.vector, own / np.linalg.norm(own), rtol=1e-6)
