"""Recall over time of an index: its points against a slow loop, its own settings among them."""

from pathlib import Path

import numpy as np
import pytest

from pipelines.rankers import index_curve
from pipelines.rankers.index_curve import recall_of_codes
from serving.bundle.index_writer import replace_index
from serving.bundle.manifest import IndexInfo
from serving.bundle.reader import Bundle
from serving.recall.loading import open_index
from serving.search.exact import ExactIndex
from serving.search.index import Floats
from serving.search.scann import ScannIndex
from serving.search.scann_parameters import ScannParameters
from serving.search.vector_codes import encode
from tests.support.worlds.serving import loop_search, write_world

N, LEAVES, K = 600, 12, 20
OWN = ScannParameters(leaves=LEAVES, leaves_searched=4, rescored=60)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """Random vectors; the index in it is one that a test builds."""
    path = tmp_path_factory.mktemp("curve") / "bundle"
    random = np.random.default_rng(1)
    users = 40
    write_world(
        path,
        items=N,
        users=users,
        item_vectors=random.normal(size=(N, 8)).astype(np.float32),
        query_vectors=random.normal(size=(users, 8)).astype(np.float32),
    )
    replace_index(path, IndexInfo(kind="exact", measured={"target_k": K}))
    return Bundle.open(path)


def test_points_are_the_recall_of_their_settings(bundle: Bundle) -> None:
    built = ScannIndex.build(bundle.recall_vectors, OWN)
    curve = index_curve.curve(bundle, built)
    queries = bundle.sample_queries(index_curve.CURVE_QUERIES, index_curve.SEED)
    truth = loop_search(np.asarray(bundle.recall_vectors), queries, K)[0]
    settings = [(point["leaves_searched"], point["rescored"]) for point in curve["points"]]
    # Candidates: 15 would be fewer than k.
    assert settings == [(4, 60), (1, 60), (2, 60), (8, 60), (12, 60), (4, 20), (4, 30), (4, 120), (4, 240)]
    assert [point["chosen"] for point in curve["points"]] == [True] + [False] * 8
    for point in curve["points"]:
        parameters = ScannParameters(LEAVES, leaves_searched=point["leaves_searched"], rescored=point["rescored"])
        found, _ = built.with_parameters(parameters).search(queries, K)
        shares = [len({*a} & {*b}) / K for a, b in zip(truth.tolist(), found.tolist(), strict=True)]
        assert point["recall"] == pytest.approx(sum(shares) / len(shares))
        assert point["single_ms"] > 0 and point["batched_ms"] > 0
    recalls = dict(zip(settings, (point["recall"] for point in curve["points"]), strict=True))
    assert recalls[1, 60] < recalls[4, 60] < recalls[12, 60] <= curve["exact"]["recall"] == 1.0
    assert (curve["k"], curve["queries"]) == (K, len(queries))
    assert "processors" in curve["machine"]


def test_without_leaves_only_candidates_vary(bundle: Bundle) -> None:
    flat = ScannParameters(leaves=0, rescored=100)
    points = index_curve.curve(bundle, ScannIndex.build(bundle.recall_vectors, flat))["points"]
    assert [(p["leaves_searched"], p["rescored"]) for p in points] == [(0, r) for r in (100, 25, 50, 200, 400)]


def test_without_a_scann_index_the_reason_is_given(bundle: Bundle, tmp_path: Path) -> None:
    write_world(tmp_path / "bundle")
    for each in (bundle, Bundle.open(tmp_path / "bundle")):
        assert "no ScaNN index" in index_curve.curve(each, open_index(each))["left_out"]


@pytest.mark.parametrize("with_prior", [False, True])
@pytest.mark.parametrize("known", [True, False])
def test_the_cost_of_codes_is_what_their_exact_search_misses(known: bool, with_prior: bool) -> None:
    generator = np.random.default_rng(4)
    items, users, of_items, of_users = (
        generator.normal(size=shape).astype(np.float32) for shape in ((450, 3), (40, 3), (450, 2), (40, 2))
    )
    # In its scale the other two round to hardly anything, and users ask for those.
    items[:, 0], users[:, 0] = items[:, 0] * 20, users[:, 0] / 20
    users[: 10 if known else 40] = 0
    measured = recall_of_codes("int8", items, users, (of_items, of_users) if with_prior else None)
    codes, scales = encode(items, "int8")
    back = np.array([[int(code) * float(scale) for code in row] for row, scale in zip(codes, scales, strict=True)])
    queries = users[10:] if known else items
    if with_prior and known:
        items, back = np.hstack([items, of_items]), np.hstack([back, of_items])
        queries = np.hstack([queries, of_users[10:]])
    shares = [len({*loop_best(items, query)} & {*loop_best(back, query)}) / 100 for query in queries]
    assert measured == {"k": 100, "queries": len(queries), "recall": pytest.approx(np.mean(shares), abs=1e-9)}
    assert 0.3 < measured["recall"] < 1


def loop_best(vectors: np.ndarray, query: np.ndarray) -> list[int]:
    return np.argsort(-(vectors.astype(np.float64) @ query.astype(np.float64)), kind="stable")[:100].tolist()


def test_a_slow_search_is_timed_on_few_queries() -> None:
    class Counting(ExactIndex):
        searches = 0

        def search(self, queries: Floats, k: int, *_: object) -> tuple[np.ndarray, np.ndarray]:
            type(self).searches += 1
            return super().search(queries, k)

    vectors = np.ones((10, 2), np.float32)
    assert index_curve.single_query_s(Counting(vectors), vectors, 1) > 0 and Counting.searches == 11
    index_curve.single_query_s(Counting(vectors), vectors, 1, most_s=0.0)
    assert Counting.searches == 13  # one to warm up, one that is over the limit
