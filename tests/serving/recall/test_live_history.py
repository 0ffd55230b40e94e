"""The live events of a user make the history that a training on the same events would have made."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.bundle.reader import Bundle
from serving.catalogue.user_events import Taken, UserEvents
from serving.recall.query import RecallQuery
from serving.recall.recaller import Recaller
from serving.search.exact import ExactIndex
from tests.support.worlds.serving import ArithmeticEncoder, seen_rows, write_world

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


def test_a_known_user_adds_each_live_item_once(recallers: dict[str, Recaller]) -> None:
    recaller, stored = recallers["first"], seen_rows(5)
    fresh = next(f"i{row}" for row in range(20) if row not in stored)
    events = [fresh, f"i{stored[0]}", fresh]
    recaller.planner.users.apply(
        [("u5", Taken(100 + seq, seq, item, "event")) for seq, item in enumerate(events)], anew=True
    )
    plan = recaller.planner.plan(RecallQuery(user_id="u5", k=1), recaller.catalogue.snapshot())
    assert plan.history == len(stored) + 1
