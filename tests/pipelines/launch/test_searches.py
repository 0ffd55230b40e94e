"""What the gate measures itself: recall of the index, percentiles of a clock, agreement, each against a slow loop."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from pipelines.errors import DataError
from pipelines.launch import searches
from pipelines.launch.rules import AgreementRule, IndexRule, LatencyRule
from serving.bundle.reader import Bundle
from serving.recall.query import RecallQuery
from serving.recall.recaller import Recaller
from serving.search.exact import ExactIndex
from serving.search.index import Floats, Rows
from tests.support.worlds.launch import USERS, first, write_dataset, write_model


class Forgetful:
    """Exact search that loses the best item of every other query."""

    def __init__(self, vectors: Floats) -> None:
        self.exact = ExactIndex(vectors)

    def search(self, queries: Floats, k: int, excluded: Sequence[Rows] | None = None) -> tuple[Rows, Floats]:
        rows, scores = self.exact.search(queries, k, excluded)
        rows[::2, 0], scores[::2, 0] = -1, -np.inf
        return rows, scores


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> tuple[Bundle, Bundle]:
    folder = tmp_path_factory.mktemp("searches")
    dataset = write_dataset(folder / "dataset")
    one, two = (Bundle.open(write_model(folder / f"{noise}", dataset, noise)) for noise in (1.0, 3.0))
    return one, two


def test_recall_of_the_index(bundles: tuple[Bundle, Bundle]) -> None:
    recaller = Recaller(bundles[0], Forgetful(bundles[0].recall_vectors))
    # Half of the queries lose one of ten.
    for at_least, passed in ((0.95, True), (0.951, False)):
        judged = searches.judge_index(recaller, IndexRule(k=10, at_least=at_least))
        assert (judged.figure, judged.passed) == (pytest.approx(0.95), passed)
    assert judged.note == f"{USERS} queries"


def test_latency_is_the_percentile_of_single_queries(
    bundles: tuple[Bundle, Bundle], monkeypatch: pytest.MonkeyPatch
) -> None:
    recaller = Recaller(bundles[0], ExactIndex(bundles[0].recall_vectors))
    now, asked = [0.0], [0]

    def recall(query: RecallQuery) -> None:
        """The first queries, which warm up, take a second; then query n takes n ms."""
        asked[0] += 1
        now[0] += 1.0 if asked[0] <= searches.WARM_UP else (asked[0] - searches.WARM_UP) / 1_000
        assert query.k == 7 and query.user_id is not None

    monkeypatch.setattr(recaller, "recall", recall)
    monkeypatch.setattr(searches, "perf_counter", lambda: now[0])
    p50, p99 = searches.judge_latency(recaller, LatencyRule(k=7, p50_ms=60.6, p99_ms=100.0))
    # Of 1 to 120 ms, linear between the ranks: (n - 1) p + 1.
    assert (p50.figure, p50.passed) == (pytest.approx(119 * 0.5 + 1), True)
    assert (p99.figure, p99.passed) == (pytest.approx(119 * 0.99 + 1), False)


def test_a_bundle_without_users_is_timed_by_vectors(tmp_path: Path) -> None:
    dataset = write_dataset(tmp_path / "dataset")
    nobody = {"query_ids": [], "query_vectors": np.zeros((0, 16), np.float32), "seen_offsets": [0], "seen_items": []}
    bundle = Bundle.open(write_model(tmp_path / "bundle", dataset, 1.0, **nobody))
    recaller = Recaller(bundle, ExactIndex(bundle.recall_vectors))
    (judged,) = searches.judge_latency(recaller, LatencyRule(p99_ms=1e9))
    assert judged.passed and judged.note == "40 queries"


def test_agreement_equals_the_slow_loop(bundles: tuple[Bundle, Bundle]) -> None:
    one, two = (Recaller(bundle, ExactIndex(bundle.recall_vectors)) for bundle in bundles)
    shared = [len({*first(1.0, user, 5)} & {*first(3.0, user, 5)}) / 5 for user in range(USERS)]
    judged = searches.judge_agreement(one, two, AgreementRule(k=5, at_least=0.99))
    assert judged.figure == pytest.approx(np.mean(shared)) and not judged.passed
    assert searches.judge_agreement(one, one, AgreementRule(k=5, at_least=1.0)).passed


def test_lists_longer_than_the_catalogue_are_of_all_items(bundles: tuple[Bundle, Bundle]) -> None:
    recaller = Recaller(bundles[0], ExactIndex(bundles[0].recall_vectors))
    (judged,) = searches.judge_latency(recaller, LatencyRule(k=2**31 - 1, p99_ms=1e9))
    assert judged.passed
    assert searches.judge_agreement(recaller, recaller, AgreementRule(k=2**31 - 1, at_least=1.0)).passed


def test_lists_without_an_item_agree_with_nothing(bundles: tuple[Bundle, Bundle], tmp_path: Path) -> None:
    items = len(bundles[0].item_ids)
    all_taken = {
        "query_ids": ["u0"],
        "query_vectors": np.ones((1, 16), np.float32),
        "seen_offsets": [0, items],
        "seen_items": list(range(items)),
    }
    bundle = Bundle.open(write_model(tmp_path / "bundle", write_dataset(tmp_path / "dataset"), 1.0, **all_taken))
    recaller = Recaller(bundle, ExactIndex(bundle.recall_vectors))
    with pytest.raises(DataError, match=r"bundle: has no item left for any list, so there are no lists to compare"):
        searches.judge_agreement(recaller, recaller, AgreementRule(k=5, at_least=0.5))
