"""Columns of the items of a history by the commands: what they find, the exported tower, what is refused."""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from pipelines.bundles import export
from pipelines.bundles.run import KNOWN_SPLITS, load_run
from pipelines.dataset.column_lines import column_lines
from pipelines.dataset.dataset import Dataset
from pipelines.dataset.heldout import seen
from pipelines.dataset.vocabulary import load_features
from pipelines.ingest import prepare
from pipelines.training import check, train
from serving.catalogue.user_events import Taken
from serving.recall.loading import open_recaller
from serving.recall.query import RecallQuery
from serving.recall.recaller import Recaller
from towers.config.recipe import Config, parse_config
from towers.config.sections import DataConfig
from towers.errors import ConfigError
from towers.evaluation.encode import embed_all

USERS, ITEMS, KINDS, LONG, FIRST = 100, 480, 6, 8, 1_600_000_000
IDS = {"item_id": {"kind": "id"}}
WITH_KIND = IDS | {"sort": {"kind": "categorical", "column": "category"}}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """After an item of one category each user takes any item of the next category; few items are taken twice."""
    folder, rng = tmp_path_factory.mktemp("world"), np.random.default_rng(0)
    rows = []
    for user in range(USERS):
        for place in range(LONG):
            kind, which = (user + place) % KINDS, int(rng.integers(0, ITEMS // KINDS))
            rows.append((f"u{user}", f"i{KINDS * which + kind}", FIRST + 60 * place + user))
    events = pl.DataFrame(rows, schema=["user_id", "item_id", "timestamp"], orient="row")
    events.write_parquet(folder / "events.parquet")
    numbers = range(ITEMS)
    pl.DataFrame(
        {
            "item_id": [f"i{n}" for n in numbers],
            "category": [f"kind {n % KINDS}" for n in numbers],
            "price": [None if n % 50 == 0 else 1.5 * n for n in numbers],
            "tags": [[f"tag {n % 4}", f"tag {n % 7}"][: n % 3] for n in numbers],
            "code": [f"code{n}" for n in numbers],
        }
    ).write_parquet(folder / "items.parquet")
    config = DataConfig(split="leave_last_out", duplicates="keep")
    prepare.run(config, folder / "events.parquet", folder / "dataset", items=folder / "items.parquet")
    return folder


def recipe(query: dict[str, Any], candidate: dict[str, Any], **sections: Any) -> Config:
    raw: dict[str, Any] = {
        "features": {"query": query, "candidate": candidate},
        "model": {"dimension": 16},
        "train": {"epochs": 2, "batch_size": 64, "metric": "recall@5", "seed": 1, "keep_state": True},
    }
    return parse_config({**raw, **{name: raw.get(name, {}) | keys for name, keys in sections.items()}})


def trained(world: Path, config: Config, name: str) -> Recaller:
    train.run(config, world / "dataset", world / f"run-{name}")
    export.run(world / f"run-{name}", world / name)
    return open_recaller(world / name)


LISTS = {
    "past": {"kind": "sequence", "max_length": 4, "item_features": ["category", "price", "tags"]},
    "pooled": {"kind": "history", "max_length": 3, "item_features": ["tags"], "pooling": "attention"},
}
SEVERAL = recipe(LISTS, WITH_KIND)


@pytest.fixture(scope="module")
def several(world: Path) -> Recaller:
    return trained(world, SEVERAL, "several")


def test_the_run_names_the_table_of_each_column(world: Path, several: Recaller) -> None:
    past, pooled = load_features(world / "run-several").query
    told = [(each.name, each.config.kind, each.table) for each in past.columns]
    assert told == [
        ("sort", "categorical", "candidate.sort"),
        ("price", "numeric", "query.past.price"),
        ("tags", "multi", "query.past.tags"),
    ]
    assert [(each.name, each.table) for each in pooled.columns] == [("tags", "query.pooled.tags")]
    raw = json.loads((world / "run-several" / "features.json").read_text())
    files = [column["vocabulary"] for spec in raw["query"] for column in spec["columns"]]
    assert [bool(file) for file in files] == [True, False, True, True] and not any(
        map(Path.is_absolute, map(Path, files))
    )
    assert [spec.name for spec in several.bundle.manifest.query_features] == ["past", "pooled"]
    assets = [path.name for path in (world / "several" / "query_tower" / "assets").iterdir()]
    assert assets == [Path(past.vocabulary).name], "the columns were looked up in training"


def test_a_column_that_only_a_history_reads_is_told(world: Path) -> None:
    data = Dataset.open(world / "dataset")
    told = {line.split()[1]: line.split(maxsplit=2)[2] for line in column_lines(data, SEVERAL)[1:]}
    assert told["price"] == "numeric: numbers with fractions; only of the items of 'past'"
    assert told["tags"] == "multi: lists; only of the items of 'past', 'pooled'"
    assert told["category"] == "categorical: feature 'sort' of the recipe"


def test_the_tower_gives_the_vectors_of_training_from_ids_alone(world: Path, several: Recaller) -> None:
    bundle, data, encoder = several.bundle, Dataset.open(world / "dataset"), several.encoder
    offsets, items = seen(data, KNOWN_SPLITS)
    names = data.items["item_id"].to_list()
    lists = [items[begin:end] for begin, end in pairwise(offsets.tolist())]
    # An item without a training event has no row: it is no step of a sequence, and takes a place of a pooled history.
    known = data.items["train_count"].to_numpy() > 0
    requests = [
        {"past": [names[item] for item in each if known[item]], "pooled": [names[item] for item in each]}
        for each in lists
    ]
    assert encoder is not None and any(len(each["past"]) < len(each["pooled"]) for each in requests)
    rows = [bundle.query_rows[name] for name in data.users["user_id"]]
    found = encoder.encode(requests)
    np.testing.assert_allclose(found, bundle.query_vectors[rows], atol=1e-5)
    # The same by the tower of the run, after an event that came since.
    run, fresh = load_run(world / "run-several"), names.index("i7")
    own = np.append(items[offsets[0] : offsets[1]], fresh).astype(np.int32)
    wanted = embed_all(
        run.model.query_tower.serve, run.tables.of_users(np.zeros(1, np.int32), np.array([0, len(own)]), own)
    )
    several.planner.users.apply([(data.users["user_id"][0], Taken(2_000_000_000, 1, "i7", "event"))], anew=True)
    (embedded,) = several.embed([RecallQuery(user_id=data.users["user_id"][0])])
    several.planner.users.apply([], anew=True)
    assert embedded.source == "history"
    np.testing.assert_allclose(embedded.vector, wanted[0], atol=1e-5)


def share_of_next_kind(world: Path, recaller: Recaller) -> float:
    """The share of items of the next category among the first 10, after items that training saw as targets only."""
    events = Dataset.open(world / "dataset").events("train")
    last = np.zeros(len(events), bool)
    last[events.offsets[1:] - 1] = True
    known = sorted({*events.item[last].tolist()} - {*events.item[~last].tolist()})
    names = Dataset.open(world / "dataset").items["item_id"][known].to_list()
    (spec,) = recaller.bundle.manifest.query_features
    answers = recaller.recall_many([RecallQuery(features={spec.name: [name]}, k=10) for name in names])
    wanted = [(int(name[1:]) + 1) % KINDS for name in names]
    right = [
        [int(each[1:]) % KINDS == kind for each in answer.ids] for answer, kind in zip(answers, wanted, strict=True)
    ]
    assert len(names) > 20
    return float(np.mean(right))


@pytest.mark.long
@pytest.mark.parametrize("kind", ["sequence", "history"])
def test_the_category_of_the_last_item_tells_the_next_one_and_its_id_does_not(world: Path, kind: str) -> None:
    past = {"kind": kind, "max_length": 1, "share_item_table": False}
    past |= {"dropout": 0.0, "blocks": 1} if kind == "sequence" else {}
    sections = {"train": {"epochs": 20, "choose_epoch": False}, "model": {"combine": "concat", "query_layers": [16]}}
    candidate = {"sort": WITH_KIND["sort"]}
    with_column = recipe({"past": past | {"item_features": ["category"]}}, candidate, **sections)
    found = share_of_next_kind(world, trained(world, with_column, f"with-{kind}"))
    plain = share_of_next_kind(world, trained(world, recipe({"past": past}, candidate, **sections), f"plain-{kind}"))
    assert found > 0.95 and plain < 0.5, (found, plain)


@pytest.mark.long
def test_a_warm_start_finds_the_rows_of_the_columns(world: Path, several: Recaller, tmp_path: Path) -> None:
    summary = train.run(SEVERAL, world / "dataset", tmp_path / "run", warm_from=world / "run-several")
    cold = json.loads((world / "run-several" / "summary.json").read_text())
    first = summary["stages"][0]["history"][0]["loss"]
    assert first < cold["stages"][0]["history"][0]["loss"] - 0.05 and several.bundle.manifest.items > 0


def later_world(world: Path, folder: Path, price: pl.Expr) -> Path:
    """With more users, whose favourite is new, and more items than of any other category or tag; other prices."""
    day = FIRST - 1_000
    rows = [(f"v{user}", item, day + place) for user in range(40) for place, item in enumerate(("new0", f"i{user}"))]
    old = pl.read_parquet(world / "events.parquet")
    pl.concat([pl.DataFrame(rows, schema=old.schema, orient="row"), old]).write_parquet(folder / "events.parquet")
    items = pl.read_parquet(world / "items.parquet")
    new = [
        {"item_id": f"new{n}", "category": "a new kind", "price": 7.5, "tags": ["new tag"], "code": f"new code {n}"}
        for n in range(ITEMS)
    ]
    items = pl.concat([pl.DataFrame(new, schema=items.schema), items]).with_columns(price=price)
    items.write_parquet(folder / "items.parquet")
    config = DataConfig(split="leave_last_out", duplicates="keep")
    prepare.run(config, folder / "events.parquet", folder / "dataset", items=folder / "items.parquet")
    return folder / "dataset"


@pytest.mark.long
def test_a_warm_start_on_newer_data_moves_the_rows_and_reads_the_new_columns(
    world: Path, several: Recaller, tmp_path: Path
) -> None:
    data, runs = later_world(world, tmp_path, pl.col("price")), (tmp_path / "run", world / "run-several")
    still = recipe(LISTS, WITH_KIND, optimizer={"learning_rate": 1e-12}, train={"warm_share": 1.0})
    train.run(still, data, runs[0], warm_from=runs[1])
    here, there = map(load_run, runs)
    assert several.bundle.manifest.items > 0
    now, before = (each.model.query_tower.encoders[0].columns for each in (here, there))
    assert now is not None and before is not None
    rows = here.tables.sequences["past"].rows
    for variable, column in zip(now.values, now.encoders, strict=True):
        values = here.tables.item_columns[column.spec.table][rows > 0]
        np.testing.assert_array_equal(variable.numpy()[rows[rows > 0]], values)
    specs = [load_features(run).query[0].columns for run in runs]
    for place, name in ((0, "a new kind"), (2, "new tag")):
        words, old = (Path(each[place].vocabulary).read_text().splitlines() for each in specs)
        assert words[: len(old)] != old and {*words} - {*old} == {name}
        mine, its = (each.encoders[place].table.numpy() for each in (now, before))
        kept = [words.index(word) for word in old]
        np.testing.assert_allclose(mine[1:][kept], its[1 : 1 + len(old)], atol=1e-5)


def test_a_warm_start_refuses_a_column_that_became_another_kind(world: Path, several: Recaller, tmp_path: Path) -> None:
    data = later_world(world, tmp_path, pl.when(pl.col("price") > 300).then(pl.lit("dear")).otherwise(pl.lit("cheap")))
    assert several.bundle.manifest.items > 0
    message = r"query\.past\.price: its column is of kind 'categorical' here and was 'numeric' there; add a feature"
    with pytest.raises(ConfigError, match=message):
        train.run(SEVERAL, data, tmp_path / "run", warm_from=world / "run-several")


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (
            ["categroy"],
            r"item_features: the items have no column 'categroy'; they have category, .*; did you mean 'category'",
        ),
        (
            ["code"],
            r"item_features: 'code' becomes no feature by itself \(480 different words in 480 rows: a key\); add one",
        ),
        (["price", "price"], r"item_features: names 'price' twice"),
        ([""], r"item_features\.0: "),
    ],
)
@pytest.mark.parametrize("kind", ["history", "sequence"])
def test_columns_that_cannot_be_read_are_refused(
    world: Path, tmp_path: Path, kind: str, names: list[str], message: str
) -> None:
    with pytest.raises(ConfigError, match=rf"features\.query\.past\.({kind}\.)?{message}"):
        check.run(recipe({"past": {"kind": kind, "item_features": names}}, IDS), world / "dataset")
    with pytest.raises(ConfigError, match=message):
        train.run(recipe({"past": {"kind": kind, "item_features": names}}, IDS), world / "dataset", tmp_path / "run")


def test_the_width_of_a_derived_column_is_compared_with_that_of_the_history(world: Path) -> None:
    past = {"kind": "history", "item_features": ["category"], "share_item_table": False, "dimension": 4}
    config = parse_config({"features": {"query": {"past": past}}, "model": {"dimension": 16, "combine": "concat"}})
    told = r"past\.item_features: 'category' shares the table of features\.candidate\.category, of width 16"
    with pytest.raises(ConfigError, match=told):
        check.run(config, world / "dataset")


def test_widths_that_cannot_be_added_are_refused(world: Path) -> None:
    concat = {"combine": "concat"}
    narrow = WITH_KIND | {"sort": {"kind": "categorical", "column": "category", "dimension": 3}}
    past = {"past": {"kind": "history", "item_features": ["category"]}}
    with pytest.raises(
        ConfigError, match=r"past\.item_features: 'category' shares the table of features\.candidate\.sort, of width 3"
    ):
        recipe(past, narrow, model=concat)
    both = narrow | {"item_id": {"kind": "id", "dimension": 3}}
    check.run(recipe(past, both, model=concat), world / "dataset")
    # A table of its own has the width of the items'.
    own = {
        "past": {"kind": "history", "item_features": ["category", "tags"], "share_item_table": False, "dimension": 3}
    }
    check.run(recipe(own, narrow, model=concat), world / "dataset")
    # Of two features of one column the history shares the first, so the other's width does not matter.
    hashed = {"hashed": {"kind": "hashed", "column": "category", "dimension": 3}}
    check.run(recipe(past, WITH_KIND | hashed, model=concat), world / "dataset")
    with pytest.raises(ConfigError, match=r"shares the table of features\.candidate\.hashed, of width 3"):
        recipe(past, IDS | hashed | WITH_KIND, model=concat)


def test_only_histories_have_columns() -> None:
    with pytest.raises(ConfigError, match=r"item_features: no such key"):
        recipe({"past": {"kind": "neighbours", "item_features": ["category"]}}, IDS)
