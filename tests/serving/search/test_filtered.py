"""k eligible items come back and they are the best: against brute force, with indexes with gaps, and ScaNN."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serving.search.exact import ExactIndex
from serving.search.filtered import search_filtered, to_fetch
from serving.search.scann import ScannIndex
from serving.search.scann_parameters import ScannParameters
from serving.telemetry import metrics
from tests.support.exposition import Exposed
from tests.support.worlds.serving import loop_search

N, D = 600, 16
VECTORS = np.random.default_rng(1).normal(size=(N, D)).astype(np.float32)
VECTORS[300:330] = VECTORS[7]
QUERIES = np.random.default_rng(2).normal(size=(6, D)).astype(np.float32)


class Index:
    """Exact search that leaves some ranks of every list out, and remembers how many items it was asked for."""

    def __init__(self, vectors: np.ndarray, hidden: Sequence[int] = ()) -> None:
        self.exact, self.hidden = ExactIndex(vectors), list(hidden)
        self.asked: list[tuple[int, int]] = []

    def search(self, queries: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        self.asked.append((len(queries), k))
        ranks = [rank for rank in range(len(self.exact.item_vectors)) if rank not in self.hidden][:k]
        rows, scores = (found[:, ranks] for found in self.exact.search(queries, len(self.exact.item_vectors)))
        missing = ((0, 0), (0, k - len(ranks)))
        return np.pad(rows, missing, constant_values=-1), np.pad(scores, missing, constant_values=-np.inf)


def assert_best(
    found: tuple[np.ndarray, np.ndarray],
    vectors: np.ndarray,
    queries: np.ndarray,
    k: int,
    eligible: np.ndarray,
    excluded: Sequence[Sequence[int]],
) -> None:
    left_out = [[*np.flatnonzero(~eligible).tolist(), *rows] for rows in excluded]
    rows, scores = loop_search(vectors, queries, k, left_out)
    np.testing.assert_array_equal(found[0], rows)
    np.testing.assert_array_equal(found[1], scores)


@pytest.fixture
def dear_scans(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of so few items a scan would always be the cheaper way, and 100 many."""
    monkeypatch.setattr("serving.search.filtered.SMALLEST_K", 1)
    monkeypatch.setattr("serving.search.filtered.ROWS_PER_FETCHED", 0.1)


small = st.integers(-2, 2)


@given(data=st.data(), k=st.integers(1, 8), items=st.integers(1, 40), queries=st.integers(0, 4))
@settings(max_examples=150)
def test_an_exhaustive_index_gives_what_brute_force_gives(
    data: st.DataObject, k: int, items: int, queries: int
) -> None:
    draw = data.draw
    vectors = np.array(draw(st.lists(st.tuples(small, small), min_size=items, max_size=items)), np.float32)
    asked = draw(st.lists(st.tuples(small, small), min_size=queries, max_size=queries))
    query_vectors = np.array(asked, np.float32).reshape(-1, 2)
    eligible = np.array(draw(st.lists(st.booleans(), min_size=items, max_size=items)))
    excluded = draw(st.lists(st.sets(st.integers(0, items - 1)), min_size=queries, max_size=queries))
    arrays = [np.array(sorted(rows), np.int64) for rows in excluded]
    index = Index(vectors)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("serving.search.filtered.ROWS_PER_FETCHED", draw(st.sampled_from([0.1, 1, 5])))
        patched.setattr("serving.search.filtered.SMALLEST_K", draw(st.sampled_from([1, 20])))
        patched.setattr("serving.search.filtered.GATHERED_SHARE", draw(st.sampled_from([0.0, 0.5, 1.0])))
        patched.setattr("serving.search.exact.BLOCK_ITEMS", draw(st.sampled_from([1, 7, 65_536])))
        patched.setattr("serving.search.filtered.BLOCK_FETCHED", draw(st.sampled_from([1, 20])))
        for searched in (index, index.exact):
            found = search_filtered(searched, index.exact, query_vectors, k, arrays, eligible)
            assert_best(found, vectors, query_vectors, k, eligible, [list(rows) for rows in excluded])


@pytest.mark.usefixtures("dear_scans")
@pytest.mark.parametrize("share", [0.5, 0.1, 0.01])
def test_exhaustive_scann_gives_what_brute_force_gives(share: float) -> None:
    index = ScannIndex.build(VECTORS, ScannParameters(leaves=8, leaves_searched=8, rescored=N))
    eligible = np.random.default_rng(3).random(N) < share
    excluded = [np.array([], np.int64), np.arange(0, 90, 3), np.flatnonzero(eligible), *[np.array([7])] * 3]
    found = search_filtered(index, ExactIndex(VECTORS), QUERIES, 20, excluded, eligible)
    assert_best(found, VECTORS, QUERIES, 20, eligible, [rows.tolist() for rows in excluded])
    alone = [
        search_filtered(index, ExactIndex(VECTORS), QUERIES[q : q + 1], 20, excluded[q : q + 1], eligible)
        for q in range(6)
    ]
    np.testing.assert_array_equal(np.concatenate([rows for rows, _ in alone]), found[0])


def ranked(query: int) -> np.ndarray:
    return loop_search(VECTORS, QUERIES[query : query + 1], N)[0][0]


@pytest.mark.usefixtures("dear_scans")
def test_the_index_is_asked_for_what_the_filter_takes_and_a_reserve() -> None:
    index = Index(VECTORS)
    eligible = np.arange(N) % 4 > 0
    excluded = [np.array([], np.int64), np.array([4, 8, 12]), np.arange(5)]
    found = search_filtered(index, index.exact, QUERIES[:3], 10, excluded, eligible)
    # 10 and three times the 10 / 3 that a filter of 3 in 4 costs: 20. Rows that are not eligible need no exclusion; of
    # rows 0 to 4 three are, so 10 + 4 are wanted.
    assert index.asked == [(2, 20), (1, 28)]
    assert_best(found, VECTORS, QUERIES[:3], 10, eligible, [rows.tolist() for rows in excluded])


@pytest.mark.usefixtures("dear_scans")
def test_excluded_items_that_the_index_returns_behind_a_filter_are_dropped() -> None:
    index = Index(VECTORS)
    eligible = np.arange(N) % 4 > 0
    best = np.sort([row for row in ranked(0) if eligible[row]][:16])
    found = search_filtered(index, index.exact, QUERIES[:1], 10, [best], eligible)
    assert_best(found, VECTORS, QUERIES[:1], 10, eligible, [best.tolist()])


@pytest.mark.usefixtures("dear_scans")
def test_what_is_fetched_beyond_k_and_what_is_scanned_are_counted() -> None:
    def more(index: Any, eligible: np.ndarray | None, excluded: int = 0) -> tuple[float, float, float]:
        before = Exposed(metrics.exposition()[0].decode())
        search_filtered(index, ExactIndex(VECTORS), QUERIES[:1], 10, [np.arange(excluded)], eligible)
        after = Exposed(metrics.exposition()[0].decode())
        names = ("index_overfetch_items_count", "index_overfetch_items_sum")
        count, items = (after.sum(f"towers_{name}") - before.sum(f"towers_{name}") for name in names)
        exact = [each.sum("towers_fallbacks_total", reason="exact") for each in (before, after)]
        return count, items, exact[1] - exact[0]

    wide, near = np.arange(N) % 4 > 0, np.ones(N, np.bool_)
    near[ranked(0)[:100]] = False
    assert more(Index(VECTORS), wide) == (1, 10, 0)  # asked for 20, see above
    assert more(Index(VECTORS), near) == (1, 10, 1)
    assert more(ExactIndex(VECTORS), None) == (1, 0, 0)
    assert more(ExactIndex(VECTORS), None, excluded=7) == (1, 7, 0)
    nothing = np.full((1, 10), -1), np.full((1, 10), -np.inf, np.float32)
    assert more(SimpleNamespace(search=lambda *_: nothing), None) == (1, 0, 1)


def test_a_narrow_filter_never_reaches_the_index() -> None:
    index = Index(VECTORS)
    eligible = np.arange(N) % 10 == 0
    found = search_filtered(index, index.exact, QUERIES, 10, None, eligible)
    assert index.asked == []
    assert_best(found, VECTORS, QUERIES, 10, eligible, [[]] * 6)


@pytest.mark.usefixtures("dear_scans")
def test_a_query_whose_near_items_are_all_filtered_out_still_gets_the_best() -> None:
    index = Index(VECTORS)
    eligible = np.ones(N, np.bool_)
    eligible[ranked(0)[:100]] = False
    found = search_filtered(index, index.exact, QUERIES[:1], 10, None, eligible)
    assert index.asked == [(1, 20)]
    assert_best(found, VECTORS, QUERIES[:1], 10, eligible, [[]])


@pytest.mark.usefixtures("dear_scans")
@pytest.mark.parametrize(("first", "trusted"), [(28, False), (24, True)])
def test_k_items_from_the_end_of_a_list_are_not_trusted(first: int, trusted: bool) -> None:
    index = Index(VECTORS, hidden=[30, 32])  # gaps, as an approximate list has them
    eligible = np.zeros(N, np.bool_)
    eligible[ranked(0)[first : first + 300]] = True
    rows, scores = search_filtered(index, index.exact, QUERIES[:1], 10, None, eligible)
    # Half of the items pass: 40 come, of the ranks 0 to 41. Of those 20 pass on average, 16 must: 12 do, or 16.
    assert index.asked == [(1, 40)]
    if trusted:
        assert rows[0].tolist() == [ranked(0)[rank] for rank in (24, 25, 26, 27, 28, 29, 31, 33, 34, 35)]
    else:
        assert_best((rows, scores), VECTORS, QUERIES[:1], 10, eligible, [[]])


@pytest.mark.usefixtures("dear_scans")
def test_a_few_deleted_items_are_no_reason_to_scan_even_where_they_were_the_best() -> None:
    index = Index(VECTORS, hidden=[13])
    eligible = np.ones(N, np.bool_)
    eligible[ranked(0)[:3]] = False
    rows, _ = search_filtered(index, index.exact, QUERIES[:2], 10, None, eligible)
    assert index.asked == [(2, 13)]
    assert rows[0].tolist() == ranked(0)[3:13].tolist()


def test_a_small_k_is_searched_like_a_larger_one() -> None:
    vectors = np.random.default_rng(6).normal(size=(12_000, 4)).astype(np.float32)
    index = Index(vectors)
    eligible = np.arange(12_000) % 10 > 0
    found = search_filtered(index, index.exact, QUERIES[:2, :4], 3, None, eligible)
    assert index.asked == [(2, 200)]
    np.testing.assert_array_equal(
        found[0], ExactIndex(vectors).search_among(QUERIES[:2, :4], np.flatnonzero(eligible), 3)[0]
    )


def test_nothing_eligible_is_nothing_found() -> None:
    index = Index(VECTORS)
    rows, scores = search_filtered(index, index.exact, QUERIES, 3, None, np.zeros(N, np.bool_))
    assert rows.tolist() == [[-1] * 3] * 6 and np.isneginf(scores).all()
    assert ExactIndex(VECTORS).search_among(QUERIES, np.array([], np.int64), 3)[0].tolist() == [[-1] * 3] * 6


@pytest.mark.parametrize("block", [1, 40, 65_536])
def test_given_rows_are_searched_exactly_in_any_order(monkeypatch: pytest.MonkeyPatch, block: int) -> None:
    monkeypatch.setattr("serving.search.exact.BLOCK_ITEMS", block)
    rows = np.array([*range(320, 290, -1), 7, 7, 5, 599, 0])
    excluded = [np.array([305, 5]), *[np.array([], np.int64)] * 5]
    eligible = np.isin(np.arange(N), rows)
    for k in (4, 50):
        found = ExactIndex(VECTORS).search_among(QUERIES, rows, k, excluded)
        assert_best(found, VECTORS, QUERIES, k, eligible, [each.tolist() for each in excluded])


@pytest.mark.parametrize("seed", [0, 2, 3])
@pytest.mark.parametrize("gathered", [0.0, 1.0])
def test_scores_closer_than_float32_can_sum_are_told_apart_behind_a_filter(
    monkeypatch: pytest.MonkeyPatch, seed: int, gathered: float
) -> None:
    monkeypatch.setattr("serving.search.filtered.GATHERED_SHARE", gathered)
    rng = np.random.default_rng(seed)
    base = rng.normal(size=(1, 64)).astype(np.float32)
    vectors = (base * (1 + rng.integers(-2, 3, size=(400, 64)) * 2e-7)).astype(np.float32)
    eligible = np.arange(400) % 5 > 0
    exact = ExactIndex(vectors)
    assert_best(search_filtered(exact, exact, base, 50, None, eligible), vectors, base, 50, eligible, [[]])


def test_production_settings_find_98_of_100_through_filters_that_know_the_query() -> None:
    rng = np.random.default_rng(4)
    centres = rng.normal(size=(100, 32))
    cluster = rng.integers(0, 100, 20_000)
    vectors = (centres[cluster] + rng.normal(size=(20_000, 32))).astype(np.float32)
    queries = (centres[:60] + rng.normal(size=(60, 32))).astype(np.float32)
    exact = ExactIndex(vectors)
    index = ScannIndex.build(vectors, ScannParameters(leaves=141, leaves_searched=28))
    plain = agreement(exact.search(queries, 100)[0], index.search(queries, 100)[0])
    assert 0.95 < plain < 0.995  # an approximate index, for which there is something to lose
    for eligible in (rng.random(20_000) < 0.5, cluster % 2 == 0, cluster % 10 > 0):
        wanted = ExactIndex(vectors).search_among(queries, np.flatnonzero(eligible), 100)[0]
        assert agreement(wanted, search_filtered(index, exact, queries, 100, None, eligible)[0]) >= 0.98


def test_what_an_approximate_index_gives_a_query_does_not_depend_on_its_batch() -> None:
    rng = np.random.default_rng(8)
    vectors = (rng.normal(size=(50, 16))[rng.integers(0, 50, 9_000)] + rng.normal(size=(9_000, 16))).astype(np.float32)
    queries = rng.normal(size=(40, 16)).astype(np.float32)
    # Coarse and narrow, so that one leaf or candidate more or fewer shows.
    index = ScannIndex.build(vectors, ScannParameters(leaves=60, leaves_searched=4, rescored=105))
    exact = ExactIndex(vectors)
    lengths = [0, 1, 30, 200, 256, 257, 500, 2_048, 2_049, 3_000]
    excluded = [np.sort(rng.permutation(9_000)[: lengths[query % 10]]) for query in range(40)]
    alone = [search_filtered(index, exact, queries[q : q + 1], 100, excluded[q : q + 1]) for q in range(40)]
    assert agreement(exact.search(queries, 100, excluded)[0], np.concatenate([rows for rows, _ in alone])) < 0.99
    for some in (list(range(40)), [0, 1], [3, 0, 1, 2, 4], [13, 7, 1], list(range(0, 40, 10))):
        rows, scores = search_filtered(index, exact, queries[some], 100, [excluded[q] for q in some])
        np.testing.assert_array_equal(rows, np.concatenate([alone[q][0] for q in some]))
        np.testing.assert_array_equal(scores, np.concatenate([alone[q][1] for q in some]))


def agreement(wanted: np.ndarray, found: np.ndarray) -> float:
    return float(np.mean([len(set(a) & set(b)) / len(a) for a, b in zip(wanted.tolist(), found.tolist(), strict=True)]))


@pytest.mark.parametrize(
    ("items", "k", "excluded", "fetched"),
    [
        # 0.08 N against four times what is fetched: 101; 101 + 2,048; 101 + 1,024; 501 of 50,000 and of 20,000.
        (100_000, 20, 0, 101),
        (100_000, 20, 1_100, None),
        (100_000, 20, 1_024, 1_125),
        (50_000, 500, 0, 501),
        (20_000, 500, 0, None),
    ],
)
def test_long_exclusions_and_lists_make_a_scan_of_a_search_behind_a_filter(
    items: int, k: int, excluded: int, fetched: int | None
) -> None:
    assert to_fetch(items, items - 1, k, excluded) == fetched
