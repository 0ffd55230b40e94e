"""A small path through the commands: features of every kind, a run, a bundle whose towers need only TensorFlow."""

import itertools
import json
import os
import shutil
import subprocess
import sys
import tomllib
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import tensorflow as tf

from pipelines.bundles import export
from pipelines.bundles.bulk import recall
from pipelines.bundles.run import load_run
from pipelines.dataset.dataset import Dataset
from pipelines.dataset.number_text import as_strings
from pipelines.errors import DataError
from pipelines.evaluation import report
from pipelines.forget.dataset import forget_in_dataset
from pipelines.ingest import prepare
from pipelines.training import check, stage, train
from serving.bundle.reader import Bundle
from serving.files.lock import BusyError
from serving.files.staging import OutputExistsError
from serving.recall.loading import open_recaller
from serving.recall.query import RecallQuery
from serving.recall.self_test import open_probed
from serving.search.vector_codes import VectorType
from towers.config.recipe import Config, parse_config
from towers.config.sections import Columns, DataConfig
from towers.errors import ConfigError

FEATURES = {
    "query": {
        "user_id": {"kind": "id"},
        "history": {"kind": "history", "max_length": 5, "pooling": "attention"},
        "age": {"kind": "numeric"},
        "city": {"kind": "categorical"},
        "device": {"kind": "categorical", "mask_share": 0.5},
        "hour": {"kind": "hour", "mask_share": 0.5},
        "mood": {"kind": "vector", "mask_share": 0.5},
    },
    "candidate": {
        "item_id": {"kind": "id", "dimension": 6},
        "genres": {"kind": "multi", "max_length": 3, "dimension": 3},
        "title": {"kind": "text"},
        "maker": {"kind": "hashed", "buckets": 7},
        "price": {"kind": "numeric", "log": True},
        "look": {"kind": "vector", "dimension": 5},
    },
}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """40 users, 20 items, attributes of every type with gaps in them; prepared as `dataset`."""
    folder = tmp_path_factory.mktemp("world")
    rng = np.random.default_rng(0)
    users, items = 40, 20
    pl.DataFrame(
        {
            "user_id": [f"u{u}" for u in range(users)],
            "age": [None if u == 3 else float(20 + u) for u in range(users)],
            "city": [None if u == 4 else ["Köln", "Oslo"][u % 2] for u in range(users)],
        }
    ).write_parquet(folder / "users.parquet")
    pl.DataFrame(
        {
            "item_id": [f"i{i}" for i in range(items)],
            "genres": [["a", "b"][: i % 3] for i in range(items)],
            "title": [f"Story {i % 5} of item" for i in range(items)],
            "maker": [None if i == 2 else f"m{i % 4}" for i in range(items)],
            "price": [None if i == 1 else float(i) for i in range(items)],
            "look": [None if i == 5 else [i / 3, -50.0 * i, i % 4 + 0.5] for i in range(items)],
        }
    ).write_parquet(folder / "items.parquet")
    taken = [(u, i) for u in range(users) for i in rng.choice(items - 1, 8, replace=False)]  # nobody takes i19
    pl.DataFrame(
        {
            "user_id": [f"u{u}" for u, _ in taken],
            "item_id": [f"i{i}" for _, i in taken],
            "timestamp": rng.permutation(len(taken)) * 1000 + 1_600_000_000,
            "device": rng.choice(["phone", "desk"], len(taken)),
            "mood": rng.normal(3, 2, (len(taken), 2)),
        }
    ).write_parquet(folder / "events.parquet")
    prepare.run(
        DataConfig(split="global_time"),
        folder / "events.parquet",
        folder / "dataset",
        items=folder / "items.parquet",
        users=folder / "users.parquet",
    )
    return folder


def recipe(**sections: object) -> Config:
    model = {"dimension": 8, "combine": "concat", "query_layers": [16], "cross_layers": 1, "query_dropout": 0.1}
    raw = {"features": FEATURES, "model": model, "train": {"epochs": 2, "batch_size": 32, "metric": "recall@5"}}
    return parse_config({**raw, **sections})


def plain(**sections: object) -> Config:
    """For what asks nothing of the features: a run in a second."""
    ids = {"query": {"user_id": {"kind": "id"}}, "candidate": {"item_id": {"kind": "id"}}}
    train = {"epochs": 2, "batch_size": 128, "metric": "recall@5"}
    return parse_config({"features": ids, "model": {"dimension": 4}, "train": train, **sections})


@pytest.fixture(scope="module")
def exported(world: Path) -> Path:
    train.run(recipe(), world / "dataset", world / "run")
    export.run(world / "run", world / "bundle")
    return world / "bundle"


def assert_each_close(vectors: np.ndarray, wanted: np.ndarray) -> None:
    """Each vector within 1e-5 of its own length."""
    assert (np.linalg.norm(vectors - wanted, axis=1) <= 1e-5 * np.linalg.norm(wanted, axis=1)).all()


def raw_features(world: Path) -> dict[str, Any]:
    """The features of every item and user, by tower and name, as a request has them."""
    data = Dataset.open(world / "dataset")
    raw: dict[str, Any] = {
        "candidate": {
            "item_id": data.items["item_id"].to_list(),
            "genres": [(list(g or []) + [""] * 3)[:3] for g in data.items["genres"].to_list()],
            "title": data.items["title"].to_list(),
            "maker": data.items["maker"].fill_null("").to_list(),
            "price": data.items["price"].fill_null(float("nan")).to_list(),
            "look": [look or [float("nan")] * 3 for look in data.items["look"].to_list()],
        }
    }
    offsets, seen = export.seen(data, ("train", "valid"))
    names = data.items["item_id"].to_list()
    histories = [[names[i] for i in seen[a:b]][-5:] for a, b in itertools.pairwise(offsets)]
    raw["query"] = {
        "user_id": data.users["user_id"].to_list(),
        "history": [line + [""] * (5 - len(line)) for line in histories],
        "age": data.users["age"].fill_null(float("nan")).to_list(),
        "city": data.users["city"].fill_null("").to_list(),
        "device": [""] * len(histories),
        "hour": [-1] * len(histories),
        "mood": [[float("nan")] * 2] * len(histories),
    }
    return raw


def assert_equal_to_training(world: Path, bundle: Bundle, items: np.ndarray, queries: np.ndarray) -> None:
    """Vectors of every item and user, in the order of the data set, are those that the bundle was given in training."""
    data = Dataset.open(world / "dataset")
    names, users = data.items["item_id"].to_list(), data.users["user_id"].to_list()
    assert_each_close(items[[names.index(item) for item in bundle.item_ids]], np.asarray(bundle.item_vectors))
    wanted = np.asarray(bundle.query_vectors)
    assert_each_close(queries[[users.index(query) for query in bundle.query_ids]], wanted)
    # The vectors do depend on what went in.
    assert len(np.unique(wanted.round(4), axis=0)) > 30


TYPES = dict.fromkeys(["age", "price", "mood", "look"], tf.float32) | {"hour": tf.int64}


def test_saved_towers_equal_training(world: Path, exported: Path) -> None:
    found = {}
    for side, columns in raw_features(world).items():
        tower = tf.saved_model.load(str(exported / f"{side}_tower")).signatures["serving_default"]
        given = {name: tf.constant(values, TYPES.get(name, tf.string)) for name, values in columns.items()}
        found[side] = tower(**given)["embeddings"].numpy()
    assert_equal_to_training(world, Bundle.open(exported), found["candidate"], found["query"])


# In the default run the service of test_end_to_end.py shows that exported towers need no code of this project.
@pytest.mark.long
def test_saved_towers_need_only_tensorflow(world: Path, exported: Path) -> None:
    """Raw features of every item and user, through a process that knows nothing of this project."""
    (world / "raw.json").write_text(json.dumps(raw_features(world)))
    program = """
import json, sys
sys.modules["keras"] = None  # as if it were not installed
import numpy as np, tensorflow as tf
raw = json.load(open(sys.argv[1]))
types = dict.fromkeys(["age", "price", "mood", "look"], tf.float32) | {"hour": tf.int64}
for side, columns in raw.items():
    tower = tf.saved_model.load(f"{sys.argv[2]}/{side}_tower").signatures["serving_default"]
    out = tower(**{name: tf.constant(values, types.get(name, tf.string)) for name, values in columns.items()})
    np.save(f"{sys.argv[3]}/{side}.npy", out["embeddings"].numpy())
assert not {"towers", "pipelines", "serving", "tensorflow_recommenders", "tf_keras"} & set(sys.modules)
"""
    arguments = [str(world / "raw.json"), str(exported), str(world)]
    # -I: no working directory on the path, so the project itself cannot be imported by accident.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TF_")}
    done = subprocess.run([sys.executable, "-I", "-c", program, *arguments], capture_output=True, env=environment)
    assert done.returncode == 0, done.stderr.decode()[-2000:]
    assert_equal_to_training(
        world, Bundle.open(exported), np.load(world / "candidate.npy"), np.load(world / "query.npy")
    )


def test_the_bundle_holds_what_a_service_may_know(world: Path, exported: Path) -> None:
    bundle, data = Bundle.open(exported), Dataset.open(world / "dataset")
    known = {name: set() for name in bundle.query_ids}
    ids, names = data.users["user_id"].to_list(), data.items["item_id"].to_list()
    for split in ("train", "valid"):
        events = data.events(split)
        for user, item in zip(events.user, events.item, strict=True):
            known[ids[user]].add(names[item])
    for row, name in enumerate(bundle.query_ids):
        assert {bundle.item_ids[int(i)] for i in bundle.seen(row)} == known[name]
    # i19 has no event, but features: it is recalled through them.
    assert "i19" in list(bundle.item_ids)


def test_the_history_of_a_known_user_gives_their_stored_vector(world: Path, exported: Path) -> None:
    """As the service asks after a live event: the columns of the user come from the bundle's profiles."""
    recaller = open_recaller(exported)
    bundle, users = recaller.bundle, Dataset.open(world / "dataset").users
    assert bundle.profiles is not None
    ages, cities = (dict(zip(users["user_id"], users[name], strict=True)) for name in ("age", "city"))
    for row, name in enumerate(bundle.query_ids):
        held = {"age": ages[name], "city": cities[name]}
        assert bundle.profiles[row] == {key: value for key, value in held.items() if value is not None}
    histories = [bundle.item_names.at(bundle.seen(row)) for row in range(bundle.manifest.queries)]
    asked = [RecallQuery(user_id=u, history=h) for u, h in zip(bundle.query_ids, histories, strict=True)]
    embedded = recaller.embed(asked)
    assert {each.source for each in embedded} == {"history"} and len(embedded) > 30
    assert_each_close(np.array([each.vector for each in embedded]), np.asarray(bundle.query_vectors))


def test_int8_is_the_same_bundle_but_for_its_item_vectors(
    world: Path, exported: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    export.run(world / "run", tmp_path / "int8", vectors="int8")
    # Both have 20 items, and the first 20 of all are all.
    assert (
        "item vectors as int8: exact search finds 1.0000 of the first 20 that float32 finds" in capsys.readouterr().err
    )
    coded, plain = Bundle.open(tmp_path / "int8"), Bundle.open(exported)
    assert coded.item_ids.to_list() == plain.item_ids.to_list()
    assert coded.manifest.model_version != plain.manifest.model_version, "its scores are others"
    np.testing.assert_array_equal(coded.query_vectors, plain.query_vectors)
    vectors = np.asarray(plain.item_vectors)
    half_a_code = np.abs(vectors).max(axis=1, keepdims=True) / 127 * 0.502
    assert (np.abs(np.asarray(coded.item_vectors) - vectors) <= half_a_code).all()
    asked = int(np.count_nonzero(np.any(plain.query_vectors != 0, axis=1)))
    assert coded.manifest.lineage["vectors_against_float32"] == {"k": 20, "queries": asked, "recall": 1.0}
    assert "vectors_against_float32" not in plain.manifest.lineage


@pytest.mark.long
@pytest.mark.parametrize(
    ("similarity", "vectors"),
    [("cosine", "int8"), ("dot", "float32"), ("cosine", "float32"), ("dot", "int8")],
)
def test_the_report_says_of_a_cut_what_its_bundle_reaches_with_a_prior_too(
    similarity: str, vectors: VectorType, world: Path, tmp_path: Path
) -> None:
    prior = {"now": 1.0, "past": 0.5, "length": 0.2}  # in deviations of the scores: about as much as the model says
    model = {"dimension": 4, "similarity": similarity, "prior": prior}
    train.run(plain(loss={"matryoshka": [1, 2]}, model=model), world / "dataset", tmp_path / "run")
    found = {}
    for width in (1, 2, 4):
        bundle = tmp_path / str(width)
        export.run(tmp_path / "run", bundle, vectors=vectors, dimension=width)
        found[width] = report.run(bundle, world / "dataset", tmp_path / f"of {width}", ks=(2, 3))
    points = found[4]["cuts"]["points"]
    recalls = [each["metrics"]["exact"]["recall@3"]["value"] for each in found.values()]
    assert [point["recall"] for point in points] == pytest.approx(recalls, abs=1e-6)
    assert len(set(recalls)) > 1


@pytest.mark.parametrize("similarity", ["cosine", pytest.param("dot", marks=pytest.mark.long)])
def test_a_smaller_dimension_is_the_first_numbers_of_both_towers(similarity: str, world: Path, tmp_path: Path) -> None:
    model = {"dimension": 4, "similarity": similarity, "norm_exponent": 0.5}
    train.run(plain(loss={"matryoshka": [2]}, model=model), world / "dataset", tmp_path / "run")
    for name, dimension in (("whole", None), ("small", 2)):
        export.run(tmp_path / "run", tmp_path / name, dimension=dimension)
    trained = load_run(tmp_path / "run")
    numbers = {name: tf.constant(rows) for name, rows in trained.tables.items.items()}
    raw = trained.model.candidate_tower.serve(numbers, norm_exponent=0.0).numpy()[:, :2]
    whole, small = Bundle.open(tmp_path / "whole"), open_probed(tmp_path / "small").bundle  # asks both towers, too
    assert small.manifest.dimension == 2 and small.manifest.model_version != whole.manifest.model_version
    of_bundle = [trained.dataset.items["item_id"].to_list().index(name) for name in small.item_ids]
    wanted = [vector / np.linalg.norm(vector) ** 0.5 for vector in raw[of_bundle]]
    np.testing.assert_allclose(small.item_vectors, wanted, rtol=1e-5, atol=1e-7)
    users = np.asarray(whole.query_vectors)[:, :2]
    if similarity == "cosine":
        users = users / np.linalg.norm(users, axis=1, keepdims=True)
    np.testing.assert_allclose(small.query_vectors, users, rtol=1e-4, atol=1e-6)
    with pytest.raises(DataError, match=r"--dimension 3: .*run trained 2, 4$"):
        export.run(tmp_path / "run", tmp_path / "other", dimension=3)
    # What the report of the whole says of two numbers is what the report of the bundle of two numbers says.
    reports = [report.run(tmp_path / n, world / "dataset", tmp_path / f"of {n}", ks=(5, 7)) for n in ("whole", "small")]
    points = reports[0]["cuts"]["points"]
    assert [(point["dimension"], point["bytes"]) for point in points] == [(2, 8), (4, 16)]
    for point, other in zip(points, reversed(reports), strict=True):
        assert point["recall"] == pytest.approx(other["metrics"]["exact"]["recall@7"]["value"], abs=1e-6)
    said = f"- first 2 numbers of each vector: 8 bytes an item, recall@7 {points[0]['recall']:.4f}, "
    assert said in (tmp_path / "of whole" / "report.md").read_text()
    assert "loss.matryoshka" in reports[1]["cuts"]["left_out"]


def test_a_dimension_needs_a_run_that_trained_it(world: Path, exported: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"--dimension 4: .*run trained 8; loss\.matryoshka trains smaller ones, too"):
        export.run(world / "run", tmp_path / "bundle", dimension=4)
    export.run(world / "run", tmp_path / "bundle", dimension=8)
    assert Bundle.open(tmp_path / "bundle").manifest.model_version == Bundle.open(exported).manifest.model_version


def test_a_run_that_lost_its_data_set_says_so(world: Path, exported: Path, tmp_path: Path) -> None:
    summary = json.loads((world / "run" / "summary.json").read_text())
    moved = tmp_path / "run"
    moved.mkdir()
    (moved / "summary.json").write_text(json.dumps(summary))
    lost = rf"run: expects its data set at {tmp_path / 'dataset'}, and none is there; --dataset names another place$"
    with pytest.raises(DataError, match=lost):
        export.run(moved, tmp_path / "bundle")
    (tmp_path / "dataset").mkdir()
    with pytest.raises(DataError, match=lost):
        export.run(moved, tmp_path / "bundle")
    with pytest.raises(DataError, match=r"elsewhere: not a data set \(no dataset\.json\)"):
        export.run(moved, tmp_path / "bundle", dataset_path=tmp_path / "elsewhere")
    assert not (tmp_path / "bundle").exists()
    with pytest.raises(DataError, match=r"no summary\.json"):
        export.run(tmp_path / "nothing", tmp_path / "bundle")
    with pytest.raises(OutputExistsError):
        export.run(world / "run", exported)


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        (
            "summary.json",
            "{",
            "JSONDecodeError: Expecting property name enclosed in double quotes: line 1 column 2 (char 1)",
        ),
        ("summary.json", "{}", "KeyError: 'dataset_path'"),
        ("summary.json", "[]", "TypeError: list indices must be integers or slices, not str"),
        ("features.json", "", "JSONDecodeError: Expecting value: line 1 column 1 (char 0)"),
        ("features.json", "{}", "KeyError: 'query'"),
    ],
)
def test_a_damaged_file_of_a_run_is_named(
    world: Path, exported: Path, tmp_path: Path, name: str, text: str, told: str
) -> None:
    run = tmp_path / "run"
    run.mkdir()
    for kept in ("summary.json", "config.toml"):
        shutil.copyfile(world / "run" / kept, run / kept)
    (run / name).write_text(text, encoding="utf-8")
    with pytest.raises(DataError) as error:
        load_run(run, world / "dataset" if name == "features.json" else None)
    assert str(error.value) == f"{run / name}: damaged ({told}); `towers train --overwrite` makes the run again"


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("dataset", ", but a data set; `towers train --dataset PATH --config RECIPE --out RUN` makes a run"),
        ("bundle", ", but a bundle that was exported already; `towers serve --bundle PATH` serves it"),
        ("nothing", " (no summary.json); `towers train --out PATH` makes one"),
    ],
)
def test_what_is_no_run_is_told_for_what_it_is(world: Path, exported: Path, name: str, told: str) -> None:
    path = exported if name == "bundle" else world / name
    with pytest.raises(DataError) as error:
        load_run(path)
    assert str(error.value) == f"{path}: not a finished run{told.replace('PATH', str(path))}"


def test_a_run_that_was_moved_alone_is_told_where_its_data_set_is(world: Path, exported: Path, tmp_path: Path) -> None:
    shutil.copytree(world / "run", tmp_path / "run")
    export.run(tmp_path / "run", tmp_path / "bundle", dataset_path=world / "dataset")
    assert Bundle.open(tmp_path / "bundle").manifest.model_version == Bundle.open(exported).manifest.model_version
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    (tmp_path / "run" / "summary.json").write_text(json.dumps(summary | {"dataset": "0" * 64}))
    other = (
        r"dataset: fingerprint \w{12}, but .*run was trained on 0{12}; it was prepared again since, or is another one$"
    )
    with pytest.raises(DataError, match=other):
        export.run(tmp_path / "run", tmp_path / "other", dataset_path=world / "dataset")
    shutil.copytree(world / "dataset", tmp_path / "dataset")
    forget_in_dataset(tmp_path / "dataset", Dataset.open(world / "dataset").users["user_id"][0], dry_run=False)
    (tmp_path / "run" / "summary.json").write_text(json.dumps(summary))
    with pytest.raises(DataError, match=r"run was trained on .*; a user was forgotten in it since; train again$"):
        export.run(tmp_path / "run", tmp_path / "other", dataset_path=tmp_path / "dataset")


MISFITS = [
    (
        {"query": {"aeg": {"kind": "numeric"}}},
        r"features\.query\.aeg: the data set has no column 'aeg'.*did you mean 'age'",
    ),
    ({"query": {"city": {"kind": "numeric"}}}, r"features\.query\.city\.kind: 'numeric' reads number.*string column"),
    ({"candidate": {"genres": {"kind": "categorical"}}}, r"features\.candidate\.genres\.kind.*kinds that fit: multi"),
    ({"candidate": {"h": {"kind": "history"}}}, r"features\.candidate\.h\.kind: 'history' describes a query"),
    ({"query": {"a": {"kind": "id"}, "b": {"kind": "id"}}}, r"features\.query: one feature of kind 'id' at most"),
    ({"query": {"class": {"kind": "categorical", "column": "city"}}}, r"features\.query\.class: .*call it 'f_class'"),
    ({"query": {}}, r"features\.query: needs at least one feature"),
    ({"query": {"u": {"kind": "id", "column": "age"}}}, r"features\.query\.u\.column"),
]


@pytest.mark.parametrize(("features", "message"), MISFITS)
def test_features_that_the_data_cannot_feed_are_refused(world: Path, features: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check.run(parse_config({"features": features}), world / "dataset")


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"data": {"split": "random"}}, r"data\.split: the recipe says 'random'"),
        ({"data": {"min_user_events": 9}}, r"data\.min_user_events: the recipe says 9"),
        ({"train": {"weighted": True}}, r"train\.weighted: the data set has no weights"),
    ],
)
def test_a_recipe_at_odds_with_the_data_set_is_refused(world: Path, sections: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check.run(parse_config(sections), world / "dataset")


def test_features_are_derived_where_the_recipe_has_none(world: Path) -> None:
    resolved = check.check_recipe(Config(), Dataset.open(world / "dataset")).features
    assert {name: f.kind for name, f in (resolved.query or {}).items()} == {
        "user_id": "id",
        "history": "history",
        "age": "numeric",
        "city": "categorical",
        "device": "categorical",
        "mood": "vector",
    }
    assert {name: f.kind for name, f in (resolved.candidate or {}).items()} == {
        "item_id": "id",
        "genres": "multi",
        "title": "categorical",
        "maker": "categorical",
        "price": "numeric",
        "look": "vector",
    }


@pytest.mark.long
def test_an_unfinished_run_goes_on_and_refit_trains_on_both_splits(
    world: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = plain(data={"refit": True})
    real = stage.fit

    def stopped(name: str, *arguments: object, **keywords: object) -> object:
        if name == "refit":
            raise KeyboardInterrupt
        return real(name, *arguments, **keywords)  # type: ignore[arg-type]

    monkeypatch.setattr(stage, "fit", stopped)
    with pytest.raises(KeyboardInterrupt):
        train.run(config, world / "dataset", world / "refit")
    assert not (world / "refit").exists()
    with pytest.raises(DataError, match="unfinished run of another recipe"):
        train.run(plain(), world / "dataset", world / "refit")
    stages: list[str] = []

    def watched(name: str, *arguments: object, **keywords: object) -> object:
        stages.append(name)
        return real(name, *arguments, **keywords)  # type: ignore[arg-type]

    monkeypatch.setattr(stage, "fit", watched)
    summary = train.run(config, world / "dataset", world / "refit")
    assert stages == ["refit"]  # the choice of the epoch was not made twice
    data = Dataset.open(world / "dataset").manifest
    assert [s["examples"] for s in summary["stages"]] == [
        data.events["train"],
        data.events["train"] + data.events["valid"],
    ]
    assert summary["stages"][1]["epochs"] == summary["stages"][0]["best_epoch"]
    assert not list(world.glob(".refit*"))


@pytest.mark.long
def test_the_same_seed_gives_the_same_weights(world: Path, exported: Path, tmp_path: Path) -> None:
    (tmp_path / "dataset").symlink_to(world / "dataset")
    train.run(recipe(), tmp_path / "dataset", tmp_path / "run")
    export.run(tmp_path / "run", tmp_path / "bundle")
    first, second = Bundle.open(exported), Bundle.open(tmp_path / "bundle")
    np.testing.assert_array_equal(first.item_vectors, second.item_vectors)
    assert first.manifest.model_version == second.manifest.model_version


def test_check_shows_features_that_can_be_pasted_into_a_recipe(world: Path) -> None:
    resolved = check.run(Config(), world / "dataset")
    pasted = parse_config(tomllib.loads(check.describe(resolved)))
    assert pasted.features == resolved.features
    assert "derived from the data set" in check.describe(Config())


def test_numbers_as_categories_are_written_each_by_itself() -> None:
    column = pl.Series([1995.0, 1998.5, None, -3.0, 1e20])
    assert as_strings(column).to_list() == ["1995", "1998.5", None, "-3", "1e+20"]
    assert as_strings(pl.Series([7, None])).to_list() == ["7", None]


def test_what_training_never_saw_is_not_served_as_if_learnt(world: Path, tmp_path: Path) -> None:
    """An item with one feature, which no training item has; a user of a city nobody else lives in."""
    items = pl.read_parquet(world / "items.parquet").select("item_id", "title")
    strange = pl.DataFrame({"item_id": ["i-new"], "title": ["Unheard"]})
    pl.concat([items, strange]).write_parquet(tmp_path / "items.parquet")
    users = pl.read_parquet(world / "users.parquet").select("user_id", "city")
    nobody = pl.DataFrame({"user_id": ["u-new"], "city": ["Atlantis"]})
    pl.concat([users, nobody]).write_parquet(tmp_path / "users.parquet")
    prepare.run(
        DataConfig(),
        world / "events.parquet",
        tmp_path / "dataset",
        items=tmp_path / "items.parquet",
        users=tmp_path / "users.parquet",
    )
    features = {
        "query": {"user_id": {"kind": "id"}, "city": {"kind": "categorical"}},
        "candidate": {"item_id": {"kind": "id"}, "title": {"kind": "categorical"}},
    }
    config = parse_config({"features": features, "train": {"epochs": 1, "batch_size": 32}})
    train.run(config, tmp_path / "dataset", tmp_path / "run")
    export.run(tmp_path / "run", tmp_path / "bundle")
    bundle = Bundle.open(tmp_path / "bundle")
    assert "i-new" not in list(bundle.item_ids)
    assert "i19" in list(bundle.item_ids)  # without events, but its title is known from others
    assert "u-new" not in list(bundle.query_ids)
    recaller = open_recaller(tmp_path / "bundle")
    assert recaller.recall(RecallQuery(features={"city": "Atlantis"}, k=3)).source == "popular"
    assert recaller.recall(RecallQuery(features={"city": "Oslo"}, k=3)).source == "features"


def test_a_stored_user_is_one_of_the_items_that_the_service_knows(
    world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Items without a vector are left out of the bundle, though histories of ids may hold them."""
    ids = pl.read_parquet(world / "items.parquet")["item_id"].to_list()
    looks = [None if place % 4 == 1 else [float(place % 3), place / 7, 1.0] for place in range(len(ids))]
    pl.DataFrame({"item_id": ids, "look": looks}).write_parquet(tmp_path / "items.parquet")
    prepare.run(DataConfig(), world / "events.parquet", tmp_path / "dataset", items=tmp_path / "items.parquet")
    features = {"query": {"past": {"kind": "history"}}, "candidate": {"look": {"kind": "vector"}}}
    config = parse_config({"features": features, "train": {"epochs": 1, "batch_size": 32}})
    train.run(config, tmp_path / "dataset", tmp_path / "run")
    capsys.readouterr()
    export.run(tmp_path / "run", tmp_path / "bundle")
    recaller = open_recaller(tmp_path / "bundle")
    bundle, data = recaller.bundle, Dataset.open(tmp_path / "dataset")
    left = {*ids} - {*bundle.item_ids}
    taken = [data.items["item_id"][int(item)] for split in ("train", "valid") for item in data.events(split).item]
    told = f"{len(left)} items without a trained feature are left out, and {sum(item in left for item in taken)} events"
    assert left and told in capsys.readouterr().err
    histories = [bundle.item_names.at(bundle.seen(row)) for row in range(bundle.manifest.queries)]
    embedded = recaller.embed([RecallQuery(history=history) for history in histories])
    assert_each_close(np.array([each.vector for each in embedded]), np.asarray(bundle.query_vectors))


def test_a_finished_stage_is_not_trained_again(world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kill between the final weights and the publishing rename."""
    monkeypatch.setattr(train, "publish", lambda *paths: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        train.run(plain(), world / "dataset", tmp_path / "run")
    monkeypatch.undo()
    monkeypatch.setattr(stage, "fit", lambda *arguments: pytest.fail("trained again"))
    summary = train.run(plain(), world / "dataset", tmp_path / "run")
    assert summary["stages"][0]["epochs"] == 2
    assert (tmp_path / "run" / "checkpoints" / "final.index").exists()


def test_the_run_records_what_the_data_set_was_prepared_with(world: Path, tmp_path: Path) -> None:
    prepare.run(DataConfig(min_user_events=2, split="random"), world / "events.parquet", tmp_path / "dataset")
    resolved = check.run(Config(), tmp_path / "dataset")
    assert resolved.data.min_user_events == 2
    assert check.run(resolved, tmp_path / "dataset") == resolved


def test_derived_features_of_equal_names_are_told_apart(world: Path, tmp_path: Path) -> None:
    events = pl.read_parquet(world / "events.parquet").rename({"user_id": "uid"})
    events = events.with_columns(history=pl.col("device"), user_id=pl.col("device"))
    events.write_parquet(tmp_path / "events.parquet")
    items = pl.read_parquet(world / "items.parquet").select("item_id", pl.col("price").alias("a b"))
    items.with_columns(pl.col("a b").alias("a-b")).write_parquet(tmp_path / "items.parquet")
    columns = Columns(user="uid", item="item_id")
    files = {"items": tmp_path / "items.parquet"}
    prepare.run(DataConfig(columns=columns), tmp_path / "events.parquet", tmp_path / "dataset", **files)
    resolved = check.check_recipe(Config(), Dataset.open(tmp_path / "dataset")).features
    query, candidate = resolved.query or {}, resolved.candidate or {}
    assert {name: (f.kind, f.column) for name, f in query.items()} == {
        "user_id": ("id", None),
        "history": ("history", None),
        "device": ("categorical", "device"),
        "mood": ("vector", "mood"),
        "history_2": ("categorical", "history"),
        "user_id_2": ("categorical", "user_id"),
    }
    assert {name: f.column for name, f in candidate.items()} == {"item_id": None, "a_b": "a b", "a_b_2": "a-b"}


@pytest.mark.parametrize(
    "model",
    [
        pytest.param({}, id="sum", marks=pytest.mark.long),
        pytest.param({"combine": "concat", "query_layers": [4]}, id="layers"),
    ],
)
def test_a_request_of_unlearnt_values_is_answered_by_popularity(
    world: Path, tmp_path: Path, model: dict[str, object]
) -> None:
    """Though "missing" is learnt, by masks and by gaps in a number, and layers have biases: it is no information."""
    query = {
        "user_id": {"kind": "id", "mask_share": 0.5},
        "city": {"kind": "categorical", "mask_share": 0.5},
        "age": {"kind": "numeric"},
        "device": {"kind": "categorical", "mask_share": 0.5},
    }
    features = {"query": query, "candidate": {"item_id": {"kind": "id"}}}
    config = parse_config({"features": features, "model": model, "train": {"epochs": 1, "batch_size": 32}})
    train.run(config, world / "dataset", tmp_path / "run")
    export.run(tmp_path / "run", tmp_path / "bundle")
    recaller = open_recaller(tmp_path / "bundle")
    for features_sent in ({"city": "Atlantis"}, {"city": "Atlantis", "device": "toaster"}):
        assert recaller.recall(RecallQuery(user_id="nobody", features=features_sent, k=3)).source == "popular"
    for features_sent in ({"city": "Oslo"}, {"age": 30.0}, {"city": "Atlantis", "device": "phone"}):
        assert recaller.recall(RecallQuery(features=features_sent, k=3)).source == "features"


@pytest.mark.parametrize("resume", [True, pytest.param(False, marks=pytest.mark.long)])
def test_a_run_that_is_being_trained_is_left_alone(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, resume: bool
) -> None:
    real = stage.fit

    def second(*arguments: object) -> object:
        monkeypatch.setattr(stage, "fit", real)
        with pytest.raises(BusyError, match="another process is training this run"):
            train.run(plain(), world / "dataset", tmp_path / "run", resume=resume)
        return real(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(stage, "fit", second)
    train.run(plain(), world / "dataset", tmp_path / "run")
    assert (tmp_path / "run" / "config.toml").is_file()
    assert not list(tmp_path.glob(".run*"))


def test_fresh_discards_unfinished_work(world: Path, tmp_path: Path) -> None:
    (tmp_path / ".run.unfinished" / "checkpoints").mkdir(parents=True)
    (tmp_path / ".run.unfinished" / "key").write_text("of another recipe")
    with pytest.raises(DataError, match="--fresh"):
        train.run(plain(), world / "dataset", tmp_path / "run")
    train.run(plain(), world / "dataset", tmp_path / "run", resume=False)
    assert (tmp_path / "run" / "summary.json").is_file()


def test_clocks_are_read_in_the_time_zone_of_the_data_from_events_to_requests(tmp_path: Path) -> None:
    """Every event is on a Monday at 00:30 UTC, which is 19:30 of Sunday in New York."""
    monday, zone = int(datetime(2024, 1, 15, 0, 30, tzinfo=UTC).timestamp()), "America/New_York"
    rows = [(f"u{u}", f"i{(u + n) % 9}", monday + 7 * 86_400 * n) for u in range(20) for n in range(6)]
    pl.DataFrame(rows, schema=["user_id", "item_id", "timestamp"], orient="row").write_csv(tmp_path / "events.csv")
    clocks = {"query": {"hour": {"kind": "hour"}, "day": {"kind": "weekday"}}, "candidate": {"item_id": {"kind": "id"}}}
    prepare.run(DataConfig(time_zone=zone), tmp_path / "events.csv", tmp_path / "dataset")
    train.run(plain(features=clocks, data={"time_zone": zone}), tmp_path / "dataset", tmp_path / "run")
    export.run(tmp_path / "run", tmp_path / "bundle")
    assert {each.time_zone for each in Bundle.open(tmp_path / "bundle").manifest.query_features} == {zone}
    recaller = open_recaller(tmp_path / "bundle")
    # Rows that no event reads stay zero, and a query of them alone gets popular items.
    told = {
        name: {n for n in range(count) if recaller.recall(RecallQuery(features={name: n})).source == "features"}
        for name, count in (("hour", 24), ("day", 7))
    }
    assert told == {"hour": {19}, "day": {6}}
    # In June New York is an hour nearer to UTC.
    for time, hour in (("2024-06-03T00:30:00Z", 20), ("2024-12-02T00:30:00Z", 19)):
        by_time = recaller.recall(RecallQuery(features={"hour": time, "day": time}))
        by_clock = recaller.recall(RecallQuery(features={"hour": hour, "day": 6}))
        assert (by_time.ids, by_time.scores.tolist()) == (by_clock.ids, by_clock.scores.tolist())


def test_a_recipe_of_another_time_zone_is_refused(world: Path) -> None:
    with pytest.raises(ConfigError, match=r"data\.time_zone: the recipe says 'Asia/Tokyo', but .* prepared with 'UTC'"):
        check.run(plain(data={"time_zone": "Asia/Tokyo"}), world / "dataset")


def test_a_changed_data_set_is_refused(world: Path, exported: Path, tmp_path: Path) -> None:
    for name in ("dataset", "run"):
        shutil.copytree(world / name, tmp_path / name)
    events = tmp_path / "dataset" / "valid" / "item.npy"
    events.write_bytes(events.read_bytes()[:-4] + bytes(4))
    with pytest.raises(DataError, match=r"valid/item.npy: changed since `towers prepare`"):
        export.run(tmp_path / "run", tmp_path / "bundle")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["dataset", "run"]


def test_overwrite_replaces_only_its_like(world: Path, exported: Path) -> None:
    for overwritten in (world / "dataset", exported, world / "events.parquet", world):
        with pytest.raises(OutputExistsError, match=r"no directory with summary\.json"):
            train.run(plain(), world / "dataset", overwritten, overwrite=True)
    with pytest.raises(OutputExistsError, match=r"no directory with dataset\.json"):
        prepare.run(DataConfig(), world / "events.parquet", exported, overwrite=True)
    with pytest.raises(
        OutputExistsError, match=rf"^{world} is or holds what this command reads \({world}\); name anot"
    ):
        prepare.run(DataConfig(), world, world, overwrite=True)
    with pytest.raises(OutputExistsError, match=r"no directory with manifest\.json"):
        export.run(world / "run", world / "run", overwrite=True)
    with pytest.raises(OutputExistsError, match="is a directory"):
        recall.run(exported, 2, world / "run", overwrite=True)
    with pytest.raises(OutputExistsError, match="bundle is or holds what this command reads"):
        recall.run(exported, 2, exported, overwrite=True)
    assert Bundle.open(exported).manifest.items > 0
    assert Dataset.open(world / "dataset").manifest.items == 20


def test_a_run_in_the_place_of_another_knows_its_own_ids(world: Path, tmp_path: Path) -> None:
    train.run(plain(), world / "dataset", tmp_path / "run")
    before = load_run(tmp_path / "run")  # its tables stay in memory
    rows = [(f"x{n % 7}", f"y{n % 5}", 1_600_000_000 + n) for n in range(70)]
    pl.DataFrame(rows, schema=["user_id", "item_id", "timestamp"], orient="row").write_csv(tmp_path / "events.csv")
    prepare.run(DataConfig(), tmp_path / "events.csv", tmp_path / "dataset")
    fewer = {"epochs": 2, "batch_size": 128, "metric": "recall@4"}
    train.run(plain(train=fewer), tmp_path / "dataset", tmp_path / "run", overwrite=True)
    assert export.run(tmp_path / "run", tmp_path / "bundle").items == 5
    del before


def test_validation_events_that_all_repeat_training_choose_no_epoch(tmp_path: Path) -> None:
    rounds = [(f"u{u}", f"i{u % 3}", 1_600_000_000 + 100 * turn + u) for turn in range(10) for u in range(6)]
    pl.DataFrame(rounds, schema=["user_id", "item_id", "timestamp"], orient="row").write_csv(tmp_path / "events.csv")
    prepare.run(DataConfig(duplicates="keep"), tmp_path / "events.csv", tmp_path / "dataset")
    sections = {"train": {"epochs": 2, "batch_size": 8}, "model": {"dimension": 4}}
    (only,) = train.run(parse_config(sections), tmp_path / "dataset", tmp_path / "run")["stages"]
    assert (only["epochs"], only["metric"], only["best_metric"]) == (2, "", None)
    with pytest.raises(ConfigError, match=r"data\.refit: the data set has no validation targets"):
        check.run(parse_config({**sections, "data": {"refit": True}}), tmp_path / "dataset")
