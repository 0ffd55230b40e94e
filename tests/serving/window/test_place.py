"""Where an item is, and what kept it out: any query over a catalogue full of ties, against loops."""

from pathlib import Path

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import generate_latest

from serving.bundle.reader import Bundle
from serving.catalogue.catalogue import Wanted
from serving.catalogue.overlay import Change
from serving.recall.query import Diversity, RecallQuery
from serving.recall.recaller import Recaller
from serving.search.exact import ExactIndex
from serving.telemetry import metrics
from serving.window.inquiry import answers, ask
from serving.window.place import missed, place
from tests.support.worlds import window as world
from tests.support.worlds.serving import ITEMS, write_world

VECTOR = [1.0, 0, 1, 0, 0, 1, 0, 1]


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return world.write_ties(tmp_path_factory.mktemp("ties") / "bundle")


@settings(max_examples=100)
@given(world.queries(), world.changes)
def test_an_item_is_in_the_answer_iff_nothing_keeps_it_out(
    bundle: Bundle, asked: tuple[RecallQuery, list[int] | None], changes: list[Change]
) -> None:
    query, places = asked
    recaller = world.asked(bundle, ExactIndex(bundle.item_vectors), changes)
    items = world.living(changes)
    order = world.scored(query, items)
    walls = world.barriers(query, places, items)
    left = [item_id for item_id, _ in order if not any(item_id in failing for _, _, failing in walls)]
    kept, _ = world.greedy(query, left, items)
    inquiry = ask(recaller, query)
    answer = recaller.recall(query)
    assert answer.ids == kept
    assert [(item.id, item.rank) for item in answers(inquiry)] == [(each, rank) for rank, each in enumerate(kept, 1)]
    assert missed(inquiry) == []
    for item_id in world.EVERY_ID:
        found = place(inquiry, item_id)
        assert (item_id in answer.ids) == (not found.kept_out), item_id
        assert found.answer_rank == (kept.index(item_id) + 1 if item_id in kept else None)
        if item_id not in items:
            deleted = item_id.startswith("i")
            assert [each.by for each in found.kept_out] == ["deleted" if deleted else "unknown"]
            assert found.rank is None and found.score is None and found.live is None
            continue
        rank, score = next((at + 1, score) for at, (other, score) in enumerate(order) if other == item_id)
        assert (found.rank, found.score) == (rank, score)
        assert found.live == any(change.item_id == item_id for change in changes)
        assert found.rank_left == (left.index(item_id) + 1 if item_id in left else None)
        failed = [(kind, condition) for kind, condition, failing in walls if item_id in failing]
        if failed:
            assert [(each.by, each.condition) for each in found.kept_out] == failed
        elif item_id not in kept:
            assert [each.by for each in found.kept_out] == beaten(query, item_id, left, kept, items)


def beaten(
    query: RecallQuery, item_id: str, left: list[str], kept: list[str], items: dict[str, world.Item]
) -> list[str]:
    """By the definition: which of diversity and k keeps out an item that passes all else."""
    better = [each for each in kept if left.index(each) < left.index(item_id)]
    reasons = []
    if query.diversity is not None:
        column = query.diversity.column
        own = world.values_of(items[item_id][column])
        if any(
            sum(value in world.values_of(items[each][column]) for each in better) >= query.diversity.most
            for value in own
        ):
            reasons.append("diversity")
    return reasons + (["k"] if len(better) == query.k else [])


@settings(max_examples=30)
@given(world.vectors, st.sets(st.integers(0, ITEMS - 1), max_size=20), st.integers(1, 30))
def test_what_an_index_misses(bundle: Bundle, vector: list[int], gaps: set[int], k: int) -> None:
    exact = ExactIndex(bundle.item_vectors)
    query = RecallQuery(vector=vector, k=k)
    inquiry = ask(Recaller(bundle, world.Gaps(exact, gaps)), query)
    best = Recaller(bundle, exact).recall(query).ids
    assert [(item.id, item.rank) for item in missed(inquiry)] == [
        (item_id, rank) for rank, item_id in enumerate(best, 1) if int(item_id[1:]) in gaps
    ]
    for item_id in world.EVERY_ID[:ITEMS]:
        found = place(inquiry, item_id)
        row = int(item_id[1:])
        expected = [] if item_id in inquiry.answer.ids else ["index"] if item_id in best else ["k"]
        assert [each.by for each in found.kept_out] == expected
        assert row not in gaps or expected


def test_diversity_names_the_items_that_used_up_a_value(bundle: Bundle) -> None:
    recaller = world.asked(bundle, ExactIndex(bundle.item_vectors), [])
    query = RecallQuery(vector=VECTOR, k=ITEMS, diversity=Diversity("maker", 2))
    inquiry = ask(recaller, query)
    order = [item_id for item_id, _ in world.scored(query, world.living([]))]
    makers = {item_id: world.columns(int(item_id[1:]))["maker"] for item_id in order}
    kept = recaller.recall(query).ids
    checked = 0
    for item_id in order:
        if item_id in kept:
            continue
        (reason,) = place(inquiry, item_id).kept_out
        assert reason.by == "diversity"
        rivals = [each for each in order if makers[each] == makers[item_id]][:2]
        assert [(item.id, item.rank) for item in reason.items] == [(each, kept.index(each) + 1) for each in rivals]
        checked += 1
    assert checked > 20


def test_a_segment_decides_the_order_of_popular_items(tmp_path: Path) -> None:
    frame = pl.DataFrame({"segment": ["no"], "rows": [[40, 3]], "counts": [[9, 5]]})
    write_world(tmp_path / "bundle", segmented_by="country", popular_segments=frame)
    bundle = Bundle.open(tmp_path / "bundle")
    inquiry = ask(Recaller(bundle, ExactIndex(bundle.item_vectors)), RecallQuery(segment="no", k=3))
    found = {item_id: place(inquiry, item_id) for item_id in ("i40", "i3", "i0", "i1")}
    assert [(each.rank, each.score, each.answer_rank) for each in found.values()] == [
        (1, 9, 1), (2, 5, 2), (3, 0, 3), (4, 0, None),
    ]  # fmt: skip
    assert inquiry.plan.source == "popular"


def test_nothing_asked_here_is_counted(bundle: Bundle) -> None:
    metrics.flush()
    before = metrics_text()
    inquiry = ask(Recaller(bundle, ExactIndex(bundle.item_vectors)), RecallQuery(user_id="u1"))
    place(inquiry, "i1")
    metrics.flush()
    assert metrics_text() == before


def metrics_text() -> str:
    lines = generate_latest(metrics.REGISTRY).decode().splitlines()
    return "\n".join(line for line in lines if line.startswith("towers_"))


def test_an_empty_allow_list_allows_nothing(bundle: Bundle) -> None:
    query = RecallQuery(vector=VECTOR, wanted=Wanted(allow=()))
    inquiry = ask(Recaller(bundle, ExactIndex(bundle.item_vectors)), query)
    assert answers(inquiry) == []
    assert [each.by for each in place(inquiry, "i1").kept_out] == ["allow"]
