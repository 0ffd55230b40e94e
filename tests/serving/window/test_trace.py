"""A trace: its counts equal set differences, its lists the top of full sorts, whatever the query asks to leave out."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serving.bundle.reader import Bundle
from serving.catalogue.overlay import Change
from serving.recall.query import RecallQuery
from serving.recall.recaller import Recaller
from serving.search.exact import ExactIndex
from serving.window.inquiry import ask
from serving.window.trace import MOST_SHOWN, Step, trace
from tests.support.worlds import window as world
from tests.support.worlds.serving import ITEMS


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return world.write_ties(tmp_path_factory.mktemp("ties") / "bundle")


def check(step: Step, before: list[str], after: list[str], k: int, scores: dict[str, float]) -> None:
    """The step turned one list into the other."""
    assert (step.before, step.after) == (len(before), len(after))
    removed = [(rank, item_id) for rank, item_id in enumerate(before[:k], 1) if item_id not in after]
    assert [(item.rank, item.id) for item in step.removed] == removed[:MOST_SHOWN]
    moved = [
        (item_id, before.index(item_id) + 1, rank)
        for rank, item_id in enumerate(after[:k], 1)
        if before.index(item_id) + 1 != rank
    ]
    assert [(each.item.id, each.before, each.item.rank) for each in step.moved] == moved[:MOST_SHOWN]
    listed = [*step.removed, *(each.item for each in step.moved)]
    assert [item.score for item in listed] == [scores[item.id] for item in listed]


@settings(max_examples=100)
@given(world.queries(), world.changes)
def test_each_step_is_a_set_difference(
    bundle: Bundle, asked: tuple[RecallQuery, list[int] | None], changes: list[Change]
) -> None:
    query, places = asked
    items = world.living(changes)
    scores = dict(world.scored(query, items))
    inquiry = ask(world.asked(bundle, ExactIndex(bundle.item_vectors), changes), query)
    left = list(scores)
    assert (len(inquiry.order), inquiry.deleted) == (len(items), len({f"i{row}" for row in range(ITEMS)} - set(items)))
    steps = iter(trace(inquiry))
    for kind, condition, failing in world.barriers(query, places, items):
        step = next(steps)
        assert (step.kind, step.condition) == (kind, condition)
        after = [item_id for item_id in left if item_id not in failing]
        check(step, left, after, query.k, scores)
        left = after
    kept, skipped = world.greedy(query, left, items)
    if query.diversity is not None:
        step = next(steps)
        assert step.kind == "diversity"
        after = [item_id for item_id in left if item_id not in skipped]
        check(step, left, after, query.k, scores)
        left = after
    step = next(steps)
    assert step.kind == "k"
    check(step, left, kept, query.k, scores)
    assert next(steps, None) is None


@settings(max_examples=30)
@given(world.vectors, st.sets(st.integers(0, ITEMS - 1), max_size=20), st.integers(1, 30))
def test_the_index_is_the_last_step(bundle: Bundle, vector: list[int], gaps: set[int], k: int) -> None:
    exact = ExactIndex(bundle.item_vectors)
    query = RecallQuery(vector=vector, k=k)
    best = Recaller(bundle, exact).recall(query).ids
    inquiry = ask(Recaller(bundle, world.Gaps(exact, gaps)), query)
    step = trace(inquiry)[-1]
    assert step.kind == "index"
    found = [item_id for item_id in best if int(item_id[1:]) not in gaps]
    assert (step.before, step.after) == (len(best), len(found))
    assert [item.id for item in step.removed] == [item_id for item_id in best if item_id not in found]
    # The items found stand first in the answer, in the same order.
    assert inquiry.answer.ids[: len(found)] == found
    moved = [(item_id, best.index(item_id) + 1, rank) for rank, item_id in enumerate(found, 1)]
    assert [(each.item.id, each.before, each.item.rank) for each in step.moved] == [
        each for each in moved if each[1] != each[2]
    ]


def test_lists_are_bounded(bundle: Bundle) -> None:
    query = RecallQuery(vector=[1.0] * 8, k=ITEMS, exclude=[f"i{row}" for row in range(ITEMS - 1)])
    exact = ExactIndex(bundle.item_vectors)
    traced = trace(ask(Recaller(bundle, exact), query))
    (step,) = [each for each in traced if each.kind == "exclude"]
    assert (step.before, step.after, len(step.removed)) == (ITEMS, 1, MOST_SHOWN)
