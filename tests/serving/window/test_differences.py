"""Two lists of one query: sets and ranks against plain Python, the rank-biased overlap against its formula."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.bundle.manifest import PriorInfo
from serving.bundle.reader import Bundle
from serving.recall.query import RecallQuery
from serving.recall.recaller import Recaller
from serving.search.exact import ExactIndex
from serving.window.differences import differences, rank_biased_overlap
from serving.window.inquiry import Inquiry, ask
from tests.support.worlds.serving import ITEMS, item_vectors, loop_search, write_world

lists = st.lists(st.sampled_from("abcdefghij"), unique=True, max_size=10)


def formula(one: list[str], other: list[str], p: float) -> float:
    """Equation 32, each X_d from its definition."""
    short, long = sorted((one, other), key=len)
    s, l = len(short), len(long)  # noqa: E741 - the paper's names
    if s == 0:
        return 1.0 if l == 0 else 0.0

    def x(d: int) -> int:
        return len(set(short[:d]) & set(long[:d]))

    agreed = sum(x(d) / d * p**d for d in range(1, l + 1))
    assumed = sum(x(s) * (d - s) / (s * d) * p**d for d in range(s + 1, l + 1))
    return (1 - p) / p * (agreed + assumed) + ((x(l) - x(s)) / l + x(s) / s) * p**l


@given(lists, lists, st.sampled_from([0.5, 0.9, 0.98]))
def test_rank_biased_overlap_equals_its_formula(one: list[str], other: list[str], p: float) -> None:
    found = rank_biased_overlap(one, other, p)
    assert found == pytest.approx(formula(one, other, p), abs=1e-12)
    assert found == rank_biased_overlap(other, one, p)
    assert -1e-12 <= found <= 1 + 1e-12
    assert rank_biased_overlap(one, one, p) == pytest.approx(1)


def test_what_stands_first_weighs_most() -> None:
    assert rank_biased_overlap("abcd", "abdc") > rank_biased_overlap("abcd", "bacd")
    # By hand, p = 0.5: X = 0, 2; (0 + 2/2 * 0.25) * 1 + 2/2 * 0.25.
    assert rank_biased_overlap("ab", "ba", 0.5) == pytest.approx(0.5)
    assert rank_biased_overlap("ab", "cd") == 0


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Bundle]:
    """The world, and another model of it with the items i10..i69 and their vectors in reverse."""
    out = tmp_path_factory.mktemp("two")
    write_world(out / "first")
    ids = [f"i{row}" for row in range(10, 10 + ITEMS)]
    write_world(out / "second", item_ids=ids, item_vectors=item_vectors()[::-1].copy(), model_version="world-2")
    return {name: Bundle.open(out / name) for name in ("first", "second")}


def inquiry(bundle: Bundle, query: RecallQuery) -> Inquiry:
    return ask(Recaller(bundle, ExactIndex(bundle.recall_vectors)), query)


@pytest.mark.parametrize("k", [1, 20, ITEMS])
def test_two_bundles(bundles: dict[str, Bundle], k: int) -> None:
    vector = np.array([1, 0.5, 0.25, 0, 0, 0, 0, 0.7], np.float32)
    query = RecallQuery(vector=vector.tolist(), k=k)
    found = differences(inquiry(bundles["first"], query), inquiry(bundles["second"], query))
    names = [[f"i{row}" for row in range(ITEMS)], [f"i{row}" for row in range(10, 10 + ITEMS)]]
    whole = []
    for its_names, its_vectors in zip(names, (item_vectors(), item_vectors()[::-1]), strict=True):
        rows, scores = loop_search(its_vectors, vector[np.newaxis], ITEMS)
        whole.append(
            {its_names[row]: (rank, score) for rank, (row, score) in enumerate(zip(rows[0], scores[0], strict=True), 1)}
        )
    one, other = [{item_id: its for item_id, its in each.items() if its[0] <= k} for each in whole]
    for only, here, there, everything in (
        (found.only_first, one, other, whole[1]),
        (found.only_second, other, one, whole[0]),
    ):
        assert [(item.id, item.rank, item.score) for item, _ in only] == [
            (item_id, *its) for item_id, its in here.items() if item_id not in there
        ]
        assert [rank for _, rank in only] == [everything.get(item.id, (None,))[0] for item, _ in only]
    assert [(first.id, first.rank, second.rank) for first, second in found.both] == [
        (item_id, one[item_id][0], other[item_id][0]) for item_id in one if item_id in other
    ]
    assert all(second.score == other[second.id][1] for _, second in found.both)
    assert found.overlap == pytest.approx(len(set(one) & set(other)) / k)
    assert found.rank_biased_overlap == pytest.approx(formula(list(one), list(other), 0.9))
    assert k == 1 or {rank is None for _, rank in found.only_first} == {True, False} or k == ITEMS
    assert found.scales_differ == "each model has a scale of its own"


def test_when_scores_compare(bundles: dict[str, Bundle], tmp_path: Path) -> None:
    first, known, unknown = bundles["first"], RecallQuery(user_id="u1"), RecallQuery(user_id="nobody")
    same = differences(inquiry(first, known), inquiry(first, known))
    assert (same.scales_differ, same.overlap, same.rank_biased_overlap) == (None, 1.0, pytest.approx(1))
    assert not same.only_first and not same.only_second
    priors = []
    for now in (0.1, 0.2):
        prior = PriorInfo(now=now, past=0.0, mean_count=1.0, new_item=(0.0, 0.0))
        shares = np.zeros((ITEMS, 2), np.float32)
        write_world(tmp_path / f"prior-{now}", prior=prior, item_prior=shares)
        priors.append(inquiry(Bundle.open(tmp_path / f"prior-{now}"), known))
    assert differences(*priors).scales_differ == "the two bundles have different priors"
    mixed = differences(inquiry(first, known), inquiry(first, unknown))
    assert mixed.scales_differ is not None and "popular counts" in mixed.scales_differ


def test_the_overlap_is_a_share_of_the_longer_list(bundles: dict[str, Bundle]) -> None:
    # Of i0..i59 ten are left, of i10..i69 these and ten more.
    query = RecallQuery(vector=[1.0] * 8, k=ITEMS, exclude=[f"i{row}" for row in range(50)])
    one, other = (inquiry(bundles[name], query) for name in ("first", "second"))
    assert (len(one.answer.ids), len(other.answer.ids)) == (10, 20)
    assert differences(one, other).overlap == differences(other, one).overlap == 0.5


def test_two_empty_answers_are_alike(bundles: dict[str, Bundle]) -> None:
    query = RecallQuery(user_id="u1", exclude=[f"i{row}" for row in range(10 + ITEMS)])
    found = differences(*(inquiry(bundle, query) for bundle in bundles.values()))
    assert (found.overlap, found.rank_biased_overlap, found.both) == (1.0, 1.0, [])
