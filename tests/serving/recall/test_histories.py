"""A tower with several histories, some of types of events: what each holds of a request, of the bundle, of events."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from serving.bundle.manifest import FeatureSpec
from serving.bundle.reader import Bundle
from serving.catalogue.overlay import Change
from serving.catalogue.user_events import Taken, UserEvents
from serving.errors import BundleError
from serving.recall.query import Plan, RecallQuery
from serving.recall.recaller import Recaller
from serving.recall.self_test import probe
from serving.search.exact import ExactIndex
from tests.support.worlds.serving import FEATURES, ArithmeticEncoder, write_world

TYPES = ("buy", "click")
HISTORIES = (
    *FEATURES,  # `history` takes the last four of all
    FeatureSpec(name="clicks", kind="history", dtype="string", length=2, events=("click",)),
    FeatureSpec(name="bought", kind="history", dtype="string", length=3, events=("buy", "rent")),
    FeatureSpec(name="bought_times", kind="history_times", dtype="int64", length=3),
)
TYPED = (FEATURES[0], *HISTORIES[-3:])
# What u0 took, oldest first; of no type is number -1.
STORED = [("i4", "click"), ("i5", "buy"), ("i6", "click"), ("i7", None), ("i8", "click"), ("i9", "buy")]


def opened(
    path: Path, features: Sequence[FeatureSpec] = HISTORIES, duplicates: str = "keep", **arrays: Any
) -> Recaller:
    seen = [int(item[1:]) for item, _ in STORED]
    numbers = [-1 if kind is None else TYPES.index(kind) for _, kind in STORED]
    offsets = np.where(np.arange(13) > 0, len(STORED), 0)
    write_world(
        path,
        features=features,
        seen_offsets=offsets,
        seen_items=np.array(seen),
        event_types=TYPES,
        seen_types=np.array(numbers),
        lineage={"config": {"data": {"duplicates": duplicates}}},
        **arrays,
    )
    bundle = Bundle.open(path)
    return Recaller(bundle, ExactIndex(bundle.item_vectors), ArithmeticEncoder(), UserEvents())


def planned(recaller: Recaller, **query: Any) -> Plan:
    return recaller.planner.plan(RecallQuery(k=1, **query), recaller.catalogue.snapshot())


def take(recaller: Recaller, user: str, *taken: tuple[str, str]) -> None:
    events = [(user, Taken(100 + seq, seq, item, kind)) for seq, (item, kind) in enumerate(taken)]
    recaller.planner.users.apply(events, anew=True)


def histories(plan: Plan) -> dict[str, Any]:
    assert plan.features is not None
    return {name: plan.features[name] for name in ("history", "clicks", "bought") if name in plan.features}


@pytest.fixture(scope="module")
def recaller(tmp_path_factory: pytest.TempPathFactory) -> Recaller:
    return opened(tmp_path_factory.mktemp("histories") / "bundle")


def test_live_events_of_types_do_not_hide_what_the_caller_sends(tmp_path: Path) -> None:
    recaller = opened(tmp_path / "bundle", TYPED)
    take(recaller, "new", ("i1", "click"))
    plan = planned(recaller, user_id="new", history=["i3", "i9"])
    assert plan.source == "similar" and plan.vector is not None
    own = recaller.bundle.item_vectors[[3, 9]]
    np.testing.assert_allclose(plan.vector, (own / np.linalg.norm(own, axis=1, keepdims=True)).mean(0), rtol=1e-5)
    for history in ([], ["nobody"]):
        plan = planned(recaller, user_id="new", history=history)
        assert (plan.source, histories(plan)["clicks"]) == ("history", ["i1"])


def test_after_an_event_each_history_holds_the_newest_of_its_types(recaller: Recaller) -> None:
    take(recaller, "u0", ("i1", "buy"), ("i2", "event"), ("i3", "rent"))
    plan = planned(recaller, user_id="u0")
    assert (plan.source, plan.history) == ("history", 9)
    assert histories(plan) == {
        "history": ["i9", "i1", "i2", "i3"],
        "clicks": ["i6", "i8"],
        "bought": ["i9", "i1", "i3"],
    }
    take(recaller, "new", ("i1", "click"), ("i2", "event"))
    stranger = planned(recaller, user_id="new")
    assert histories(stranger) == {"history": ["i1", "i2"], "clicks": ["i1"], "bought": []}


def test_a_request_fills_what_it_names_and_the_service_the_rest(recaller: Recaller) -> None:
    take(recaller, "u0")
    sent = {"bought": ["i20", "no such item", "i21"], "bought_times": [5, 6, 7]}
    plan = planned(recaller, user_id="u0", features=sent)
    assert (plan.source, plan.history) == ("features", 2)
    assert histories(plan) == {"history": ["i6", "i7", "i8", "i9"], "clicks": ["i6", "i8"], "bought": ["i20", "i21"]}
    assert plan.features is not None and plan.features["bought_times"] == [5, 7]
    assert set(plan.excluded.tolist()) == {4, 5, 6, 7, 8, 9, 20, 21}
    # A history beside the features is of events of any type: it fills the history of all, and no other.
    both = planned(recaller, history=["i30", "i31"], features={"clicks": ["i20"]})
    assert histories(both) == {"history": ["i30", "i31"], "clicks": ["i20"], "bought": []} and both.history == 2
    alone = planned(recaller, user_id="u0", history=["i30"])
    assert alone.source == "history"
    assert histories(alone) == {"history": ["i30"], "clicks": ["i6", "i8"], "bought": ["i5", "i9"]}
    empty = planned(recaller, features={"clicks": ["no such item"], "bought": []})
    assert empty.source == "popular"


@pytest.mark.parametrize("features", [HISTORIES, TYPED], ids=["of all types", "of some types"])
@pytest.mark.parametrize("last", [60, 50], ids=["all trained", "ten never taken"])
@pytest.mark.parametrize("changed", [False, True])
def test_a_history_alone_is_planned_as_beside_something_that_changes_nothing(
    tmp_path: Path, features: Sequence[FeatureSpec], last: int, changed: bool
) -> None:
    recaller = opened(tmp_path / "bundle", features, popularity=(np.arange(60) < last).astype(np.int64))
    if changed:
        recaller.catalogue.live.apply([Change("i5", None), Change("new", np.ones(8, np.float32))])
    known = (["i4"], ["i9", "i2", "i9"], [f"i{n}" for n in range(10)], ["i5", "i6"], ["i55", "i3"])
    for history in (*known, ["i3", "nobody"], ["nobody"], ["i3", "new"], ["new"]):
        alone, beside = planned(recaller, history=history), planned(recaller, history=history, exclude=["nobody"])
        assert alone.excluded.tolist() == beside.excluded.tolist()
        assert (alone.source, alone.features, alone.history) == (beside.source, beside.features, beside.history)


def test_items_that_nobody_took_before_the_training_take_no_place(tmp_path: Path) -> None:
    """They are in the bundle by their features, and the tower has no rows for them in histories."""
    recaller = opened(tmp_path / "bundle", popularity=(np.arange(60) < 50).astype(np.int64))
    new = [f"i{row}" for row in range(50, 60)]
    sent = {"bought": ["i20", *new], "bought_times": list(range(11))}
    asked = planned(recaller, history=["i3", *new, "i7", *new], features=sent)
    assert histories(asked) == {"history": ["i3", "i7"], "clicks": [], "bought": ["i20"]} and asked.history == 2
    assert asked.features is not None and asked.features["bought_times"] == [0]
    assert planned(recaller, history=new).source == "popular"
    take(recaller, "u0", (new[0], "buy"), (new[1], "click"))
    assert planned(recaller, user_id="u0").source == "user"
    take(recaller, "u0", (new[0], "buy"), ("i1", "click"), (new[1], "click"))
    live = histories(planned(recaller, user_id="u0"))
    assert live == {"history": ["i7", "i8", "i9", "i1"], "clicks": ["i8", "i1"], "bought": ["i5", "i9"]}


@pytest.mark.parametrize(
    ("duplicates", "bought", "clicks"),
    [("keep", ["i5", "i9", "i8"], ["i6", "i8"]), ("first", ["i5", "i9"], ["i6", "i8"])],
)
def test_what_was_clicked_and_then_bought_counts_as_in_training(
    tmp_path: Path, duplicates: str, bought: list[str], clicks: list[str]
) -> None:
    recaller = opened(tmp_path / "bundle", duplicates=duplicates)
    take(recaller, "u0", ("i8", "buy"), ("i6", "click"), ("i9", "buy"), ("i1", "view"))
    plan = planned(recaller, user_id="u0")
    assert histories(plan) == {"history": plan.features["history"], "clicks": clicks, "bought": bought}
    assert plan.features["history"][-1] == "i1"


def test_a_tower_of_types_alone_reads_no_history_without_types(tmp_path: Path) -> None:
    recaller = opened(tmp_path / "bundle", TYPED)
    probe(recaller)
    assert planned(recaller, history=["i3"]).source == "similar"
    # An event of a type that no history takes leaves the stored vector; one that is taken does not.
    take(recaller, "u0", ("i1", "event"))
    plan = planned(recaller, user_id="u0")
    assert (plan.source, plan.history) == ("user", 7)
    take(recaller, "u0", ("i1", "event"), ("i2", "click"))
    plan = planned(recaller, user_id="u0")
    assert (plan.source, histories(plan)) == ("history", {"clicks": ["i8", "i2"], "bought": ["i5", "i9"]})
    plan = recaller.planner.plan(RecallQuery(user_id="u0", k=1), recaller.catalogue.snapshot(), encoded=True)
    assert histories(plan) == {"clicks": ["i8", "i2"], "bought": ["i5", "i9"]}


@pytest.mark.parametrize(
    ("types", "message"),
    [([0, 1, 2, 0, 0, 0], r"seen_types\.npy: numbers of types must lie in -1\.\.1"), ([0, 1], r"be \[6\], is \[2\]")],
)
def test_types_that_do_not_fit_are_refused(tmp_path: Path, types: list[int], message: str) -> None:
    with pytest.raises(BundleError, match=message):
        write_world(
            tmp_path / "bundle",
            seen_offsets=np.where(np.arange(13) > 0, 6, 0),
            seen_items=np.arange(6),
            event_types=TYPES,
            seen_types=np.array(types),
        )
    with pytest.raises(BundleError, match=r"must name seen_types\.npy"):
        write_world(tmp_path / "bundle", event_types=TYPES)
