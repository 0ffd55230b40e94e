"""The popularity prior: chosen in training, stored beside the vectors, joined for recall, renewed."""

import json
import re
import shutil
from dataclasses import replace
from html import unescape
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from pipelines.bundles import build_index, export, fold, renew
from pipelines.bundles.run import load_run
from pipelines.dataset.dataset import Dataset
from pipelines.dataset.heldout import heldout, seen
from pipelines.dataset.popularity import DAY_S
from pipelines.errors import DataError
from pipelines.evaluation import report
from pipelines.ingest import prepare
from pipelines.ingest.formats.copies import Copies
from pipelines.rankers.ranker import Served
from pipelines.service import events
from pipelines.training import train
from pipelines.training.check import check_recipe
from pipelines.training.prior import chosen_on_validation
from pipelines.training.stage import stages
from pipelines.training.validation import validation
from serving.bundle.encoder import Encoder
from serving.bundle.manifest import DIGEST, MANIFEST, json_digest, read_manifest, write_manifest
from serving.bundle.reader import Bundle
from serving.catalogue.journal import UserEvent
from serving.catalogue.sqlite_journal import SqliteJournal
from serving.catalogue.updates import CatalogueUpdates
from serving.errors import BundleError
from serving.recall.loading import open_index, open_recaller
from serving.recall.query import RecallQuery
from serving.recall.recaller import Recaller
from serving.search.scann import ScannIndex
from serving.search.vector_codes import VectorType
from tests.serving.bundle.test_reader_and_writer import save_array
from towers.config.recipe import Config, parse_config
from towers.config.sections import DataConfig, PriorConfig
from towers.errors import ConfigError
from towers.evaluation.metrics import Measured
from towers.training import trainer

USERS, ITEMS, DAYS, NEW_USERS = 300, 120, 100, 40
NO_WEIGHTS = "its weights are 0: no score changes, only the popular items, the answer to users of whom nothing is known"


def write_events(path: Path, seed: int = 0) -> None:
    """Users of group g like items of group g; every ten days another tenth of the items is in fashion.

    Forty users first appear in the last days, so that nothing is known of them but what is in fashion.
    """
    rng = np.random.default_rng(seed)
    rows = []
    for user in range(USERS):
        first = DAYS - 9 if user < NEW_USERS else 0
        for day in np.sort(rng.uniform(first, DAYS, 24)):
            fashion = np.where(np.arange(ITEMS) % 10 == int(day // 10), 8.0, 1.0)
            liking = np.where(np.arange(ITEMS) % 3 == user % 3, 6.0, 1.0)
            item = rng.choice(ITEMS, p=fashion * liking / (fashion * liking).sum())
            rows.append((f"u{user}", f"i{item}", 1_600_000_000 + int(day * DAY_S)))
    frame = pl.DataFrame(rows, schema=["user_id", "item_id", "timestamp"], orient="row")
    frame.write_parquet(path)


def recipe(epochs: int = 3, **model: object) -> Config:
    return parse_config(
        {
            "model": {"dimension": 8, "prior": "validation", "norm_exponent": "validation", **model},
            "optimizer": {"learning_rate": 0.02},
            "train": {"epochs": epochs, "batch_size": 256, "metric": "recall@10"},
        }
    )


def test_without_a_prior_the_validation_of_new_users_is_that_of_the_popular_items(world: Path, tmp_path: Path) -> None:
    train.run(recipe(epochs=1, prior="off"), world / "dataset", tmp_path / "run")
    run = load_run(tmp_path / "run")
    held, counting, users = validation(run.config, run.dataset, run.tables)
    assert held is not None and users is not None and counting is None
    trained = run.dataset.events("train")
    popular = np.argsort(-np.bincount(trained.item, minlength=ITEMS), kind="stable")[:10]
    new = np.flatnonzero(~np.isin(users, trained.user))
    assert len(new) > 10
    wanted = [
        np.isin(held.target_items[held.target_offsets[each] : held.target_offsets[each + 1]], popular).mean()
        for each in new
    ]
    assert np.mean(wanted) > 0
    np.testing.assert_allclose(held.values(run.model)[new], wanted)


@pytest.mark.long
def test_a_refit_for_timed_events_alone_trains_twice_where_there_are_times(world: Path) -> None:
    config = recipe()
    config = config.model_copy(update={"data": config.data.model_copy(update={"refit": "timed"})})
    data = Dataset.open(world / "dataset")
    checked = check_recipe(config, data)
    assert checked.data.refit is True
    assert [each.splits for each in stages(checked, data)] == [("train",), ("train", "valid")]
    at_once = parse_config({"data": {"refit": "timed"}, "train": {"epochs": 3, "choose_epoch": False}})
    assert [each.splits for each in stages(check_recipe(at_once, data), data)] == [("train", "valid")]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`events.parquet`, `dataset`, `run` and `bundle` of the world with fashion."""
    folder = tmp_path_factory.mktemp("fashion")
    write_events(folder / "events.parquet")
    prepare.run(DataConfig(), folder / "events.parquet", folder / "dataset")
    train.run(recipe(), folder / "dataset", folder / "run")
    export.run(folder / "run", folder / "bundle")
    return folder


@pytest.fixture(scope="module")
def without_prior(world: Path) -> Path:
    """A bundle of the same data trained with no prior; its `run` beside it."""
    folder = world / "without"
    train.run(recipe(prior="off"), world / "dataset", folder / "run")
    export.run(folder / "run", folder / "bundle")
    return folder / "bundle"


def stage(run: Path) -> dict[str, object]:
    last: dict[str, object] = json.loads((run / "summary.json").read_text())["stages"][-1]
    return last


def by_hand(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    """Log shares now and in training of every item of the data set, from the formula: ``log(c / mean + 0.1)``."""
    data, chosen = Dataset.open(folder / "dataset"), stage(folder / "run")["prior"]
    assert isinstance(chosen, dict)
    parts = [data.events(split) for split in ("train", "valid")]
    end = max(int(part.time[-1:].max()) if part.time is None else int(part.time.max()) for part in parts)
    window = np.inf if chosen["days"] is None else chosen["days"] * DAY_S
    now = np.zeros(data.manifest.items)
    events = [
        (int(user), int(item))
        for part in parts
        for user, item, time in zip(part.user, part.item, part.time, strict=True)
        if time > end - window
    ]
    active = np.bincount([user for user, _ in events], minlength=data.manifest.users)
    for user, item in events:
        now[item] += 1 / active[user] if chosen["users_alike"] else 1
    past = np.bincount(data.events("train").item, minlength=data.manifest.items)
    return np.log(now / now.mean() + 0.1), np.log(past / past.mean() + 0.1)


def test_validation_finds_the_window_in_which_things_are_in_fashion(world: Path) -> None:
    chosen = stage(world / "run")["prior"]
    assert isinstance(chosen, dict)
    assert chosen["days"] in (7, 14), "an item is in fashion for ten days"
    assert chosen["now"] > 0


def test_the_bundle_holds_the_log_shares_of_the_formula(world: Path) -> None:
    bundle, data = Bundle.open(world / "bundle"), Dataset.open(world / "dataset")
    row = [bundle.item_rows[item_id] for item_id in data.items["item_id"]]
    now, past = by_hand(world)
    assert bundle.item_prior is not None
    np.testing.assert_allclose(bundle.item_prior[row], np.stack([now, past], axis=1), rtol=1e-5, atol=1e-6)


def test_a_recalled_score_is_the_dot_product_and_the_prior(world: Path) -> None:
    bundle = Bundle.open(world / "bundle")
    prior = bundle.manifest.prior
    assert prior is not None and bundle.item_prior is not None
    recaller = Recaller(bundle, open_index(bundle))
    user = next(name for name in bundle.query_names if bundle.has_vector(np.array([bundle.query_rows[name]]))[0])
    row = bundle.query_rows[user]
    recalled = recaller.recall(RecallQuery(user_id=user, k=5))
    assert recalled.source == "user"
    now = prior.now + prior.length * np.log1p(len(bundle.seen(row)))
    scores = (
        np.asarray(bundle.item_vectors, np.float64) @ bundle.query_vectors[row]
        + max(now, 0.0) * bundle.item_prior[:, 0]
        - prior.past * bundle.item_prior[:, 1]
    )
    scores[bundle.seen(row)] = -np.inf
    best = np.argsort(-scores)[:5]
    assert recalled.ids == [bundle.item_names[i] for i in best]
    np.testing.assert_allclose(recalled.scores, scores[best], rtol=1e-4)


def test_what_asks_for_likeness_has_no_prior(world: Path) -> None:
    """`vector` queries, `similar_to` and `/embed` are those of the vectors alone, [D]."""
    bundle = Bundle.open(world / "bundle")
    recaller = Recaller(bundle, open_index(bundle), Encoder.of_queries(bundle))
    vectors = np.asarray(bundle.item_vectors, np.float64)
    vector = vectors[3]
    recalled = recaller.recall(RecallQuery(vector=vector.tolist(), k=4))
    best = np.argsort(-(vectors @ vector), kind="stable")[:4]
    assert recalled.ids == [bundle.item_names[i] for i in best]
    np.testing.assert_allclose(recalled.scores, (vectors @ vector)[best], rtol=1e-5)
    similar = recaller.recall(RecallQuery(similar_to=[bundle.item_names[3]], k=4))
    unit = vector / np.linalg.norm(vector)
    wanted = vectors @ unit
    wanted[3] = -np.inf
    assert similar.ids == [bundle.item_names[i] for i in np.argsort(-wanted, kind="stable")[:4]]
    assert len(recaller.embed([RecallQuery(user_id=bundle.query_names[5])])[0].vector) == bundle.manifest.dimension


def test_a_history_that_is_sent_weighs_the_prior_by_its_own_length(world: Path) -> None:
    bundle = Bundle.open(world / "bundle")
    prior = bundle.manifest.prior
    assert prior is not None and bundle.item_prior is not None
    encoder = Encoder.of_queries(bundle)
    recaller = Recaller(bundle, open_index(bundle), encoder)
    history = [bundle.item_names[i] for i in (3, 9, 15)]
    recalled = recaller.recall(RecallQuery(history=history, k=3))
    assert recalled.source == "history"
    vector = encoder.encode([{"history": history}])[0]
    weight = max(prior.now + prior.length * np.log1p(3), 0.0)
    scores = np.asarray(bundle.item_vectors) @ vector + weight * bundle.item_prior[:, 0]
    scores = scores - prior.past * bundle.item_prior[:, 1]
    np.testing.assert_allclose(recalled.scores, scores[recalled.rows], rtol=1e-4)


def test_strangers_get_what_is_in_fashion(world: Path) -> None:
    bundle, data = Bundle.open(world / "bundle"), Dataset.open(world / "dataset")
    now, _ = by_hand(world)
    order = [data.items["item_id"][int(i)] for i in np.argsort(-now, kind="stable")]
    recalled = Recaller(bundle, open_index(bundle)).recall(RecallQuery(user_id="never seen", k=10))
    assert recalled.source == "popular"
    assert set(recalled.ids) == set(order[:10])
    assert (np.diff(recalled.scores) <= 0).all()


PRIOR = {"days": 60, "users_alike": True, "now": 1.25904, "past": 0.172, "length": 0.0}
PRIOR_TOLD = "prior by popularity of 60 days, users alike (now 1.259, past 0.172, length 0)"


@pytest.mark.parametrize(
    ("model", "told"),
    [
        ({"norm_exponent": "validation", "prior": "validation"}, f"norm_exponent 0.7531; {PRIOR_TOLD}"),
        ({"norm_exponent": 1.0, "prior": "validation"}, PRIOR_TOLD),
        ({"norm_exponent": "validation", "prior": "off"}, "norm_exponent 0.7531"),
        ({"norm_exponent": "validation", "prior": PRIOR}, "norm_exponent 0.7531"),
        ({"prior": PRIOR}, ""),
        ({}, ""),
    ],
)
def test_only_what_validation_chose_is_said_to_be_chosen(model: dict[str, object], told: str) -> None:
    first = {"norm_exponent": 0.75312, "prior": PRIOR}
    assert chosen_on_validation(model, [first, {}]) == told
    assert chosen_on_validation(model, []) == ""  # of a bundle that does not say


def test_the_report_says_what_validation_chose(world: Path, without_prior: Path, tmp_path: Path) -> None:
    for bundle, prior in ((world / "bundle", True), (without_prior, False)):
        content = report.run(bundle, world / "dataset", tmp_path / "out", ks=[5], maps=[], overwrite=True)
        weights = stage(bundle.with_name("run"))
        told = content["chosen_on_validation"]
        assert told.startswith(f"norm_exponent {weights['norm_exponent']:.4g}")
        assert ("; prior by popularity" in told) is prior
        for kind in ("html", "md"):
            text = (tmp_path / "out" / f"report.{kind}").read_text(encoding="utf-8")
            assert f"Chosen on validation: {told}." in unescape(text)


@pytest.mark.long
def test_the_prior_recalls_more_than_the_model_without_it(world: Path, without_prior: Path, tmp_path: Path) -> None:
    assert stage(without_prior.with_name("run"))["prior"] is None
    assert Bundle.open(without_prior).manifest.prior is None
    without = report.run(without_prior, world / "dataset", tmp_path / "without", maps=[])["metrics"]["exact"]
    with_it = report.run(world / "bundle", world / "dataset", tmp_path / "with", maps=[])["metrics"]["exact"]
    assert with_it["recall@10"]["low"] > without["recall@10"]["value"]


def test_the_report_ranks_as_the_service_answers(world: Path) -> None:
    bundle, data = Bundle.open(world / "bundle"), Dataset.open(world / "dataset")
    held = heldout(data, "test")
    ranked = Served.match(bundle, open_index(bundle), data).exact(7)(held)
    recaller = open_recaller(world / "bundle")
    users = data.users["user_id"]
    for place in range(0, len(held.users), 37):
        recalled = recaller.recall(RecallQuery(user_id=users[int(held.users[place])], k=7))
        assert recalled.ids == data.items["item_id"].gather(ranked[place]).to_list()


@pytest.mark.long
def test_a_second_training_on_both_splits_keeps_the_prior_that_validation_chose(world: Path, tmp_path: Path) -> None:
    config = recipe()
    config = config.model_copy(update={"data": config.data.model_copy(update={"refit": True})})
    train.run(config, world / "dataset", tmp_path / "run")
    first, second = json.loads((tmp_path / "run" / "summary.json").read_text())["stages"]
    assert first["prior"] == second["prior"] and first["prior"]["now"] > 0
    export.run(tmp_path / "run", tmp_path / "bundle")
    bundle, data = Bundle.open(tmp_path / "bundle"), Dataset.open(world / "dataset")
    assert bundle.item_prior is not None
    counts = np.bincount(seen(data, ("train", "valid"))[1], minlength=data.manifest.items)
    past = np.log(counts / counts.mean() + 0.1)
    row = [bundle.item_rows[item_id] for item_id in data.items["item_id"]]
    np.testing.assert_allclose(bundle.item_prior[row, 1], past, rtol=1e-5, atol=1e-6)


def test_data_without_times_have_a_prior_of_all_events_and_no_timed_refit(world: Path, tmp_path: Path) -> None:
    frame = pl.read_parquet(world / "events.parquet").drop("timestamp")
    frame.write_parquet(tmp_path / "events.parquet")
    prepare.run(DataConfig(), tmp_path / "events.parquet", tmp_path / "dataset")
    config = recipe(epochs=1)
    twice, timed = (
        config.model_copy(update={"data": config.data.model_copy(update={"refit": refit})}) for refit in (True, "timed")
    )
    assert check_recipe(timed, Dataset.open(tmp_path / "dataset")).data.refit is False
    train.run(twice, tmp_path / "dataset", tmp_path / "run")
    chosen = stage(tmp_path / "run")["prior"]
    assert isinstance(chosen, dict) and chosen["days"] is None
    assert len(json.loads((tmp_path / "run" / "summary.json").read_text())["stages"]) == 2
    export.run(tmp_path / "run", tmp_path / "bundle")
    prior = Bundle.open(tmp_path / "bundle").manifest.prior
    assert prior is not None and (prior.days, prior.until) == (None, None)


def write_lists(folder: Path) -> None:
    """Lists in the order of time without a clock: popular items are taken first and last, from one of three groups."""
    folder.mkdir()
    rng = np.random.default_rng(4)
    lists = []
    for user in range(USERS):
        liking = np.where(np.arange(ITEMS) % 3 == user % 3, 6.0, 1.0) / (1 + np.arange(ITEMS))
        lists.append(rng.choice(ITEMS, 24, replace=False, p=liking / liking.sum()))
    for name, part in (("train", slice(18)), ("test", slice(18, None))):
        (folder / f"{name}.txt").write_text(
            "".join(f"{u} {' '.join(map(str, each[part]))}\n" for u, each in enumerate(lists))
        )


@pytest.fixture(scope="module")
def ordered(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`lists`, `dataset`, `run` and `bundle` of lists in order."""
    folder = tmp_path_factory.mktemp("ordered")
    write_lists(folder / "lists")
    data = DataConfig(ordered=True, validation="last", valid_share=0.3)
    prepare.run(data, folder / "lists", folder / "dataset")
    train.run(recipe(norm_exponent=1.0), folder / "dataset", folder / "run")
    export.run(folder / "run", folder / "bundle")
    return folder


@pytest.mark.long
def test_lists_in_order_without_a_clock_have_a_prior_of_all_known_events(ordered: Path) -> None:
    data, chosen = Dataset.open(ordered / "dataset"), stage(ordered / "run")["prior"]
    assert data.manifest.time_unit == "order" and isinstance(chosen, dict)
    assert chosen["days"] is None and chosen["now"] > 0, "the cosine knows no popularity"
    bundle = Bundle.open(ordered / "bundle")
    row = [bundle.item_rows[item_id] for item_id in data.items["item_id"]]
    assert bundle.manifest.prior is not None and bundle.manifest.prior.until is None and bundle.item_prior is not None
    now, past = by_hand(ordered)
    np.testing.assert_allclose(bundle.item_prior[row], np.stack([now, past], axis=1), rtol=1e-5, atol=1e-6)


def test_without_a_clock_a_window_of_days_is_refused(ordered: Path) -> None:
    data = Dataset.open(ordered / "dataset")
    assert check_recipe(recipe(prior={"now": 0.25}), data).model.prior == PriorConfig(now=0.25)
    with pytest.raises(ConfigError, match=r"model\.prior\.days: a window of 30 days needs times in a unit"):
        check_recipe(recipe(prior={"days": 30, "now": 0.25}), data)


def test_a_random_split_of_timed_events_has_no_windows(world: Path, tmp_path: Path) -> None:
    prepare.run(DataConfig(split="random"), world / "events.parquet", tmp_path / "dataset")
    data = Dataset.open(tmp_path / "dataset")
    train.run(recipe(epochs=1), tmp_path / "dataset", tmp_path / "run")
    chosen = stage(tmp_path / "run")["prior"]
    assert isinstance(chosen, dict) and chosen["days"] is None
    with pytest.raises(ConfigError, match=r"model\.prior\.days: a window of 7 days needs times in a unit that"):
        check_recipe(recipe(prior={"days": 7, "now": 0.25}), data)


def test_a_prior_without_a_window_is_renewed_from_events_without_times(ordered: Path, tmp_path: Path) -> None:
    lists = (ordered / "lists" / "train.txt").read_text().splitlines()
    pairs = [f"{user},{item}" for user, *items in map(str.split, lists) for item in items]
    (tmp_path / "events.csv").write_text("\n".join(["user_id,item_id", *pairs, *(f"n{n},7" for n in range(40))]) + "\n")
    renewed = renew.run(ordered / "bundle", tmp_path / "events.csv", tmp_path / "renewed")
    old, new = Bundle.open(ordered / "bundle"), Bundle.open(tmp_path / "renewed")
    assert renewed.prior is not None and renewed.prior.until is None and new.item_prior is not None
    counts = np.zeros(new.manifest.items)
    owners: dict[str, int] = {}
    taken = [pair.split(",") for pair in pairs] + [[f"n{n}", "7"] for n in range(40)]
    for user, _ in taken:
        owners[user] = owners.get(user, 0) + 1
    for user, item in taken:
        counts[new.item_rows[item]] += 1 / owners[user] if renewed.prior.users_alike else 1
    np.testing.assert_allclose(new.item_prior[:, 0], np.log(counts / counts.mean() + 0.1), rtol=1e-5, atol=1e-6)
    assert old.item_prior is not None
    np.testing.assert_array_equal(new.item_prior[:, 1], old.item_prior[:, 1])


def test_a_pair_in_two_files_of_one_log_counts_once(ordered: Path, tmp_path: Path) -> None:
    """`data.split` of the recipe leaves the files' own parts aside, as it did in training."""
    shutil.copytree(ordered / "bundle", tmp_path / "bundle")
    manifest = read_manifest(tmp_path / "bundle")
    manifest.lineage["config"]["data"] |= {"split": "random"}
    write_manifest(manifest, tmp_path / "bundle" / MANIFEST)
    (tmp_path / "parts").mkdir()
    for name, other in (("train", "n1,8\n"), ("test", "")):
        (tmp_path / "parts" / f"{name}.csv").write_text(f"user_id,item_id\nn1,7\n{other}")
    renew.run(tmp_path / "bundle", tmp_path / "parts", tmp_path / "renewed")
    (tmp_path / "one.csv").write_text("user_id,item_id\nn1,7\nn1,8\n")
    renew.run(tmp_path / "bundle", tmp_path / "one.csv", tmp_path / "single")
    folder, file = (Bundle.open(tmp_path / name).item_prior for name in ("renewed", "single"))
    assert folder is not None and file is not None
    np.testing.assert_array_equal(folder, file)


def test_a_format_that_a_file_s_name_does_not_tell_is_given(ordered: Path, tmp_path: Path) -> None:
    (tmp_path / "events.dat").write_text("user_id,item_id\nn1,7\nn2,7\n")
    with pytest.raises(DataError, match=r"cannot tell the format of .*; name it with --format \(csv, "):
        renew.run(ordered / "bundle", tmp_path / "events.dat", tmp_path / "renewed")
    renewed = renew.run(ordered / "bundle", tmp_path / "events.dat", tmp_path / "renewed", format="csv")
    assert renewed.prior is not None


def test_weights_of_one_s_own_are_taken_as_they_are(world: Path, tmp_path: Path) -> None:
    given = {"days": 30, "now": 0.25, "past": 0.125}
    train.run(recipe(epochs=1, prior=given), world / "dataset", tmp_path / "run")
    export.run(tmp_path / "run", tmp_path / "bundle")
    bundle = Bundle.open(tmp_path / "bundle")
    prior = bundle.manifest.prior
    assert prior is not None
    assert (prior.days, prior.users_alike, prior.length) == (30, False, 0.0)
    known = np.asarray(bundle.query_vectors)[np.any(bundle.query_vectors != 0, axis=1)]
    unit = float((known.astype(np.float64) @ np.asarray(bundle.item_vectors).T).std())
    assert (prior.now, prior.past) == pytest.approx((0.25 * unit, 0.125 * unit), rel=1e-4)


def test_an_index_of_the_joined_vectors_finds_what_exact_search_finds(world: Path) -> None:
    bundle = Bundle.open(world / "bundle")
    assert bundle.recall_vectors.shape == (bundle.manifest.items, bundle.manifest.dimension + 2)
    built = ScannIndex.build(bundle.recall_vectors)
    whole = replace(built.parameters, leaves_searched=built.parameters.leaves, rescored=bundle.manifest.items)
    built = built.with_parameters(whole)
    queries = bundle.sample_queries(50, seed=1)
    rows, _ = built.search(queries, 10)
    wanted = np.argsort(-(queries.astype(np.float64) @ np.asarray(bundle.recall_vectors).T), axis=1)[:, :10]
    assert (np.sort(rows) == np.sort(wanted)).mean() > 0.99


@pytest.mark.parametrize("kind", ["float32", "int8"])
def test_renewed_by_the_same_events_it_is_the_same_prior(kind: VectorType, world: Path, tmp_path: Path) -> None:
    """`item_prior.npy` of the known events alone, from a file: as the export made it of the data set."""
    data = Dataset.open(world / "dataset")
    ends = [data.events(split).time for split in ("train", "valid")]
    last = max(int(time.max()) for time in ends if time is not None)
    frame = pl.read_parquet(world / "events.parquet").filter(pl.col("timestamp") <= last)
    frame.sample(fraction=1.0, shuffle=True, seed=3).write_csv(tmp_path / "events.csv")
    export.run(world / "run", tmp_path / "bundle", vectors=kind)
    build_index.run(tmp_path / "bundle")
    manifest = renew.run(tmp_path / "bundle", tmp_path / "events.csv", tmp_path / "renewed")
    old, new = Bundle.open(tmp_path / "bundle"), Bundle.open(tmp_path / "renewed")
    assert old.item_prior is not None and new.item_prior is not None
    np.testing.assert_allclose(new.item_prior, old.item_prior, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(new.popular_counts, old.popular_counts, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(new.item_vectors, old.item_vectors)
    assert new.manifest.index is not None and new.manifest.index.kind == "exact"
    assert manifest.prior is not None and manifest.prior.until == last and manifest.vectors == kind


def test_exported_live_events_renew_a_prior_whatever_the_columns_of_training(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(world / "bundle", tmp_path / "bundle")
    manifest = read_manifest(tmp_path / "bundle")
    prior = manifest.prior
    assert prior is not None and prior.until is not None
    data = {"columns": {"user": "customer", "item": "sku", "time": "at"}}
    config = manifest.lineage["config"] | {"data": manifest.lineage["config"].get("data", {}) | data}
    write_manifest(
        manifest.model_copy(update={"lineage": manifest.lineage | {"config": config}}), tmp_path / "bundle" / MANIFEST
    )
    live = CatalogueUpdates(SqliteJournal.open(tmp_path / "state"), Encoder.of_items)
    live.add_events([UserEvent(f"e{n}", f"n{n}", "i77", prior.until + DAY_S * n // 50) for n in range(50)])
    events.run(tmp_path / "state", tmp_path / "exported")
    renew.run(tmp_path / "bundle", tmp_path / "exported" / "events.parquet", tmp_path / "renewed")
    renewed = Bundle.open(tmp_path / "renewed")
    assert renewed.popular_counts[renewed.item_rows["i77"]] == renewed.popular_counts.max()
    pl.read_parquet(tmp_path / "exported" / "events.parquet").drop("weight").write_parquet(tmp_path / "own.parquet")
    with pytest.raises(DataError, match="no column 'customer'"):
        renew.run(tmp_path / "bundle", tmp_path / "own.parquet", tmp_path / "other")


def test_a_renewed_prior_counts_live_events_after_its_own_once_whether_folded_before_or_not(
    world: Path, tmp_path: Path
) -> None:
    prior = Bundle.open(world / "bundle").manifest.prior
    assert prior is not None and prior.until is not None
    pl.read_parquet(world / "events.parquet").filter(pl.col("timestamp") <= prior.until).write_csv(tmp_path / "e.csv")
    live = CatalogueUpdates(SqliteJournal.open(tmp_path / "state"), Encoder.of_items)
    live.add_events([UserEvent(f"e{n}", f"n{n}", "i77", prior.until + 36_000) for n in range(50)])
    fold.run(world / "bundle", tmp_path / "state", tmp_path / "folded")
    for name, begin in (("one", world / "bundle"), ("two", tmp_path / "folded")):
        renew.run(begin, tmp_path / "e.csv", tmp_path / name)
        fold.run(tmp_path / name, tmp_path / "state", tmp_path / f"{name} folded")
    one, two, renewed = (Bundle.open(tmp_path / name) for name in ("one folded", "two folded", "two"))
    np.testing.assert_allclose(two.popular_counts, one.popular_counts, rtol=1e-6)
    row = two.item_rows["i77"]
    assert renewed.manifest.prior is not None
    added = 50 * renewed.manifest.prior.event_weight
    assert two.popular_counts[row] - renewed.popular_counts[row] == pytest.approx(added, rel=1e-4)


def test_renewed_by_later_events_another_fashion_wins(
    world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    end = 1_600_000_000 + (DAYS + 30) * DAY_S
    rows = [(f"n{user}", "i77", end - user) for user in range(50)]
    later = pl.DataFrame(rows, schema=["user_id", "item_id", "timestamp"], orient="row")
    pl.concat([pl.read_parquet(world / "events.parquet"), later]).write_parquet(tmp_path / "events.parquet")
    renew.run(world / "bundle", tmp_path / "events.parquet", tmp_path / "renewed")
    assert NO_WEIGHTS not in capsys.readouterr().err
    old, new = Bundle.open(world / "bundle"), Bundle.open(tmp_path / "renewed")
    assert new.manifest.model_version != old.manifest.model_version
    recalled = Recaller(new, open_index(new)).recall(RecallQuery(user_id="never seen", k=1))
    assert recalled.ids == ["i77"]
    assert new.item_prior is not None
    share = np.log(1 / (1 / new.manifest.items) + 0.1)
    assert new.item_prior[new.item_rows["i77"], 0] == pytest.approx(share, rel=1e-5), "all of the window is one item's"
    assert old.item_prior is not None
    np.testing.assert_array_equal(new.item_prior[:, 1], old.item_prior[:, 1])


@pytest.fixture(scope="module")
def weightless(world: Path) -> Path:
    """The run of the world, as if validation had fitted weights of 0."""
    shutil.copytree(world / "run", world / "weightless")
    summary = json.loads((world / "run" / "summary.json").read_text())
    summary["stages"][-1]["prior"] |= {"now": 0.0, "past": 0.0, "length": 0.0}
    (world / "weightless" / "summary.json").write_text(json.dumps(summary))
    return world / "weightless"


@pytest.mark.parametrize("kind", [pytest.param("float32", marks=pytest.mark.long), "int8"])
def test_a_prior_without_weights_answers_unknown_users_alone(
    kind: VectorType, world: Path, weightless: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    export.run(weightless, tmp_path / "bundle", vectors=kind)
    info = build_index.run(tmp_path / "bundle", kind="scann", target_recall=0.9, target_k=10)
    # An earlier commit took targets that services may refuse.
    low = info.model_copy(update={"measured": info.measured | {"target_recall": 0.3}})
    whole = read_manifest(tmp_path / "bundle")
    write_manifest(whole.model_copy(update={"index": low}), tmp_path / "bundle" / MANIFEST)
    renew.run(tmp_path / "bundle", world / "events.parquet", tmp_path / "renewed")
    assert NO_WEIGHTS in capsys.readouterr().err
    old, new = Bundle.open(tmp_path / "bundle"), Bundle.open(tmp_path / "renewed")
    assert new.manifest.index is not None and new.manifest.index.kind == info.kind == "scann"
    assert new.manifest.index.measured["target_recall"] == 0.5
    assert "recall_vectors.npy" not in {*old.manifest.files, *new.manifest.files}
    before, after = (
        Recaller(each, open_index(each)).recall(RecallQuery(user_id=f"u{NEW_USERS + 1}", k=ITEMS))
        for each in (old, new)
    )
    assert before.source == "user" and before.ids == after.ids and before.scores.tolist() == after.scores.tolist()
    assert new.popular_rows.tolist() != old.popular_rows.tolist()
    # The renewed one counts the test, too, but every user of the test has a vector until one loses it.
    data = Dataset.open(world / "dataset")
    tested = data.users["user_id"][int(heldout(data, "test").users[0])]
    for answered, said in ((0, []), (1, ["the list of popular items, the answer to 1 test user of whom nothing is"])):
        content = report.run(tmp_path / "renewed", world / "dataset", tmp_path / f"report-{answered}", maps=[])
        texts = [each["text"] for each in content["findings"] if each["name"] == "prior of the test's time"]
        assert [text.startswith(start) for text, start in zip(texts, said, strict=True)] == [True] * answered
        vectors = np.array(new.query_vectors)
        vectors[new.query_rows[tested]] = 0
        save_array(tmp_path / "renewed", "query_vectors.npy", vectors)


def test_events_that_end_before_those_of_the_prior_are_refused(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prior = Bundle.open(world / "bundle").manifest.prior
    assert prior is not None and prior.until is not None
    older = pl.read_parquet(world / "events.parquet").filter(pl.col("timestamp") < prior.until - DAY_S)
    older.write_csv(tmp_path / "older.csv")
    with pytest.raises(DataError, match=r"older\.csv: ends at .*, before the events of .*bundle.*; give newer"):
        renew.run(world / "bundle", tmp_path / "older.csv", tmp_path / "renewed")
    address, local = "https://me:s3cret@files.invalid/older.csv?sig=s1gned", Copies.local
    monkeypatch.setattr(
        Copies, "local", lambda self, place: local(self, tmp_path / "older.csv" if str(place) == address else place)
    )
    with pytest.raises(DataError, match=r"^https://\*\*\*@files\.invalid/older\.csv\?\*\*\*: ends at"):
        renew.run(world / "bundle", address, tmp_path / "renewed")


def test_an_event_later_than_now_is_warned_of(world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    events = pl.DataFrame({"user_id": ["n1"], "item_id": ["i77"], "timestamp": [5_000_000_000]})
    events.write_csv(tmp_path / "events.csv")
    renew.run(world / "bundle", tmp_path / "events.csv", tmp_path / "renewed")
    assert "warning: 1 event later than now, the latest of 2128-06-11 08:53:20: " in capsys.readouterr().err


@pytest.mark.parametrize("days", [2, 1_000])
def test_events_that_may_not_fill_the_window_are_warned_of(
    days: int, world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prior = Bundle.open(world / "bundle").manifest.prior
    assert prior is not None and prior.until is not None and prior.days is not None and 2 < prior.days < 1_000
    events = pl.read_parquet(world / "events.parquet")
    last = int(events["timestamp"].max())  # type: ignore[arg-type]
    first = pl.DataFrame({"user_id": ["n1"], "item_id": ["i77"], "timestamp": [last - days * DAY_S]})
    late = events.filter(pl.col("timestamp") > last - 2 * DAY_S).select(first.columns)
    pl.concat([late, first]).write_csv(tmp_path / "events.csv")
    renew.run(world / "bundle", tmp_path / "events.csv", tmp_path / "renewed")
    warned = f"events.csv: its events are of {days}.0 days, and the prior counts those of the last {prior.days}"
    assert (warned in capsys.readouterr().err) == (days == 2)


def test_a_renewal_that_fails_at_its_index_leaves_nothing(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(world / "bundle", tmp_path / "bundle")
    build_index.run(tmp_path / "bundle")

    def fails(*_: object, **__: object) -> None:
        raise DataError("no index")

    monkeypatch.setattr(renew.build_index, "run", fails)
    with pytest.raises(DataError, match="no index"):
        renew.run(tmp_path / "bundle", world / "events.parquet", tmp_path / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bundle"]


def test_what_cannot_renew_a_prior_is_said(world: Path, without_prior: Path, tmp_path: Path) -> None:
    frame = pl.read_parquet(world / "events.parquet")
    frame.drop("timestamp").write_parquet(tmp_path / "untimed.parquet")
    with pytest.raises(DataError, match=r"untimed\.parquet: the events have no times"):
        renew.run(world / "bundle", tmp_path / "untimed.parquet", tmp_path / "out")
    of_none = r"parquet: none of its \d,\d+ events is of an item of \S+bundle"
    frame.with_columns(item_id=pl.col("item_id") + ".0").write_parquet(tmp_path / "foreign.parquet")
    with pytest.raises(DataError, match=of_none + r": 'i\d+\.0' here, 'i\d+' there; write the ids as in training$"):
        renew.run(world / "bundle", tmp_path / "foreign.parquet", tmp_path / "out")
    frame.with_columns(weight=pl.lit(0.0)).write_parquet(tmp_path / "shown.parquet")
    with pytest.raises(DataError, match=of_none + " and has a weight$"):
        renew.run(world / "bundle", tmp_path / "shown.parquet", tmp_path / "out")
    frame.rename({"user_id": "customer"}).write_parquet(tmp_path / "renamed.parquet")
    of_training = "name the columns as in training; for ids 'user_id' and 'item_id' are understood$"
    with pytest.raises(DataError, match=rf"no column of user ids; .*did you mean 'customer'\?; {of_training}"):
        renew.run(world / "bundle", tmp_path / "renamed.parquet", tmp_path / "out")
    frame.with_columns(item_id=pl.lit(None, pl.String)).head(1).write_parquet(tmp_path / "bad.parquet")
    bad = r"bad\.parquet, row 1, column 'item_id': no id, got None; fix the file, or leave the rows out$"
    with pytest.raises(DataError, match=bad):
        renew.run(world / "bundle", tmp_path / "bad.parquet", tmp_path / "out")
    with pytest.raises(DataError, match=r"bundle: has no prior; with validation events, model\.prior = "):
        renew.run(without_prior, world / "events.parquet", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_renewal_asks_for_the_column_that_training_named(world: Path, tmp_path: Path) -> None:
    shutil.copytree(world / "bundle", tmp_path / "bundle")
    manifest = json.loads((tmp_path / "bundle" / "manifest.json").read_text())
    manifest["lineage"]["config"]["data"]["columns"] = {"user": "customer"}
    manifest[DIGEST] = json_digest({key: value for key, value in manifest.items() if key != DIGEST})
    (tmp_path / "bundle" / "manifest.json").write_text(json.dumps(manifest))
    asked = "name the columns as in training; for ids 'customer' and 'item_id' are"
    with pytest.raises(DataError, match=rf"no column 'customer' \(data.columns.user\); .*; {asked} understood$"):
        renew.run(tmp_path / "bundle", world / "events.parquet", tmp_path / "out")


def test_a_damaged_prior_is_refused(world: Path, tmp_path: Path) -> None:
    for name in ("item_prior.npy", "recall_vectors.npy", "popular_counts.npy"):
        shutil.rmtree(tmp_path / "bundle", ignore_errors=True)
        shutil.copytree(world / "bundle", tmp_path / "bundle")
        (tmp_path / "bundle" / name).unlink()
        with pytest.raises(BundleError, match=rf"{name}: missing"):
            Bundle.open(tmp_path / "bundle")


@pytest.mark.parametrize(
    ("measured", "epochs", "best"),
    [
        (
            [(0.1885, 0.18), (0.1921, 0.17)],
            [
                "recall@10 0.1885 (mean with and without the prior 0.1800),",
                "recall@10 0.1921 (mean with and without the prior 0.1700),",
            ],
            "; best mean with and without the prior at epoch 1, recall@10 0.1885\n",
        ),
        ([(0.1, 0.1), (0.2, 0.2)], ["recall@10 0.1000,", "recall@10 0.2000,"], "; best recall@10 0.2000 at epoch 2\n"),
    ],
)
def test_the_lines_of_a_training_say_what_chose_the_epoch(
    world: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    measured: list[tuple[float, float]],
    epochs: list[str],
    best: str,
) -> None:
    each = iter(measured)
    monkeypatch.setattr(trainer, "agreed_measure", lambda *given: Measured(*next(each)))
    train.run(recipe(epochs=2), world / "dataset", tmp_path / "run")
    said = capsys.readouterr().err
    assert re.findall(r"epoch \d: loss [\d.]+, (.*,) [\d.]+ s", said) == epochs
    assert best in said
    told = chosen_on_validation(recipe().model.model_dump(), [stage(tmp_path / "run")])
    assert said.endswith(f"\nchosen on validation: {told}\n") and "; prior by popularity" in told
