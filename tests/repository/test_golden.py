"""A data set, a run and a bundle of an earlier release, kept in `tests/golden`: every release opens and uses them.

Of schema version 1 each, at 3c2df05 with TensorFlow 2.20.0, ScaNN 1.4.2, NumPy 2.4.6 and Polars 2.1.0, were made:

    towers synth --out world --users 60 --items 1000 --events 2400 --seed 1 --fashion 1
    towers prepare --events world/events.parquet --items world/items.parquet --users world/users.parquet --out dataset
    towers train --dataset dataset --config recipes/default.toml --out run
        --set train.epochs=1 --set model.dimension=8 --set train.batch_size=256
    towers export --run run --popular-by age_group --out bundle
    towers index --bundle bundle --kind scann

`dataset-impressions`, of version 1 at 8dfd0f6, and `dataset-2`, of the first release of version 2, hold one world:
`--users 30 --items 1000 --events 600 --seed 1`, then its events with their times cut to weeks (`// 604800 * 604800`)
and with a weight (`pl.int_range(pl.len()) % 4`).

`bundle-3`, of schema version 3 at bf2f7ba, is the same run by `towers export --vectors int8 --popular-by age_group`.

`answers.json` and, of `bundle-3`, `answers-3.json` hold what the service answered on that day; exact search gave the
same. TensorBoard's files, which nothing reads back, are left out of the run. A new layout adds files of its own and
keeps these (`CONTRIBUTING.md`).
"""

import json
import shutil
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from fastapi.testclient import TestClient

from pipelines.bundles import build_index, export
from pipelines.dataset.arrays import DTYPES
from pipelines.dataset.dataset import Dataset
from pipelines.dataset.leaks import refuse_leaks
from pipelines.dataset.manifest import digest_files
from pipelines.training import train
from pipelines.training.events import training_events
from serving.bundle.reader import Bundle
from serving.http.app import create_app
from serving.settings import Settings
from tests.support.paths import ROOT
from towers.config.recipe import load_config

GOLDEN = ROOT / "tests" / "golden"
ANSWERS = {
    bundle: json.loads((GOLDEN / f"{answers}.json").read_text(encoding="utf-8"))
    for bundle, answers in {"bundle": "answers", "bundle-3": "answers-3"}.items()
}
MOST_BYTES = 1_500_000
EVENTS = {"train": 466, "valid": 57, "test": 78}  # of the data sets with impressions


def test_the_data_set_opens_with_the_counts_that_prepare_printed() -> None:
    data = Dataset.open(GOLDEN / "dataset")
    assert (data.manifest.users, data.manifest.items) == (data.users.height, data.items.height) == (60, 1_000)
    assert data.manifest.events == {"train": 1_917, "valid": 239, "test": 240}
    assert [len(data.events(split).user) for split in ("train", "valid", "test")] == [1_917, 239, 240]
    assert (data.manifest.split.kind, data.manifest.timed, data.manifest.time_unit) == ("global_time", True, "s")
    context = data.context("train")
    assert context is not None and context.collect()["device"].n_unique() == 4
    assert digest_files(data.path) == (data.manifest.files, data.manifest.fingerprint)
    refuse_leaks(data)


@pytest.mark.parametrize("name", ["dataset-impressions", "dataset-2"])
def test_data_sets_with_impressions_open_with_the_counts_that_prepare_printed(name: str) -> None:
    data = Dataset.open(GOLDEN / name)
    assert data.manifest.events == EVENTS
    assert {split: sum(len(data.events(part)) for part in data.parts(split)) for split in EVENTS} == EVENTS
    assert [np.asarray(data.events(part).weight).max() for part in data.parts()] == [3, 0] * 3
    assert [np.asarray(data.events(part).weight).min() for part in data.parts()] == [1, 0] * 3
    assert digest_files(data.path) == (data.manifest.files, data.manifest.fingerprint)
    refuse_leaks(data)


@pytest.mark.parametrize("name", ["dataset-impressions", "dataset-2"])
def test_joined_with_its_impressions_a_split_is_as_it_lay_in_version_1(name: str, tmp_path: Path) -> None:
    for split in EVENTS:
        (tmp_path / split).mkdir()
        found, context = training_events(Dataset.open(GOLDEN / name), (split,), tmp_path / split, impressions=True)
        files = GOLDEN / "dataset-impressions" / split
        for array in ("user", "item", "time", "weight", "offsets"):
            assert np.array_equal(getattr(found, array), np.load(files / f"{array}.npy")), (split, array)
        own = pl.read_parquet(files / "context.parquet")["device"]
        assert context is not None and context.collect()["device"].equals(own)


def test_the_parts_of_version_1_are_those_that_lie_in_files_of_version_2() -> None:
    old, new = Dataset.open(GOLDEN / "dataset-impressions"), Dataset.open(GOLDEN / "dataset-2")
    assert old.parts() == new.parts() and len(new.parts()) == 6
    for part in new.parts():
        for array, dtype in DTYPES.items():
            found, wanted = getattr(old.events(part), array), GOLDEN / "dataset-2" / part / f"{array}.npy"
            assert (found is not None) == wanted.is_file(), (part, array)
            assert found is None or (found.dtype == dtype and np.array_equal(found, np.load(wanted))), (part, array)
        context = old.context(part)
        assert context is not None
        assert context.collect().equals(pl.read_parquet(GOLDEN / "dataset-2" / part / "context.parquet"))


@pytest.mark.slow
def test_the_data_set_trains_with_the_recipe_of_the_run(tmp_path: Path) -> None:
    shutil.copytree(GOLDEN / "dataset", tmp_path / "dataset")
    train.run(load_config(GOLDEN / "run" / "config.toml"), tmp_path / "dataset", tmp_path / "run")
    summary = json.loads((tmp_path / "run" / "summary.json").read_text(encoding="utf-8"))
    assert summary["dataset"] == Dataset.open(GOLDEN / "dataset").manifest.fingerprint
    # 1,917 training events, and the 239 of validation with them in the last stage.
    assert [(stage["examples"], stage["epochs"]) for stage in summary["stages"]] == [(1_917, 1), (1_917 + 239, 1)]
    before = json.loads((GOLDEN / "run" / "summary.json").read_text(encoding="utf-8"))
    losses, losses_before = ([stage["history"][-1]["loss"] for stage in each["stages"]] for each in (summary, before))
    assert losses == pytest.approx(losses_before, rel=1e-3)


@pytest.mark.slow
def test_the_run_exports_the_vectors_of_the_bundle(tmp_path: Path) -> None:
    export.run(GOLDEN / "run", tmp_path / "bundle", popular_by="age_group")
    now, then = Bundle.open(tmp_path / "bundle"), Bundle.open(GOLDEN / "bundle")
    assert now.item_ids.to_list() == then.item_ids.to_list()
    assert now.query_ids.to_list() == then.query_ids.to_list()
    # The release that wrote it kept the log shares in training, though `past` is 0 and no query asks for them.
    asked = [*range(now.manifest.dimension + 1)]
    assert np.allclose(now.recall_vectors[:, asked], then.recall_vectors[:, asked], rtol=0, atol=1e-5)
    assert then.manifest.prior is not None and then.manifest.prior.past == 0 and not now.recall_vectors[:, -1].any()
    assert now.item_prior is not None and then.item_prior is not None
    assert np.allclose(now.item_prior, then.item_prior, rtol=0, atol=1e-5)
    assert np.allclose(now.query_vectors, then.query_vectors, rtol=0, atol=1e-5)
    assert now.popular_counts.tolist() == then.popular_counts.tolist()
    assert now.item_attributes.equals(then.item_attributes)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "kind"), [("bundle", "scann"), ("bundle", "exact"), ("bundle-3", "exact")])
def test_the_bundle_is_served_and_answers_as_it_did(name: str, kind: str, tmp_path: Path) -> None:
    bundle = GOLDEN / name
    if kind == "scann":
        pytest.importorskip("scann", exc_type=ImportError)
    else:
        bundle = shutil.copytree(bundle, tmp_path / "bundle")
        build_index.run(bundle, kind="exact")
        # What this release writes anew is of its own schema version, which an earlier one refuses by its number.
        assert json.loads((bundle / "manifest.json").read_text(encoding="utf-8"))["schema_version"] == 4
    opened = Bundle.open(bundle)
    assert opened.manifest.index is not None and opened.manifest.index.kind == kind
    assert opened.manifest.prior is not None and len(opened.segments) == 6
    with TestClient(create_app(Settings(bundle=bundle))) as client:
        for known in ANSWERS[name]:
            answer = client.post(known["path"], json=known["request"]).json()
            scores = [item.pop("score") for item in answer["items"]]
            wanted = {**known["answer"], "items": [dict(item) for item in known["answer"]["items"]]}
            assert scores == pytest.approx([item.pop("score") for item in wanted["items"]], abs=1e-5), known["request"]
            assert answer == wanted, known["request"]


def test_the_bundle_of_int8_holds_the_vectors_of_the_other_to_half_a_scale() -> None:
    codes, scales = (np.load(GOLDEN / "bundle-3" / f"item_{name}.npy") for name in ("vectors", "scales"))
    assert codes.dtype == np.int8 and np.abs(codes).max() == 127
    lost = np.abs(codes * scales[:, np.newaxis] - np.load(GOLDEN / "bundle" / "item_vectors.npy"))
    assert np.all(lost <= scales[:, np.newaxis] / 2 + 2e-5)
    decoded = np.asarray(Bundle.open(GOLDEN / "bundle-3").item_vectors)
    assert np.array_equal(decoded, codes.astype(np.float32) * scales[:, np.newaxis])


def test_golden_files_stay_small() -> None:
    assert 100_000 < sum(path.stat().st_size for path in GOLDEN.rglob("*") if path.is_file()) < MOST_BYTES
