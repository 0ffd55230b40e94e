"""Recall of the index on real queries: counted against slow loops, for indexes whose mistakes are known."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from serving.bundle.reader import Bundle
from serving.recall.query import RecallQuery
from serving.recall.recaller import Recaller
from serving.search.exact import ExactIndex
from serving.search.index import Floats, Rows
from serving.service import recall_monitor
from serving.service.recall_monitor import SampledIndex, SampledQuery, found
from serving.service.service import Service
from serving.settings import Settings
from serving.telemetry import metrics
from serving.window.inquiry import ask
from tests.support.exposition import Exposed
from tests.support.worlds.serving import ArithmeticEncoder, loop_search, write_world

NOTHING = np.empty(0, np.int64)


class Forgetful:
    """Exact search that never finds every seventh row."""

    def __init__(self, item_vectors: Floats) -> None:
        self.exact = ExactIndex(item_vectors)
        self.parameters = "its own"

    def search(self, queries: Floats, k: int, excluded: Sequence[Rows] | None = None) -> tuple[Rows, Floats]:
        forgotten = np.arange(0, len(self.exact.item_vectors), 7)
        each = [NOTHING] * len(queries) if excluded is None else excluded
        return self.exact.search(queries, k, [np.union1d(forgotten, rows) for rows in each])


@pytest.mark.parametrize("excluded", [None, [], [0, 5, 63, 64, 128, 229]])
@pytest.mark.parametrize("k", [1, 10, 100])
def test_found_is_the_share_of_the_exact_answer(
    k: int, excluded: list[int] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recall_monitor, "BLOCK_ITEMS", 64)  # Four blocks, the last one short.
    vectors = np.random.default_rng(3).normal(size=(230, 6)).astype(np.float32)
    query = np.random.default_rng(4).normal(size=(1, 6)).astype(np.float32)
    watched = SampledIndex(Forgetful(vectors))
    vectors[[5, 64, 229]] = 9 * query  # The excluded rows would be among the best.
    watched.search(query, k, None if excluded is None else [np.array(excluded, np.int64)])
    sample = watched.take()
    assert sample is not None
    best = loop_search(vectors, query, k, [excluded or []])[0][0]
    expected = sum(1 for row in best if row % 7 != 0)
    assert found(sample, ExactIndex(vectors), pause_s=0) == (k, expected)


def test_items_that_tie_are_as_good_as_one_another() -> None:
    vectors = np.ones((20, 3), np.float32)
    query = np.ones((1, 3), np.float32)
    scores = loop_search(vectors[10:], query, 5)[1][0]
    assert found(SampledQuery(query, scores), ExactIndex(vectors)) == (5, 5)


def test_more_wanted_than_there_are() -> None:
    vectors = np.eye(3, dtype=np.float32)
    query = np.float32([[3, 2, 1]])
    answered = np.float32([3, 1, -np.inf, -np.inf, -np.inf])
    assert found(SampledQuery(query, answered), ExactIndex(vectors)) == (3, 2)


def test_a_watched_index_is_the_index_and_keeps_the_last_query_once() -> None:
    vectors = np.random.default_rng(5).normal(size=(40, 4)).astype(np.float32)
    inner = Forgetful(vectors)
    watched = SampledIndex(inner)
    assert watched.parameters == "its own" and watched.take() is None
    queries = np.random.default_rng(6).normal(size=(3, 4)).astype(np.float32)
    for asked in (queries, queries[1:2]):
        for one, other in zip(watched.search(asked, 5), inner.search(asked, 5), strict=True):
            np.testing.assert_array_equal(one, other)
    kept = watched.take()
    assert kept is not None and watched.take() is None
    np.testing.assert_array_equal(kept.query, queries[1:2])
    watched.search(queries[:0], 5)
    assert watched.take() is None


def test_what_the_index_gave_up_on_is_no_sample() -> None:
    """Another search answers it, and no other index would find more."""
    vectors = np.random.default_rng(5).normal(size=(40, 4)).astype(np.float32)
    watched = SampledIndex(ExactIndex(vectors))
    watched.search(vectors[:1], 5, [np.arange(40)])
    assert watched.take() is None
    watched.search(vectors[:1], 5, [np.arange(38)])
    kept = watched.take()
    assert kept is not None and np.count_nonzero(kept.scores > -np.inf) == 2


def test_what_the_window_asks_is_no_sample(tmp_path: Path) -> None:
    write_world(tmp_path / "bundle")
    recaller = Recaller(bundle := Bundle.open(tmp_path / "bundle"), Forgetful(bundle.item_vectors), ArithmeticEncoder())
    watched = recaller.catalogue.index = SampledIndex(recaller.index)
    assert ask(recaller, RecallQuery(user_id="u1")).answer.ids and watched.take() is None
    recaller.recall(RecallQuery(user_id="u2"))
    ask(recaller, RecallQuery(user_id="u1"))
    kept = watched.take()
    assert kept is not None
    np.testing.assert_array_equal(kept.query[0], bundle.query_vectors[2])


@pytest.mark.parametrize(("k", "counted"), [(3, 3), (100, 100), (101, 100), (220, 100)])
def test_a_long_list_counts_as_much_as_any_other(k: int, counted: int) -> None:
    """A filtered query is answered from a list of thousands; the index is tuned for the first hundred."""
    vectors = np.random.default_rng(7).normal(size=(230, 6)).astype(np.float32)
    query = np.random.default_rng(8).normal(size=(1, 6)).astype(np.float32)
    watched = SampledIndex(Forgetful(vectors))
    rows, _ = watched.search(query, k)
    assert rows.shape == (1, k)
    sample = watched.take()
    assert sample is not None
    best = loop_search(vectors, query, counted)[0][0]
    expected = sum(1 for row in best if row % 7 != 0)
    assert found(sample, ExactIndex(vectors), pause_s=0) == (counted, expected)


@pytest.mark.parametrize("every_s", [10.0, 0.0])
def test_a_service_counts_what_its_index_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, every_s: float) -> None:
    version = f"sampled-{every_s}"
    write_world(tmp_path / "bundle", model_version=version)

    def opened(path: Path, **_: object) -> Recaller:
        bundle = Bundle.open(path, verify=False)
        return Recaller(bundle, Forgetful(bundle.item_vectors), ArithmeticEncoder())

    monkeypatch.setattr("serving.service.service.open_recaller", opened)
    monkeypatch.setattr("serving.service.service.probe", lambda recaller, rest: None)
    service = Service(Settings(bundle=tmp_path / "bundle", index_sample_s=every_s))
    service.start()
    try:
        recaller = service.pick(None)
        assert isinstance(recaller.index, SampledIndex) is (every_s > 0)
        for _ in range(2):
            recaller.recall(RecallQuery(features={"country": "g1"}, k=10, exclude_seen=False))
            service._sample_index()
            service._sample_index()  # Nothing was asked since.
        told = Exposed(metrics.exposition()[0].decode())
    finally:
        service.stop()
    # The ten best of group 1 are rows 1, 5, 9, …, 37; of those 21 is forgotten, and so is none else.
    wanted, right = (20, 18) if every_s else (0, 0)
    assert told.sum("towers_index_recall_wanted_total", version=version) == wanted
    assert told.sum("towers_index_recall_found_total", version=version) == right
