"""`towers index`: the right kind for the catalogue, tuned until the measured recall reaches its target."""

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import numpy as np
import pytest

from pipelines.bundles import build_index as command
from pipelines.bundles import tune_index
from pipelines.errors import DataError
from pipelines.rankers.index_curve import recall_against
from serving.bundle.manifest import IndexInfo
from serving.bundle.reader import Bundle
from serving.errors import BundleError
from serving.recall.loading import open_index
from serving.search.exact import ExactIndex
from serving.search.scann import ScannIndex
from serving.search.scann_parameters import ScannParameters
from tests.support.worlds.serving import DIMENSION, GROUPS, USERS, item_vectors, loop_search, write_world

N = 600
VECTORS = np.random.default_rng(1).normal(size=(N, 16)).astype(np.float32)
QUERIES = np.random.default_rng(2).normal(size=(10, 16)).astype(np.float32)


def test_an_index_whose_parameters_are_damaged_is_refused() -> None:
    info = IndexInfo(kind="scann", path="index", parameters={"leaves": "many"})
    bundle: Any = SimpleNamespace(path=Path("b"), manifest=SimpleNamespace(index=info), index_path=Path("b/index"))
    with pytest.raises(BundleError, match=r"^b: index\.parameters of the manifest: "):
        open_index(bundle)


@pytest.mark.parametrize(
    ("items", "leaves", "block"),
    [
        (20_000, 71, 1),
        (99_999, 158, 1),
        (100_000, 632, 2),
        (1_000_000, 2_000, 2),
        (3_000_000, 2_000, 2),
        (9_000_000, 3_000, 2),
    ],
)
def test_parameters_follow_the_size_of_the_catalogue(items: int, leaves: int, block: int) -> None:
    parameters = ScannParameters.for_size(items, 64)
    assert (parameters.leaves, parameters.dimensions_per_block) == (leaves, block)


@pytest.fixture
def large(tmp_path: Path) -> Path:
    """A bundle of 3,000 random items, too small for ScaNN by the rules but quick to build."""
    rng = np.random.default_rng(3)
    write_world(
        tmp_path / "bundle",
        items=3_000,
        item_vectors=rng.normal(size=(3_000, DIMENSION)).astype(np.float32),
        query_vectors=rng.normal(size=(USERS, DIMENSION)).astype(np.float32),
    )
    return tmp_path / "bundle"


def test_a_small_catalogue_gets_an_exact_index(large: Path) -> None:
    info = command.run(large)
    assert (info.kind, info.path, info.measured["recall_at_100"]) == ("exact", None, 1.0)
    assert Bundle.open(large).manifest.index == info
    assert isinstance(open_index(Bundle.open(large)), ExactIndex)


def test_scann_is_tuned_to_its_target_and_says_what_was_measured(large: Path) -> None:
    info = command.run(large, kind="scann", target_recall=0.9)
    bundle = Bundle.open(large)
    assert bundle.manifest.index == info
    assert info.measured.keys() >= {"recall_at_100", "single_query_ms", "batched_queries_per_s", "build_s", "bytes"}
    truth = loop_search(bundle.item_vectors, bundle.query_vectors, 100)[0]
    found = open_index(bundle).search(bundle.query_vectors, 100)[0]
    recall = np.mean([len(set(a.tolist()) & set(b.tolist())) / 100 for a, b in zip(truth, found, strict=True)])
    assert recall == pytest.approx(info.measured["recall_at_100"], abs=1e-5)
    assert recall >= 0.9
    assert info.measured["bytes"] == sum(path.stat().st_size for path in (large / info.path).iterdir())  # type: ignore[operator]
    assert not list(large.glob(".*"))


def test_the_target_is_of_the_k_that_is_asked_for(large: Path) -> None:
    info = command.run(large, kind="scann", target_recall=0.9, target_k=5)
    assert info.measured["target_k"] == info.target_k == 5 and "recall_at_100" not in info.measured
    bundle = Bundle.open(large)
    truth = loop_search(bundle.item_vectors, bundle.query_vectors, 5)[0]
    found = open_index(bundle).search(bundle.query_vectors, 5)[0]
    recall = np.mean([len(set(a.tolist()) & set(b.tolist())) / 5 for a, b in zip(truth, found, strict=True)])
    assert 0.9 <= recall == pytest.approx(info.measured["recall_at_5"], abs=1e-5)
    assert info.parameters["rescored"] < 100, "the first five need fewer candidates than a hundred items"
    with pytest.raises(DataError, match="--target-k must be at least 1, got 0"):
        command.run(large, target_k=0)


def test_a_target_k_above_the_catalogue_is_of_all_items(large: Path) -> None:
    info = command.run(large, target_k=10**12)  # no list of that length fits into memory
    assert (info.target_k, info.measured["recall_at_1000000000000"]) == (10**12, 1.0)


@pytest.mark.parametrize("kind", ["exact", "scann"])
def test_a_bundle_that_another_command_replaced_meanwhile_gets_no_index(
    large: Path, kind: Literal["exact", "scann"], monkeypatch: pytest.MonkeyPatch
) -> None:
    measure = command._measure

    def measured(*given: Any) -> dict[str, Any]:
        found = measure(*given)
        write_world(large, items=90, overwrite=True)  # as `towers export --overwrite` at its end
        return found

    monkeypatch.setattr(command, "_measure", measured)
    with pytest.raises(BundleError, match=r"bundle: another command has replaced it meanwhile .*nothing was written"):
        command.run(large, kind=kind, target_recall=0.9)
    left = Bundle.open(large)
    assert (left.manifest.items, left.manifest.index) == (90, None)
    assert not (large / "index").exists() and not list(large.glob(".*"))


def test_a_higher_target_never_rescores_less_and_one_is_reached_in_full(large: Path) -> None:
    rescored = []
    for target in (0.5, 0.95, 0.99, 1.0):
        info = command.run(large, kind="scann", target_recall=target)
        assert info.measured["recall_at_100"] >= target
        rescored.append(info.parameters["rescored"])
    assert rescored[0] < rescored[1] < rescored[2] < 3_000 and rescored[2] <= rescored[3]


def tuned_leaves(vectors: np.ndarray, queries: np.ndarray, target: float) -> int:
    built = ScannIndex.build(vectors, ScannParameters(leaves=16, leaves_searched=1, rescored=100))
    truth = loop_search(vectors, queries, 20)[0]
    index, recall = tune_index.tune(built, queries, truth, target)
    assert recall >= target
    assert recall_against(truth, index.search(queries, 20)[0]) == recall
    return index.parameters.leaves_searched


def test_tuning_raises_the_leaves_of_a_tree_and_no_further_than_needed() -> None:
    # Of noise, one leaf in 16 cannot hold 95 in 100; of clusters far apart, few leaves hold each.
    assert tuned_leaves(VECTORS, QUERIES, 0.95) > 1
    centres = 10 * np.eye(16, dtype=np.float32)
    assert tuned_leaves(np.repeat(centres, 40, axis=0) + VECTORS[:1] / 10, centres, 0.9) < 16


@pytest.mark.parametrize("target", [0.6, 0.8, 0.95, 1.0])
@pytest.mark.parametrize("leaves", [0, 16])
@pytest.mark.parametrize("k", [20, 200])
def test_the_target_is_surely_reached_with_as_few_candidates_as_that_takes(k: int, leaves: int, target: float) -> None:
    """Two standard errors below the recall of the queries it is still reached; a step fewer candidates, no more.

    `rescored` is for k = 100 at most; a search for 200 rescores twice as many.
    """
    queries = np.random.default_rng(5).normal(size=(60, 16)).astype(np.float32)
    truth = loop_search(VECTORS, queries, k)[0]
    built = ScannIndex.build(VECTORS, ScannParameters(leaves=leaves, leaves_searched=1, rescored=100))

    def surely(parameters: ScannParameters) -> float:
        rows = built.with_parameters(parameters).search(queries, k)[0]
        shares = [len(set(a) & set(b)) / k for a, b in zip(truth.tolist(), rows.tolist(), strict=True)]
        mean = sum(shares) / 60
        return mean - 2 * (sum((share - mean) ** 2 for share in shares) / 60 / 60) ** 0.5

    found = tune_index.tune(built, queries, truth, target)[0].parameters
    assert surely(found) >= target - 1e-12
    if found.rescored > min(k, 100):
        fewer = max(min(k, 100), int(found.rescored / tune_index.RESCORED_STEP) - 1)
        assert surely(replace(found, rescored=fewer)) < target


def test_of_the_settings_that_reach_the_target_the_fastest_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    # One index, as ScaNN builds another one each time; of many leaves, so that in all of them several numbers reach it.
    built = ScannIndex.build(VECTORS, ScannParameters(leaves=100, leaves_searched=1, rescored=100))
    queries = np.random.default_rng(2).normal(size=(40, 16)).astype(np.float32)
    truth = loop_search(VECTORS, queries, 20)[0]

    def tuned(leaf: float, candidate: float) -> ScannParameters:
        def seconds(index: ScannIndex, *_: object) -> float:
            return leaf * index.parameters.leaves_searched + candidate * index.parameters.rescored

        monkeypatch.setattr(tune_index, "single_query_s", seconds)
        return tune_index.tune(built, queries, truth, 0.8)[0].parameters

    dear_leaves, dear_candidates = tuned(100.0, 0.01), tuned(0.01, 1.0)
    assert dear_leaves.leaves_searched < dear_candidates.leaves_searched
    assert dear_leaves.rescored > dear_candidates.rescored


def test_a_target_out_of_reach_is_said_clearly() -> None:
    built = ScannIndex.build(VECTORS, ScannParameters(leaves=0, rescored=100))
    impossible = np.full((10, 100), N + 1)
    with pytest.raises(DataError, match=r"recall@100 is 0\.0000 even when ScaNN searches everything.*--kind exact"):
        tune_index.tune(built, QUERIES, impossible, 0.5)


def test_a_kind_that_there_is_not_is_refused(large: Path) -> None:
    with pytest.raises(DataError, match="--kind 'hnsw': allowed are auto, exact, scann"):
        command.run(large, kind="hnsw")  # type: ignore[arg-type]


@pytest.mark.parametrize("target", [0.0, 0.49, 1.5, float("nan")])
def test_a_target_that_a_service_refuses_or_that_is_no_share_is_refused(large: Path, target: float) -> None:
    with pytest.raises(DataError, match=rf"^--target-recall must lie in \[0\.5, 1\], got {target:g}$"):
        command.run(large, target_recall=target)


def without_scann(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "scann.scann_ops.py", None)


def with_scann_gone(large: Path) -> list[Callable[[], object]]:
    return [
        lambda: command.run(large, kind="scann"),
        lambda: ScannIndex.build(VECTORS),
        lambda: ScannIndex.load(large, VECTORS, ScannParameters(leaves=0)),
    ]


def test_a_platform_without_scann_has_the_exact_index(
    large: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    without_scann(monkeypatch)
    for call in with_scann_gone(large):
        with pytest.raises(BundleError, match=r"wheels for Linux \(glibc\) only.*--kind exact"):
            call()
    assert command.run(large, kind="exact").kind == "exact"
    monkeypatch.setattr(command, "EXACT_BELOW", 1)
    capsys.readouterr()
    assert command.run(large).kind == "exact"
    assert "warning: every query scans all 3,000 items: ScaNN cannot be loaded" in capsys.readouterr().err


def test_of_users_without_vectors_none_is_in_the_sample_and_all_others_may_be(tmp_path: Path) -> None:
    vectors = np.zeros((USERS, DIMENSION), np.float32)
    vectors[[2, USERS - 1]] = 1.0
    write_world(tmp_path / "bundle", query_vectors=vectors)
    for seed in range(5):
        np.testing.assert_array_equal(Bundle.open(tmp_path / "bundle").sample_queries(3, seed), vectors[[2, -1]])


def test_too_few_items_for_scann_are_offered_the_exact_index(tmp_path: Path) -> None:
    write_world(tmp_path / "bundle", items=10)
    with pytest.raises(DataError, match=r"bundle: ScaNN needs at least 16 items, it has 10; use --kind exact"):
        command.run(tmp_path / "bundle", kind="scann")


def test_the_sample_is_seeded_and_falls_back_to_items(tmp_path: Path) -> None:
    write_world(tmp_path / "bundle", users=0)
    bundle = Bundle.open(tmp_path / "bundle")
    sample = bundle.sample_queries(2_000, seed=4)
    np.testing.assert_array_equal(sample, item_vectors())
    assert sample[:, :GROUPS].sum() == len(sample)
