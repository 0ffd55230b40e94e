"""The report against a slow loop over the raw lists: every figure is computed again from the files a person wrote."""

import copy
import dataclasses
import json
import re
import shutil
from collections import Counter
from collections.abc import Callable
from functools import partial
from html import unescape
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import polars as pl
import pytest

from pipelines.dataset.dataset import Dataset
from pipelines.errors import DataError
from pipelines.evaluation import report
from pipelines.evaluation.page import about_recall
from pipelines.evaluation.protocol.options import Protocol
from pipelines.evaluation.report_table import lines
from pipelines.evaluation.slices import DEFINITIONS
from pipelines.ingest import prepare
from pipelines.rankers import ease, evaluate, item_knn
from pipelines.rankers.ranker import Served
from serving.bundle.digest import bundle_digest
from serving.bundle.manifest import FeatureSpec, IndexInfo, read_manifest, write_manifest
from serving.bundle.writer import write_bundle
from serving.errors import BundleError
from serving.files.staging import OutputExistsError
from serving.search.scann import ScannIndex
from serving.search.scann_parameters import ScannParameters
from tests.support.worlds import columns
from towers.config.sections import DataConfig

ITEMS, USERS, DIMENSION = 24, 30, 8
NEW_ITEM, COLD_KNOWN, COLD_UNKNOWN = "23", "28", "29"
KS = (2, 5, 30)
Lists = dict[str, list[str]]


@dataclasses.dataclass
class World:
    train: Lists
    valid: Lists
    test: Lists
    folder: Path
    dataset: Path
    item_ids: list[str]
    query_ids: list[str]
    item_vectors: np.ndarray
    query_vectors: np.ndarray

    def seen(self, user: str) -> set[str]:
        return {*self.train.get(user, []), *self.valid.get(user, [])}

    def bundle(self, out: Path, **changes: Any) -> Path:
        fingerprint = Dataset.open(self.dataset).manifest.fingerprint
        seen = [sorted(self.item_ids.index(item) for item in self.seen(user)) for user in self.query_ids]
        row = FeatureSpec(name="user_id", kind="id", dtype="string", length=None)
        given = {
            "model_version": "test-1",
            "metric": "dot",
            "query_features": [row],
            "candidate_features": [row],
            "item_ids": self.item_ids,
            "item_vectors": self.item_vectors,
            "item_attributes": pl.DataFrame({"item_id": self.item_ids}),
            "popularity": [self.counts()[item] for item in self.item_ids],
            "query_ids": self.query_ids,
            "query_vectors": self.query_vectors,
            "seen_offsets": np.cumsum([0, *map(len, seen)]),
            "seen_items": [item for each in seen for item in each],
            "write_towers": write_towers,
            "libraries": {},
            "lineage": {"dataset": fingerprint},
            "training": {},
        }
        write_bundle(out, **{**given, **changes})
        return out

    def counts(self) -> Counter[str]:
        return Counter(item for split in (self.train, self.valid) for items in split.values() for item in items)


def write_towers(directory: Path) -> None:
    for name in ("query_tower", "candidate_tower"):
        (directory / name).mkdir()
        (directory / name / "saved_model.pb").write_bytes(b"no model")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    folder = tmp_path_factory.mktemp("world")
    generator = np.random.default_rng(0)
    splits: tuple[Lists, Lists, Lists] = ({}, {}, {})
    for user in range(USERS):
        items = [str(item) for item in generator.permutation(ITEMS - 1)[: generator.integers(6, 14)]]
        if str(user) in (COLD_KNOWN, COLD_UNKNOWN):
            splits[2][str(user)] = items[:4]
            continue
        first = 1 + user % 3
        splits[0][str(user)] = items[:first]
        splits[1][str(user)] = items[first : first + user % 2]
        splits[2][str(user)] = items[first + user % 2 :]
    splits[2]["0"].append(NEW_ITEM)
    splits[2][COLD_KNOWN].append(NEW_ITEM)
    lists = folder / "lists"
    lists.mkdir()
    for name, split in zip(("train", "valid", "test"), splits, strict=True):
        lines = [" ".join([user, *split.get(user, [])]) for user in map(str, range(USERS))]
        (lists / f"{name}.txt").write_text("\n".join(lines) + "\n")
    prepare.run(DataConfig(), lists, folder / "dataset", format="lightgcn")
    # The bundle's rows have another order than the data set's numbers, and one user has no vector.
    item_ids = [str(item) for item in generator.permutation(ITEMS)]
    query_ids = [str(user) for user in generator.permutation(USERS) if str(user) != COLD_UNKNOWN]
    return World(
        *splits,
        folder=lists,
        dataset=folder / "dataset",
        item_ids=item_ids,
        query_ids=query_ids,
        item_vectors=generator.normal(size=(ITEMS, DIMENSION)).astype(np.float32),
        query_vectors=generator.normal(size=(USERS - 1, DIMENSION)).astype(np.float32),
    )


@pytest.fixture(scope="module")
def content(world: World, tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], pl.DataFrame]:
    folder = tmp_path_factory.mktemp("report")
    returned = report.run(world.bundle(folder / "bundle"), world.dataset, folder / "report", ks=KS, user_ids=True)
    written = json.loads((folder / "report" / "report.json").read_text())
    assert written == json.loads(json.dumps(returned))
    return written, pl.read_parquet(folder / "report" / "per_user.parquet")


def prepared_again(world: World, folder: Path, **settings: Any) -> World:
    """The world with a data set of its lists as they are now."""
    lists = folder / "lists"
    lists.mkdir()
    for name, split in (("train", world.train), ("valid", world.valid), ("test", world.test)):
        lines = [" ".join([user, *split.get(user, [])]) for user in map(str, range(USERS))]
        (lists / f"{name}.txt").write_text("\n".join(lines) + "\n")
    prepare.run(DataConfig(**settings), lists, folder / "dataset", format="lightgcn")
    return dataclasses.replace(world, dataset=folder / "dataset")


def popular(world: World) -> list[str]:
    """By falling count; equal ones in the order of the bundle's rows."""
    counts = world.counts()
    return sorted(world.item_ids, key=lambda item: (-counts[item], world.item_ids.index(item)))


def ranking(world: World, user: str) -> list[str]:
    """What the service should answer, one dot product at a time."""
    order = popular(world)
    if user in world.query_ids:
        vector = world.query_vectors[world.query_ids.index(user)]
        scores = {item: float(vector @ world.item_vectors[row]) for row, item in enumerate(world.item_ids)}
        order = sorted(world.item_ids, key=lambda item: -scores[item])
    return [item for item in order if item not in world.seen(user)]


def slow(metric: str, order: list[str], targets: list[str], k: int) -> float:
    ranks = [rank for rank, item in enumerate(order[:k], start=1) if item in targets]
    ideal = sum(1 / np.log2(rank + 1) for rank in range(1, min(k, len(targets)) + 1))
    return {
        "recall": len(ranks) / len(targets),
        "hit_rate": float(bool(ranks)),
        "mrr": 1 / ranks[0] if ranks else 0.0,
        "ndcg": float(sum(1 / np.log2(rank + 1) for rank in ranks) / ideal),
        "precision": len(ranks) / k,
        "capped_recall": len(ranks) / min(k, len(targets)),
        "map": sum(hit / rank for hit, rank in enumerate(ranks, start=1)) / min(k, len(targets)),
    }[metric]


@pytest.mark.parametrize("ranker", ["exact", "index"])
@pytest.mark.parametrize("metric", ["recall", "capped_recall", "ndcg", "hit_rate", "mrr", "precision", "map"])
def test_served_figures_equal_the_slow_loop(
    world: World, content: tuple[dict[str, Any], pl.DataFrame], ranker: str, metric: str
) -> None:
    figures, per_user = content
    for k in KS:
        expected = {user: slow(metric, ranking(world, user), items, k) for user, items in world.test.items()}
        found = dict(per_user.select("user_id", f"{ranker}_{metric}@{k}").iter_rows())
        assert found == pytest.approx(expected, abs=1e-6)
        estimate = figures["metrics"][ranker][f"{metric}@{k}"]
        assert estimate["value"] == pytest.approx(np.mean(list(expected.values())), abs=1e-6)
        assert estimate["low"] <= estimate["value"] <= estimate["high"]


def test_popularity_equals_the_slow_loop(world: World, content: tuple[dict[str, Any], pl.DataFrame]) -> None:
    # Equal counts may have any order: the bounds are the best and the worst of them.
    counts = world.counts()
    found = dict(content[1].select("user_id", "popularity_recall@5").iter_rows())
    for user, targets in world.test.items():
        unseen = [item for item in world.item_ids if item not in world.seen(user)]
        bounds = []
        for favour in (1, -1):
            order = sorted(unseen, key=lambda item: (-counts[item], favour * (item in targets)))
            bounds.append(slow("recall", order, targets, 5))
        assert bounds[0] - 1e-6 <= found[user] <= bounds[1] + 1e-6


def test_counts(world: World, content: tuple[dict[str, Any], pl.DataFrame]) -> None:
    figures, per_user = content
    targets = sum(map(len, world.test.values()))
    counts = figures["counts"]
    assert (counts["users"], counts["targets"], counts["items"]) == (USERS, targets, ITEMS)
    assert (counts["users_without_vector"], counts["items_without_vector"]) == (1, 0)
    assert counts["masked_events"] == sum(len(world.seen(user)) for user in world.test)
    rows = {row["user_id"]: row for row in per_user.iter_rows(named=True)}
    assert not rows[COLD_UNKNOWN]["stored_vector"]
    assert (rows["0"]["history"], rows["0"]["targets"], rows["0"]["slice"]) == (1, len(world.test["0"]), "warm")
    assert (rows["5"]["history"], rows["5"]["targets"], rows["5"]["slice"]) == (4, len(world.test["5"]), "warm")


@pytest.mark.parametrize("refit", [False, True])
def test_a_user_is_warm_by_what_training_saw(world: World, tmp_path: Path, refit: bool) -> None:
    # User 7 has no training event left: only validation knows them.
    assert world.valid["7"]
    other = prepared_again(dataclasses.replace(world, train={**world.train, "7": []}), tmp_path)
    bundle = other.bundle(tmp_path / "bundle", training={"refit": refit})
    figures = report.run(bundle, other.dataset, tmp_path / "report", ks=[5], user_ids=True)
    trained = (other.train, other.valid)[: 1 + refit]
    warm = {user for split in trained for user, items in split.items() if items}
    expected = {
        "warm": warm & set(world.test),
        "cold": set(world.test) - warm,
        "cold_with_history": {user for user in world.test if user not in warm and other.seen(user)},
        "cold_without_history": {user for user in world.test if user not in warm and not other.seen(user)},
    }
    assert ("7" in expected["cold_with_history"]) is not refit
    per_user = pl.read_parquet(tmp_path / "report" / "per_user.parquet")
    assert {*per_user.filter(slice="cold")["user_id"]} == expected["cold"]
    assert {*per_user.filter(slice="warm")["user_id"]} == expected["warm"]
    for name, users in expected.items():
        part = figures["slices"][name]
        assert (part["users"], part["targets"]) == (len(users), sum(len(world.test[user]) for user in users))
        assert part["definition"] == DEFINITIONS[name]
        if users:
            recall = np.mean([slow("recall", ranking(other, user), world.test[user], 5) for user in users])
            assert part["metrics"]["exact"]["recall@5"]["value"] == pytest.approx(recall, abs=1e-6)


def test_every_baseline_has_its_figures_everywhere(content: tuple[dict[str, Any], pl.DataFrame]) -> None:
    figures, per_user = content
    names = {"popularity", "popularity_users", "item_knn", "ease"}
    assert {*figures["metrics"]} == {"exact", "index"} | names
    assert {*figures["baselines"]} == names | {"left_out", "fixed", "validation_users"}
    assert {*figures["baselines"]["left_out"]} == {"popularity_recent", "item_knn_ordered", "ease_recent"}
    for name in names:
        baseline = figures["baselines"][name]
        assert baseline["title"] and baseline["settings"]
        assert 0 <= baseline["validation"]["recall@20"] <= 1
    for metric in ("recall", "ndcg", "hit_rate", "mrr"):
        for k in KS:
            exact = per_user[f"exact_{metric}@{k}"]
            for name in names:
                found = per_user[f"{name}_{metric}@{k}"]
                assert figures["metrics"][name][f"{metric}@{k}"]["value"] == pytest.approx(found.mean(), abs=1e-6)
                difference = figures["differences"][f"exact_minus_{name}"][f"{metric}@{k}"]
                assert difference["value"] == pytest.approx((exact - found).mean(), abs=1e-6)


def test_the_verdict_is_about_the_best_of_validation(
    world: World, content: tuple[dict[str, Any], pl.DataFrame], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    figures, per_user = content
    reached = {
        name: baseline["validation"]["recall@20"]
        for name, baseline in figures["baselines"].items()
        if name not in ("left_out", "fixed", "validation_users")
    }
    strongest, verdict = figures["strongest"]["ranker"], figures["verdict"]
    assert reached[strongest] == max(reached.values())
    assert figures["strongest"]["chosen_on"] == "validation recall@20"
    assert (verdict["metric"], verdict["baseline"]) == ("recall@5", strongest)
    assert verdict["baseline_title"] == figures["baselines"][strongest]["title"]
    assert verdict["value"] == pytest.approx(per_user["exact_recall@5"].mean(), abs=1e-6)
    assert verdict["baseline_value"] == pytest.approx(per_user[f"{strongest}_recall@5"].mean(), abs=1e-6)
    assert verdict["difference"] == figures["differences"][f"exact_minus_{strongest}"]["recall@5"]
    # The page says of the strongest on what, and names the one that the test's own table has above it.
    on_test = {name: figures["metrics"][name]["recall@5"]["value"] for name in reached}
    highest = max(on_test, key=on_test.__getitem__)
    assert " the strongest baseline on validation (" in verdict["text"]
    if on_test[highest] == on_test[strongest]:
        assert verdict["higher"] is None
    else:
        assert verdict["higher"]["baseline"] == highest
        assert verdict["higher"]["difference"] == figures["differences"][f"exact_minus_{highest}"]["recall@5"]
    named = tmp_path / "a\x1b[2J:new:b"  # it would clear the screen, and show an emoji
    named.symlink_to(world.dataset)
    report.run(world.bundle(tmp_path / "bundle"), named, tmp_path / "report", ks=KS)
    for kind in ("html", "md"):
        page = unescape((tmp_path / "report" / f"report.{kind}").read_text(encoding="utf-8"))
        assert verdict["text"] in page
        assert "strongest" not in re.sub("strongest (simple method|baseline) on validation", "", page)
    shown = capsys.readouterr().out.splitlines()
    assert shown[0] == verdict["text"]
    assert verdict["difference"]["value"] < 0
    assert shown[1].startswith(f"towers tune --dataset '{tmp_path}/a\\x1b[2J:new:b' ")
    assert "definitions: docs/evaluation/report.md" in shown
    assert f"cold: {figures['slices']['cold']['users']} users, " in "\n".join(shown)


def test_lists_of_an_index_that_tries_less_for_shorter_ones_are_said_to_be_of_one_search(
    world: World, tmp_path: Path, content: tuple[dict[str, Any], pl.DataFrame]
) -> None:
    assert content[0]["index_tries_less"] == []  # its index is exact
    parameters = ScannParameters(leaves=4, leaves_searched=2, rescored=10)
    index = Mock(spec=ScannIndex, parameters=parameters, item_vectors=world.item_vectors)
    index.effort = partial(ScannIndex.effort, index)
    served = Served(Mock(), index, *[np.zeros(0, np.int64)] * 3)
    # Of 24 items it scores ten, or k if that is more.
    assert served.tries_less([2, 5, 10], 10) == [] and served.tries_less([2, 5, 20], 24) == [2, 5, 20]
    figures = content[0] | {"index_tries_less": [2, 5]}
    told = (
        "model, by index: the first 2 and 5 are of a search for 30, which looks at more candidates than one for so "
        "few; a report with such a --k alone shows what a caller gets"
    )
    assert told in lines(figures) and told in about_recall(figures)["notes"] and told not in lines(content[0])


def test_what_was_left_out_before_the_split_is_told(world: World, tmp_path: Path) -> None:
    events = tmp_path / "events.csv"
    rows = [f"u{user},i{item},{10 * item + user}" for user in range(5) for item in range(6)]
    events.write_text("\n".join(["user_id,item_id,timestamp", *rows, "u9,i0,3", "u1,,4", "u2,i1,never"]) + "\n")
    prepare.run(DataConfig(split="leave_last_out", min_user_events=3), events, tmp_path / "dataset", on_bad_rows="skip")
    made = report.run(columns.write_bundle_of(tmp_path / "dataset"), tmp_path / "dataset", tmp_path / "report", maps=[])
    assert (made["dataset"]["rejected"], made["dataset"]["dropped"]) == (2, {"min_counts": 1})
    page = (tmp_path / "report" / "report.md").read_text()
    assert "towers prepare left out 2 rows that it could not read" in page
    assert "towers prepare left out 1 event by min_counts" in page


def test_so_large_a_sample_that_it_has_everybody_is_none(world: World, tmp_path: Path) -> None:
    bundle = world.bundle(tmp_path / "bundle")
    words = [
        report.run(bundle, world.dataset, tmp_path / f"{users}", ks=[2], maps=[], protocol=Protocol(users=users))[
            "protocol_options"
        ]["words"]
        for users in (USERS, USERS - 1)
    ]
    assert words == [[], [f"A sample of {USERS - 1} test users, drawn with seed 0."]]


def test_an_index_that_costs_more_than_the_interval_is_warned_of(
    content: tuple[dict[str, Any], pl.DataFrame],
) -> None:
    figures = copy.deepcopy(content[0])
    exact, index = (figures["metrics"][name]["recall@5"] for name in ("exact", "index"))
    index["value"] = exact["low"]
    assert not [line for line in lines(figures) if line.startswith("warning")]
    index["value"] = exact["low"] - 0.001
    cost = f"{exact['value'] - exact['low'] + 0.001:.4f}"
    (warning,) = [line for line in lines(figures) if line.startswith("warning")]
    assert warning == (
        f"warning: the index costs {cost} of recall@5, more than its interval: "
        "towers index --target-recall 0.995 --target-k 5 comes closer"
    )


@pytest.mark.parametrize("refit", [False, True])
def test_new_items_had_no_event_that_the_model_was_trained_on(world: World, tmp_path: Path, refit: bool) -> None:
    bundle = world.bundle(tmp_path / "bundle", training={"refit": refit})
    content = report.run(bundle, world.dataset, tmp_path / "report", ks=[5, 30])
    new = content["new_items"]
    trained = {item for split in (world.train, world.valid)[: 1 + refit] for items in split.values() for item in items}
    targets = {user: [item for item in items if item not in trained] for user, items in world.test.items()}
    targets = {user: items for user, items in targets.items() if items}
    assert NEW_ITEM in targets["0"]
    assert (new["users"], new["targets"]) == (len(targets), sum(map(len, targets.values())))
    assert new["share_of_targets"] == pytest.approx(new["targets"] / sum(map(len, world.test.values())))
    expected = [slow("recall", ranking(world, user), items, 5) for user, items in targets.items()]
    assert new["metrics"]["exact"]["recall@5"]["value"] == pytest.approx(np.mean(expected), abs=1e-6)
    assert new["metrics"]["exact"]["recall@30"]["value"] == 1.0
    parts = content["slices"]
    assert parts["items: new"]["metrics"] == new["metrics"]
    assert parts["items: known"]["targets"] + new["targets"] == content["counts"]["targets"]
    assert not [part for part in parts.values() if part["group"] == "item age"]  # the lists have no times


def test_coverage_and_popularity_of_what_was_recommended(
    world: World, content: tuple[dict[str, Any], pl.DataFrame]
) -> None:
    shown = [item for user in world.test for item in ranking(world, user)[:2]]
    assert content[0]["coverage"]["exact"]["coverage@2"]["value"] == len(set(shown)) / ITEMS
    counts = world.counts()
    mean = np.mean([counts[item] for item in shown])
    assert content[0]["mean_popularity"]["exact"]["popularity@2"]["value"] == pytest.approx(mean)


def test_users_whom_only_a_users_file_names_change_no_figure_of_lists(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events, found = columns.make_events(), []
    for strangers in (0, 1_000):
        monkeypatch.setattr(columns, "USERS", 40 + strangers)
        (folder := tmp_path / str(strangers)).mkdir()
        dataset = columns.write_dataset(events, folder)
        assert Dataset.open(dataset).manifest.users == 40 + strangers
        content = report.run(columns.write_bundle_of(dataset), dataset, folder / "report", ks=[5], maps=[])
        found.append([content[key]["popularity"] for key in ("novelty", "mean_popularity", "coverage", "gini")])
    assert found[0] == found[1]


def test_every_figure_of_every_ranker_has_an_interval(content: tuple[dict[str, Any], pl.DataFrame]) -> None:
    figures, _ = content
    for key in ("metrics", "coverage", "gini", "novelty", "mean_popularity", "similarity"):
        assert {*figures[key]} == {*figures["metrics"]}
        for by_name in figures[key].values():
            assert {name.partition("@")[2] for name in by_name} == {*map(str, KS)}
            assert all(each["low"] <= each["value"] <= each["high"] for each in by_name.values()), key
    shown = "\n".join(lines(figures))
    coverage = figures["coverage"]["exact"]["coverage@5"]
    assert "\ncoverage@5 {value:.1%} ({low:.1%} to {high:.1%})\ngini@5 ".format(**coverage) in shown
    assert "95% percentile bootstrap over users, 1,000 resamples; of coverage and Gini 95% normal" in shown


def test_differences_are_paired_means(content: tuple[dict[str, Any], pl.DataFrame]) -> None:
    figures, per_user = content
    for other in ("popularity", "popularity_users", "item_knn", "ease", "index"):
        difference = figures["differences"][f"exact_minus_{other}"]["recall@5"]
        expected = (per_user["exact_recall@5"] - per_user[f"{other}_recall@5"]).mean()
        assert difference["value"] == pytest.approx(expected, abs=1e-6)
    none = {"value": 0, "low": 0, "high": 0}
    assert figures["differences"]["exact_minus_index"]["recall@5"] == pytest.approx(none, abs=1e-12)


def test_index_figures_are_those_of_the_index(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class HalfIndex:
        """Finds items of even rows only."""

        def __init__(self, vectors: np.ndarray) -> None:
            self.vectors = vectors

        def search(
            self, queries: np.ndarray, k: int, excluded: list[np.ndarray] | None = None
        ) -> tuple[np.ndarray, np.ndarray]:
            scores = queries @ self.vectors.T
            scores[:, 1::2] = -np.inf
            for query, rows in enumerate(excluded or []):
                scores[query, rows] = -np.inf
            rows = np.argsort(-scores, axis=1)[:, :k]
            best = np.take_along_axis(scores, rows, axis=1)
            return np.where(np.isinf(best), -1, rows), best

    monkeypatch.setattr(report, "open_index", lambda bundle: HalfIndex(np.asarray(bundle.item_vectors)))
    figures = report.run(world.bundle(tmp_path / "bundle"), world.dataset, tmp_path / "report", ks=[2])
    even = {item for row, item in enumerate(world.item_ids) if row % 2 == 0}
    expected = []
    for user, targets in world.test.items():
        order = ranking(world, user)
        if user in world.query_ids:
            order = [item for item in order if item in even]
            assert len(order) >= 2  # else the exact index would fill up
        expected.append(slow("recall", order, targets, 2))
    assert figures["metrics"]["index"]["recall@2"]["value"] == pytest.approx(np.mean(expected), abs=1e-6)
    assert figures["metrics"]["exact"]["recall@2"]["value"] != figures["metrics"]["index"]["recall@2"]["value"]


def test_blocks_of_users_change_nothing_and_users_are_named_only_if_asked_to(
    world: World, content: tuple[dict[str, Any], pl.DataFrame], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evaluate, "USERS", 7)
    report.run(world.bundle(tmp_path / "bundle"), world.dataset, tmp_path / "report", ks=KS)
    assert pl.read_parquet(tmp_path / "report" / "per_user.parquet").equals(content[1].drop("user_id"))


def test_truth_is_the_best_attainable(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # A world whose truth is the bundle's own vectors: the model reaches all of it, but for the user without a vector,
    # whose truth points at the targets.
    def truth(data: Dataset) -> tuple[np.ndarray, np.ndarray]:
        queries = np.zeros((USERS, DIMENSION), np.float32)
        for number, user in enumerate(data.users["user_id"].to_list()):
            if user in world.query_ids:
                queries[number] = world.query_vectors[world.query_ids.index(user)]
            else:
                queries[number] = sum(world.item_vectors[world.item_ids.index(item)] for item in world.test[user])
        rows = [world.item_ids.index(item) for item in data.items["item_id"].to_list()]
        return queries, world.item_vectors[rows]

    monkeypatch.setattr(Dataset, "truth", truth)
    figures = report.run(world.bundle(tmp_path / "bundle"), world.dataset, tmp_path / "report", ks=[5])
    per_user = pl.read_parquet(tmp_path / "report" / "per_user.parquet").filter(pl.col("stored_vector"))
    assert per_user["best_attainable_recall@5"].to_list() == per_user["exact_recall@5"].to_list()
    exact, best = (figures["metrics"][name]["recall@5"]["value"] for name in ("exact", "best_attainable"))
    assert best > exact
    assert figures["share_of_attainable"]["recall@5"]["value"] == pytest.approx(exact / best)


def test_a_report_without_validation_events_says_so(
    world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    both = {user: [*items, *world.valid.get(user, [])] for user, items in world.train.items()}
    other = prepared_again(dataclasses.replace(world, train=both, valid={}), tmp_path, valid_share=0)
    figures = report.run(other.bundle(tmp_path / "bundle"), other.dataset, tmp_path / "report", ks=[5])
    assert figures["strongest"]["ranker"] == figures["verdict"]["baseline"] == "ease"
    assert figures["baselines"]["ease"]["validation"] == {}
    assert f"was chosen on {figures['strongest']['chosen_on']}" in capsys.readouterr().out
    assert "no validation events" in figures["strongest"]["chosen_on"]
    assert " the baseline fixed without validation (EASE" in figures["verdict"]["text"]
    page = (tmp_path / "report" / "report.md").read_text()
    assert "than the simple method fixed without validation, EASE" in page and "strongest" not in page


def test_what_is_too_large_is_left_out_with_a_reason(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(item_knn, "MAX_PAIRS", 0)
    monkeypatch.setattr(ease, "MAX_ITEMS", ITEMS - 1)
    figures = report.run(world.bundle(tmp_path / "bundle"), world.dataset, tmp_path / "report", ks=[5])
    left_out = figures["baselines"]["left_out"]
    assert "pairs of events of the same user, more than 0" in left_out["item_knn"]
    assert left_out["ease"] == f"left out: {ITEMS} items, more than {ITEMS - 1}"
    assert not {"item_knn", "ease"} & {*figures["metrics"], *figures["baselines"]}


def test_what_is_too_large_to_search_has_fixed_settings_and_a_reason(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(item_knn, "MAX_SEARCH_PAIRS", 0)
    baselines = report.run(world.bundle(tmp_path / "bundle"), world.dataset, tmp_path / "report", ks=[5])["baselines"]
    assert "pairs of events of the same user, more than 0" in baselines["fixed"]["item_knn"]
    assert f"item_knn: {baselines['fixed']['item_knn']}" in capsys.readouterr().err
    assert (baselines["item_knn"]["settings"]["neighbours"], baselines["left_out"].get("item_knn")) == (100, None)


def test_items_without_a_vector_count_as_misses(world: World, tmp_path: Path) -> None:
    gone = world.item_ids[0]
    users = [user for user in world.query_ids if gone not in world.seen(user)]
    kept = [world.query_ids.index(user) for user in users]
    bundle = world.bundle(
        tmp_path / "bundle",
        item_ids=world.item_ids[1:],
        item_vectors=world.item_vectors[1:],
        item_attributes=pl.DataFrame({"item_id": world.item_ids[1:]}),
        popularity=[world.counts()[item] for item in world.item_ids[1:]],
        query_ids=users,
        query_vectors=world.query_vectors[kept],
        seen_offsets=np.zeros(len(users) + 1, np.int64),
        seen_items=[],
    )
    figures = report.run(bundle, world.dataset, tmp_path / "report", ks=[ITEMS])
    assert figures["counts"]["items_without_vector"] == 1
    expected = [sum(item != gone for item in items) / len(items) for items in world.test.values()]
    assert figures["metrics"]["exact"][f"recall@{ITEMS}"]["value"] == pytest.approx(np.mean(expected), abs=1e-6)


def test_an_int8_bundle_is_reported_as_it_answers_with_what_its_codes_cost(world: World, tmp_path: Path) -> None:
    cost = {"k": 24, "queries": 29, "recall": 0.98765}
    lineage = {"dataset": Dataset.open(world.dataset).manifest.fingerprint, "vectors_against_float32": cost}
    bundle = world.bundle(tmp_path / "bundle", vectors="int8", lineage=lineage)
    content = report.run(bundle, world.dataset, tmp_path / "report", ks=KS)
    codes, scales = np.load(bundle / "item_vectors.npy"), np.load(bundle / "item_scales.npy")
    back = dataclasses.replace(world, item_vectors=codes * scales[:, np.newaxis])
    expected = np.mean([slow("recall", ranking(back, user), items, 5) for user, items in world.test.items()])
    assert content["metrics"]["exact"]["recall@5"]["value"] == pytest.approx(expected, abs=1e-6)
    assert (content["bundle"]["vectors"], content["vectors_against_float32"]) == ("int8", cost)
    said = (
        "item vectors as int8: exact search finds 0.9877 of the first 24 that float32 finds, measured with 29 queries"
    )
    assert f"- {said} at export\n" in (tmp_path / "report" / "report.md").read_text()
    assert f"{said} at export" in lines(content)


def test_a_bundle_of_other_data_is_refused(world: World, tmp_path: Path) -> None:
    other = world.bundle(tmp_path / "other", lineage={"dataset": "0" * 64})
    with pytest.raises(BundleError, match="000000000000"):
        report.run(other, world.dataset, tmp_path / "report")
    strange = ["strange", *world.item_ids[1:]]
    renamed = world.bundle(tmp_path / "renamed", item_ids=strange, lineage={})
    with pytest.raises(BundleError, match="'strange'"):
        report.run(renamed, world.dataset, tmp_path / "report")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["other", "renamed"]


def test_a_changed_data_set_is_refused(world: World, tmp_path: Path) -> None:
    shutil.copytree(world.dataset, tmp_path / "dataset")
    events = tmp_path / "dataset" / "test" / "item.npy"
    events.write_bytes(events.read_bytes()[:-4] + bytes(4))
    with pytest.raises(DataError, match=r"test/item.npy: changed since `towers prepare`"):
        report.run(world.bundle(tmp_path / "bundle"), tmp_path / "dataset", tmp_path / "report")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bundle", "dataset"]


def test_a_bundle_without_lineage_is_reported_with_a_warning(
    world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report.run(world.bundle(tmp_path / "bundle", lineage={}), world.dataset, tmp_path / "report", ks=[5])
    printed = capsys.readouterr()
    assert "warning" in printed.err
    assert "recall@5" in printed.out


def test_a_k_above_the_catalogue_is_scored_over_all_items(world: World, tmp_path: Path) -> None:
    # No list of that length fits into memory; as the second, it is that of the verdict, the findings and the examples.
    k = 10**12
    trained = {"norm_exponent": 0.0, "config": {"model": {"similarity": "dot"}, "loss": {"matryoshka": [2]}}}
    lineage = {"dataset": Dataset.open(world.dataset).manifest.fingerprint, **trained}
    bundle = world.bundle(tmp_path / "bundle", lineage=lineage)
    content = report.run(bundle, world.dataset, tmp_path / "report", ks=[2, k])
    for metric in ("recall", "ndcg", "hit_rate", "mrr", "precision", "map", "capped_recall"):
        for user_k in (2, k):
            wanted = [slow(metric, ranking(world, user), targets, user_k) for user, targets in world.test.items()]
            assert content["metrics"]["exact"][f"{metric}@{user_k}"]["value"] == pytest.approx(np.mean(wanted))
    # Every unseen item is in every list.
    assert content["coverage"]["exact"][f"coverage@{k}"]["value"] == 1.0


@pytest.mark.parametrize("ks", [[], [20, 0]])
def test_lists_without_a_length_are_refused(world: World, tmp_path: Path, ks: list[int]) -> None:
    with pytest.raises(
        DataError, match=re.escape(f"--k: lengths of lists are at least 1, and at least one is needed; got {ks}")
    ):
        report.run(tmp_path / "none", world.dataset, tmp_path / "report", ks=ks)


def test_an_existing_report_stays(world: World, tmp_path: Path) -> None:
    bundle = world.bundle(tmp_path / "bundle")
    (tmp_path / "report").mkdir()
    for given in (bundle, tmp_path / "missing"):  # refused before anything is read
        with pytest.raises(OutputExistsError, match="--overwrite"):
            report.run(given, world.dataset, tmp_path / "report")
    assert list((tmp_path / "report").iterdir()) == []
    report.run(bundle, world.dataset, tmp_path / "report", ks=[5], overwrite=True)
    left = ["per_user.parquet", "report.html", "report.json", "report.md"]
    assert sorted(path.name for path in (tmp_path / "report").iterdir()) == left


def test_no_test_events_is_an_error(world: World, tmp_path: Path) -> None:
    lists = tmp_path / "lists"
    lists.mkdir()
    (lists / "train.txt").write_text((world.folder / "train.txt").read_text())
    (lists / "valid.txt").write_text((world.folder / "valid.txt").read_text())
    (lists / "test.txt").write_text("0\n")
    prepare.run(DataConfig(), lists, tmp_path / "dataset", format="lightgcn")
    known = Dataset.open(tmp_path / "dataset").items["item_id"].to_list()
    bundle = world.bundle(
        tmp_path / "bundle",
        item_ids=known,
        item_vectors=world.item_vectors[: len(known)],
        item_attributes=pl.DataFrame({"item_id": known}),
        popularity=np.zeros(len(known)),
        lineage={},
        seen_offsets=np.zeros(USERS, np.int64),
        seen_items=[],
    )
    with pytest.raises(DataError, match="test_share"):
        report.run(bundle, tmp_path / "dataset", tmp_path / "report")
    assert not (tmp_path / "report").exists()


def test_ties_at_the_last_place_and_constant_scores_are_findings(world: World, tmp_path: Path) -> None:
    k, pairs = 5, world.item_vectors.copy()
    pairs[1::2] = pairs[::2]  # two items each with one vector
    tied, asked = 0, [user for user in world.test if user in world.query_ids]
    for user in asked:
        vector = world.query_vectors[world.query_ids.index(user)]
        left = [row for row, item in enumerate(world.item_ids) if item not in world.seen(user)]
        scores = sorted((float(vector @ pairs[row]) for row in left), reverse=True)
        tied += scores[k - 1] == scores[k]
    assert 0 < tied < len(asked)
    cases = {
        "sound": (world.item_vectors, {}),
        "pairs": (pairs, {"ties at the last place": tied / len(asked)}),
        "alike": (np.ones_like(pairs), {"constant scores": 1.0}),
    }
    for name, (vectors, expected) in cases.items():
        bundle = world.bundle(tmp_path / name, item_vectors=vectors)
        content = report.run(bundle, world.dataset, tmp_path / "report", ks=[k], overwrite=True)
        of_scores = [
            each for each in content["findings"] if each["name"] in ("ties at the last place", "constant scores")
        ]
        assert {each["name"]: each["value"] for each in of_scores} == pytest.approx(expected)


@pytest.mark.long
def test_a_report_has_the_digest_of_what_it_measured(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a bundle that gets an index, or is replaced, while it is opened or measured there is no report."""
    bundle = world.bundle(tmp_path / "bundle")
    digest = bundle_digest(bundle)
    assert report.run(bundle, world.dataset, tmp_path / "report", ks=[5], maps=[])["bundle"]["digest"] == digest
    for step in ("open_inputs", "exhibits"):
        before, original = bundle_digest(bundle), getattr(report, step)

        def slow(*given: Any, original: Callable[..., Any] = original, step: str = step) -> Any:
            found = original(*given)
            index = IndexInfo(kind="exact", measured={"while": step})
            write_manifest(read_manifest(bundle).model_copy(update={"index": index}), bundle / "manifest.json")
            return found

        with monkeypatch.context() as patch:
            patch.setattr(report, step, slow)
            with pytest.raises(DataError) as error:
                report.run(bundle, world.dataset, tmp_path / step, ks=[5], maps=[])
        assert str(error.value) == (
            f"{bundle}: was {before[:12]} when the report began, and is {bundle_digest(bundle)[:12]}; another command, "
            "such as `towers index`, has changed it meanwhile; nothing was written: run `towers report` again"
        )
        assert not (tmp_path / step).exists()


@pytest.mark.parametrize("k", [10**12 + 1, 10**30])
def test_a_length_that_no_list_has_is_refused(world: World, tmp_path: Path, k: int) -> None:
    with pytest.raises(DataError) as error:
        report.run(tmp_path / "none", world.dataset, tmp_path / "report", ks=[20, k])
    assert str(error.value) == f"--k: lengths of lists are at most 1,000,000,000,000; got [20, {k}]"
