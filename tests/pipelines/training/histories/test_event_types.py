"""Histories of some types of events by the commands: what they find, what a service makes of them, what is refused."""

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from fastapi.testclient import TestClient

from pipelines.bundles import export
from pipelines.bundles.run import KNOWN_SPLITS, load_run
from pipelines.dataset.dataset import Dataset
from pipelines.dataset.heldout import seen, seen_times, seen_types
from pipelines.ingest import prepare
from pipelines.training import check, train
from pipelines.training.validation import validation
from serving.catalogue.user_events import Taken
from serving.http.app import create_app
from serving.recall.loading import open_recaller
from serving.recall.query import RecallQuery
from serving.recall.recaller import Recaller
from serving.settings import Settings
from towers.config.recipe import Config, parse_config
from towers.config.sections import DataConfig
from towers.errors import ConfigError
from towers.evaluation.encode import embed_all

USERS, ITEMS, BOUGHT, FIRST = 60, 12, 8, 1_600_000_000
KEEP = DataConfig(split="leave_last_out", duplicates="keep")


def actions(user: int) -> list[tuple[int, str]]:
    """A user buys one item after another in the order of their numbers, and clicks on any 0 to 3 before each."""
    rng = np.random.default_rng(user)
    taken: list[tuple[int, str]] = []
    for n in range(BOUGHT):
        taken += [(int(item), "click") for item in rng.integers(0, ITEMS, rng.integers(0, 4) if n else 1)]
        taken.append(((user + n) % ITEMS, "buy"))
    return taken


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The next purchase depends on the last purchase only; prepared with all events and with one of each pair."""
    folder = tmp_path_factory.mktemp("world")
    rows = [
        (f"u{user}", f"i{item}", FIRST + 1_000 * place * place + user, kind, 0 if kind == "click" and item == 0 else 1)
        for user in range(USERS)
        for place, (item, kind) in enumerate(actions(user))
    ]
    frame = pl.DataFrame(rows, schema=["user_id", "item_id", "timestamp", "action", "weight"], orient="row")
    frame = frame.with_columns(action=pl.when(pl.col("weight") == 0).then(pl.lit("show")).otherwise("action"))
    frame.write_parquet(folder / "events.parquet")
    frame.drop("action").write_parquet(folder / "plain.parquet")
    prepare.run(KEEP, folder / "events.parquet", folder / "dataset")
    prepare.run(DataConfig(split="random", duplicates="keep"), folder / "events.parquet", folder / "random")
    prepare.run(KEEP, folder / "plain.parquet", folder / "plain")
    return folder


def recipe(query: dict[str, Any], **train_section: Any) -> Config:
    features = {"query": query, "candidate": {"item_id": {"kind": "id"}}}
    section = {"epochs": 2, "batch_size": 64, "metric": "recall@5", "seed": 1} | train_section
    return parse_config({"features": features, "model": {"dimension": 16}, "train": section})


def trained(world: Path, config: Config, name: str) -> Recaller:
    train.run(config, world / "dataset", world / f"run-{name}")
    export.run(world / f"run-{name}", world / name)
    return open_recaller(world / name)


# Of every shape: pooled and in order, with a table of its own, beside a history of all types.
SEVERAL = {
    "clicks": {"kind": "history", "events": ["click"], "max_length": 3, "pooling": "attention"},
    "bought": {"kind": "sequence", "events": ["buy"], "max_length": 4, "time_gaps": True, "share_item_table": False},
    "past": {"kind": "history", "max_length": 5},
}


@pytest.fixture(scope="module")
def several(world: Path) -> Recaller:
    return trained(world, recipe(SEVERAL), "several")


def test_the_bundle_says_which_events_each_history_takes(several: Recaller) -> None:
    manifest = several.bundle.manifest
    told = {spec.name: (spec.kind, spec.length, spec.events) for spec in manifest.query_features}
    assert told == {
        "clicks": ("history", 3, ("click",)),
        "bought": ("history", 4, ("buy",)),
        "bought_times": ("history_times", 4, ()),
        "past": ("history", 5, ()),
    }
    assert manifest.event_types == ("buy", "click", "show")


def test_the_tower_gives_the_vectors_of_training(world: Path, several: Recaller) -> None:
    """The stored vectors come from the tables of training; here requests hold what lists of events say."""
    bundle, data, encoder = several.bundle, Dataset.open(world / "dataset"), several.encoder
    offsets, items = seen(data, KNOWN_SPLITS)
    times, types = seen_times(data, KNOWN_SPLITS), seen_types(data, KNOWN_SPLITS)
    assert times is not None and types is not None and encoder is not None
    names, requests = data.items["item_id"].to_list(), []
    for user, name in enumerate(data.users["user_id"]):
        own = range(offsets[user], offsets[user + 1])
        told = [(names[items[e]], data.manifest.event_types[types[e]], int(times[e])) for e in own]
        taken = actions(int(name[1:]))
        assert [(item, kind) for item, kind, _ in told] == [
            (f"i{item}", kind) for item, kind in taken if (item, kind) != (0, "click")
        ][:-1]
        requests.append(
            {
                "clicks": [item for item, kind, _ in told if kind == "click"],
                "bought": [item for item, kind, _ in told if kind == "buy"],
                "bought_times": [time for _, kind, time in told if kind == "buy"],
                "past": [item for item, _, _ in told],
            }
        )
        row = bundle.query_rows[name]
        assert bundle.item_names.at(bundle.seen(row)) == requests[-1]["past"]
    rows = [bundle.query_rows[name] for name in data.users["user_id"]]
    np.testing.assert_allclose(encoder.encode(requests), bundle.query_vectors[rows], atol=1e-5)


@pytest.mark.parametrize("kind", ["buy", "click", "event"])
def test_after_a_live_event_the_service_asks_for_the_vector_that_training_gives(
    world: Path, several: Recaller, kind: str
) -> None:
    """By the tower of the run, on the stored list and the new event: the service holds no times of stored events."""
    run = load_run(world / "run-several")
    data, names = run.dataset, run.dataset.items["item_id"].to_list()
    offsets, items = seen(data, KNOWN_SPLITS)
    types = seen_types(data, KNOWN_SPLITS)
    assert types is not None
    user = next(u for u in range(USERS) if len({*items[offsets[u] : offsets[u + 1]].tolist()}) < ITEMS)
    own = slice(int(offsets[user]), int(offsets[user + 1]))
    fresh = next(item for item in range(ITEMS) if item not in items[own])
    number = data.manifest.event_types.index(kind) if kind in data.manifest.event_types else -1
    features = run.tables.of_users(
        np.array([user], np.int32),
        np.array([0, own.stop - own.start + 1]),
        np.append(items[own], fresh).astype(np.int32),
        None,
        np.append(types[own], number).astype(np.int16),
    )
    wanted = embed_all(run.model.query_tower.serve, features)
    name = data.users["user_id"][user]
    several.planner.users.apply([(name, Taken(2_000_000_000, 1, names[fresh], kind))], anew=True)
    (embedded,) = several.embed([RecallQuery(user_id=name)])
    several.planner.users.apply([], anew=True)
    assert embedded.source == "history"
    np.testing.assert_allclose(embedded.vector, wanted[0], atol=1e-5)
    before = several.bundle.query_vectors[several.bundle.query_rows[name]]
    assert np.abs(embedded.vector - before).max() > 1e-3


def test_an_event_says_its_type_and_the_document_which_lists_there_are(world: Path, tmp_path: Path) -> None:
    event = {"id": "e1", "user_id": "new", "item_id": "i1", "time": 2_000_000_000}
    with TestClient(create_app(Settings(bundle=world / "several", state=tmp_path / "state"))) as client:
        for kind, sent in (("buy", {"bought": ["i1"], "past": ["i1"]}), ("event", {"past": ["i1"]})):
            told = {"type": kind} if kind == "buy" else {}
            body = {"events": [event | told | {"user_id": kind, "id": kind}]}
            assert client.post("/events", json=body).json() == {"added": 1}
            live, asked = (
                client.post("/embed", json={"queries": [query]}).json()
                for query in ({"user_id": kind}, {"features": sent})
            )
            assert live["vectors"] == asked["vectors"] and np.abs(live["vectors"]).max() > 0
        schemas = client.get("/openapi.json").json()["components"]["schemas"]
    features = schemas["RecallRequest"]["properties"]["features"]["anyOf"][0]["properties"]
    assert features["clicks"]["description"] == "history of events of the type 'click'; null counts as missing"
    assert features["past"]["description"] == "history; null counts as missing"
    assert schemas["Event"]["properties"]["type"]["default"] == "event"


def test_the_questions_of_validation_read_their_types(world: Path, several: Recaller) -> None:
    run = load_run(world / "run-several")
    held, _, users = validation(run.config, run.dataset, run.tables)
    assert held is not None and users is not None and len(several.bundle.query_names) == USERS
    names, rows = run.dataset.users["user_id"].to_list(), run.tables.histories["clicks"].rows
    numbers = {name: number for number, name in enumerate(run.dataset.items["item_id"])}
    for user, line in zip(users, held.query["clicks"], strict=True):
        taken = [each for each in actions(int(names[user][1:])) if each != (0, "click")][:-2]
        clicked = [int(rows[numbers[f"i{item}"]]) for item, kind in taken if kind == "click"][-3:]
        assert [int(row) for row in line if row] == clicked


def hits(world: Path, recaller: Recaller) -> float:
    """How often the best item is the last purchase, asked with all that its user did before it."""
    queries, wanted = [], []
    for user in range(USERS):
        taken = [(f"i{item}", kind) for item, kind in actions(user)]
        (spec,) = recaller.bundle.manifest.query_features
        asked = [item for item, kind in taken[:-1] if not spec.events or kind in spec.events]
        queries.append(RecallQuery(features={spec.name: asked}, k=1, exclude_seen=False))
        wanted.append(taken[-1][0])
    answers = recaller.recall_many(queries)
    return float(np.mean([answer.ids[0] == item for answer, item in zip(answers, wanted, strict=True)]))


@pytest.mark.long
def test_the_last_purchase_tells_the_next_one_and_a_plain_sequence_cannot(world: Path) -> None:
    settings = {"epochs": 30, "choose_epoch": False}
    bought = {"kind": "history", "events": ["buy"], "max_length": 1, "share_item_table": False}
    found = hits(world, trained(world, recipe({"bought": bought}, **settings), "typed"))
    past = {"kind": "sequence", "max_length": 4, "share_item_table": False, "blocks": 1, "dropout": 0.0}
    plain = hits(world, trained(world, recipe({"past": past}, **settings), "untyped"))
    assert found == 1.0 and plain < 0.5, (found, plain)


@pytest.mark.parametrize(
    ("dataset", "events", "error", "message"),
    [
        (
            "dataset",
            ["bye"],
            ConfigError,
            r"past\.events: the data set has no events of the type 'bye'; it has buy, click",
        ),
        (
            "plain",
            ["buy"],
            ConfigError,
            r"past\.events: 'buy' is a type of events, and this data set has none; prepare",
        ),
        (
            "dataset",
            ["show"],
            ConfigError,
            r"past\.events: no training event with a weight above 0 is of the type 'show'",
        ),
    ],
)
@pytest.mark.parametrize("kind", ["history", "sequence"])
def test_types_that_the_data_lack_are_refused(
    world: Path, tmp_path: Path, kind: str, dataset: str, events: list[str], error: type[Exception], message: str
) -> None:
    config = recipe({"past": {"kind": kind, "events": events}})
    with pytest.raises(error, match=message):
        check.run(config, world / dataset)
    with pytest.raises(error, match=message):
        train.run(config, world / dataset, tmp_path / "run")


@pytest.mark.parametrize(("events", "message"), [([""], "events.0: "), ("buy", "events: "), ([3], "events.0: ")])
def test_a_wrong_list_of_types_names_its_key(events: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=rf"features\.query\.past(\.history)?\.{message}"):
        recipe({"past": {"kind": "history", "events": events}})


def test_data_without_an_order_has_histories_of_types_too(world: Path, tmp_path: Path) -> None:
    clicks = {"kind": "history", "events": ["click"], "mask_share": 0.1}
    summary = train.run(recipe({"clicks": clicks}), world / "random", tmp_path / "run")
    assert summary["stages"][0]["epochs"] == 2
