"""Self-attention by the commands: trained, exported, asked by history and times; what cannot be fed is refused."""

import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from pipelines.bundles import export
from pipelines.dataset.dataset import Dataset
from pipelines.dataset.heldout import heldout, seen, seen_times
from pipelines.ingest import prepare
from pipelines.training import train
from serving.errors import RequestError
from serving.recall.loading import open_recaller
from serving.recall.query import RecallQuery
from serving.recall.recaller import Recaller
from towers.config.recipe import Config, parse_config
from towers.config.sections import DataConfig
from towers.errors import ConfigError

USERS, ITEMS, FIRST = 30, 12, 1_600_000_000


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Users who take the items one after another, some of them days apart; prepared with and without an order."""
    folder = tmp_path_factory.mktemp("world")
    taken = [(u, (u + n) % ITEMS, FIRST + u + n * n * 86_400) for u in range(USERS) for n in range(3 + u % 5)]
    frame = pl.DataFrame(taken, schema=["user_id", "item_id", "timestamp"], orient="row")
    frame = frame.with_columns(pl.format("u{}", "user_id"), pl.format("i{}", "item_id"))
    frame.write_parquet(folder / "events.parquet")
    (folder / "pairs").write_text("".join(f"u{u} i{i}\n" for u, i, _ in taken))
    prepare.run(DataConfig(split="leave_last_out"), folder / "events.parquet", folder / "dataset")
    prepare.run(DataConfig(split="random"), folder / "events.parquet", folder / "random")
    prepare.run(DataConfig(split="leave_last_out"), folder / "pairs", folder / "order", format="pairs")
    return folder


def recipe(**sequence: Any) -> Config:
    feature = {"kind": "sequence", "max_length": 4, "time_gaps": True} | sequence
    features = {"query": {"past": feature}, "candidate": {"item_id": {"kind": "id"}}}
    train_section = {"epochs": 2, "batch_size": 16, "metric": "recall@5"}
    return parse_config({"features": features, "model": {"dimension": 8}, "train": train_section})


@pytest.fixture(scope="module")
def service(world: Path) -> Recaller:
    summary = train.run(recipe(), world / "dataset", world / "run")
    # Of each user's events two are held out, and the first of the others has no history.
    assert summary["stages"][0]["examples"] == sum(max(0, 3 + u % 5 - 3) for u in range(USERS))
    export.run(world / "run", world / "bundle")
    return open_recaller(world / "bundle")


def test_a_request_with_history_and_times_gets_the_stored_vector(world: Path, service: Recaller) -> None:
    bundle, data = service.bundle, Dataset.open(world / "dataset")
    kinds = [(spec.name, spec.kind, spec.length) for spec in bundle.manifest.query_features]
    assert kinds == [("past", "history", 4), ("past_times", "history_times", 4)]
    offsets, items = seen(data, ("train", "valid"))
    times = seen_times(data, ("train", "valid"))
    assert times is not None
    names = data.items["item_id"].to_list()
    requests = [
        {"past": [names[i] for i in items[begin:end]], "past_times": times[begin:end].tolist()}
        for begin, end in pairwise(offsets.tolist())
    ]
    assert {len(request["past"]) for request in requests} == {2, 3, 4, 5, 6}
    assert service.encoder is not None
    rows = [bundle.query_rows[user] for user in data.users["user_id"]]
    np.testing.assert_allclose(service.encoder.encode(requests), bundle.query_vectors[rows], atol=1e-5)
    # A history alone is one of unknown times, wherever it comes from; an unknown item takes its time with it.
    several = next(request for request in requests if len(request["past"]) == 4)
    answers = service.recall_many(
        [
            RecallQuery(features=several),
            RecallQuery(features={name: [values[0], *values] for name, values in several.items()} | {
                "past": ["nobody", *several["past"]]
            }),
            RecallQuery(features={"past": several["past"]}),
            RecallQuery(history=several["past"]),
            RecallQuery(history=several["past"], features={"past": ["nobody"], "past_times": [5]}),
        ]
    )  # fmt: skip
    assert [answer.source for answer in answers] == ["features", "features", "features", "history", "history"]
    np.testing.assert_allclose(answers[0].scores, answers[1].scores, atol=1e-5)
    assert np.abs(answers[0].scores - answers[2].scores).max() > 1e-4
    np.testing.assert_allclose(answers[2].scores, answers[3].scores, atol=1e-5)
    np.testing.assert_allclose(answers[2].scores, answers[4].scores, atol=1e-5)


@pytest.mark.long
def test_with_every_option_of_a_block_a_request_gets_the_stored_vector(world: Path, tmp_path: Path) -> None:
    config = recipe(heads=2, forward="swiglu", gated=True, positions="distance")
    train.run(config, world / "dataset", tmp_path / "run")
    export.run(tmp_path / "run", tmp_path / "bundle")
    service, data = open_recaller(tmp_path / "bundle"), Dataset.open(world / "dataset")
    offsets, items = seen(data, ("train", "valid"))
    times = seen_times(data, ("train", "valid"))
    assert times is not None and service.encoder is not None
    names = data.items["item_id"].to_list()
    requests = [
        {"past": ["nobody", *(names[i] for i in items[begin:end])], "past_times": [0, *times[begin:end].tolist()]}
        for begin, end in pairwise(offsets.tolist())
    ]
    rows = [service.bundle.query_rows[user] for user in data.users["user_id"]]
    np.testing.assert_allclose(service.encoder.encode(requests), service.bundle.query_vectors[rows], atol=1e-5)


@pytest.mark.parametrize(
    ("features", "message"),
    [
        ({"past": ["i1", "i2"], "past_times": [5]}, r"past_times: one time for each item of past, 2 here; got 1"),
        ({"past_times": [5]}, r"past_times: one time for each item of past, 0 here; got 1"),
        ({"past_times": ["x", 5]}, r"past_times: one time for each item of past, 0 here; got 2"),
        ({"past": ["i1"], "past_times": [-1]}, r"past_times\.0: must be a whole number"),
    ],
)
def test_times_that_do_not_fit_the_history_are_refused(
    service: Recaller, features: dict[str, Any], message: str
) -> None:
    with pytest.raises(RequestError, match=message):
        service.recall(RecallQuery(features=features))


def test_the_questions_of_validation_know_the_times(world: Path) -> None:
    held = heldout(Dataset.open(world / "dataset"), "valid")
    assert held.seen_times is not None
    for question, user in enumerate(held.users.tolist()):
        times = held.seen_times[held.seen_offsets[question] : held.seen_offsets[question + 1]]
        first = times[0] - FIRST
        assert times.tolist() == [FIRST + first + n * n * 86_400 for n in range(len(times))]
        assert user < USERS
    assert heldout(Dataset.open(world / "random"), "valid").seen_times is None


@pytest.mark.parametrize(
    ("dataset", "sequence", "message"),
    [
        ("random", {}, r"features\.query\.past\.kind: 'sequence' needs the order of the events"),
        ("order", {}, r"features\.query\.past\.time_gaps: needs event times, and this data set has none"),
    ],
)
def test_what_the_data_cannot_feed_is_refused(
    world: Path, tmp_path: Path, dataset: str, sequence: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        train.run(recipe(**sequence), world / dataset, tmp_path / "run")


@pytest.mark.parametrize(
    ("key", "settings"),
    [
        ("train.recency", {"train": {"recency": 2.0}}),
        ("contrast.window", {"contrast": {"weight": 0.1, "window": 5}}),
        (
            "features.query.taken.recency",
            {"features": {"query": {"taken": {"kind": "neighbours", "recency": 2.0}}}},
        ),
        (
            "features.query.taken.cooccurrence_window",
            {"features": {"query": {"taken": {"kind": "neighbours", "cooccurrence": 2.0}}}},
        ),
    ],
)
def test_recency_and_cooccurrence_need_the_order_of_the_events(
    world: Path, tmp_path: Path, key: str, settings: dict[str, Any]
) -> None:
    config = parse_config(settings)
    with pytest.raises(ConfigError, match=rf"{re.escape(key)}: needs the order of the events"):
        train.run(config, world / "random", tmp_path / "run")


@pytest.mark.long
def test_an_order_without_times_is_enough(world: Path, tmp_path: Path) -> None:
    config = recipe(time_gaps=False)
    assert train.run(config, world / "order", tmp_path / "run")["stages"][0]["epochs"] == 2


@pytest.mark.long
@pytest.mark.parametrize(("sampler", "unlearnt"), [("in_batch", ["b0", "b1", "b2", "rare"]), ("uniform", [])])
def test_an_item_that_no_example_takes_or_draws_is_not_served_as_if_learnt(
    sampler: str, unlearnt: list[str], tmp_path: Path
) -> None:
    """Of a user's first moment no event is an example: there is nothing before it."""
    taken = [(f"u{u}", f"i{(u + n) % ITEMS}", FIRST + 86_400 * (n + 1) + u) for u in range(USERS) for n in range(6)]
    taken += [("solo", "rare", FIRST), *(("batch", f"b{n}", FIRST) for n in range(3))]
    frame = pl.DataFrame(taken, schema=["user_id", "item_id", "timestamp"], orient="row")
    frame.write_parquet(tmp_path / "events.parquet")
    prepare.run(DataConfig(split="global_time"), tmp_path / "events.parquet", tmp_path / "dataset")
    raw = recipe().model_dump(mode="json", exclude_unset=True)
    drawn = {"name": sampler} | ({"negatives": 64} if sampler == "uniform" else {})
    train.run(parse_config(raw | {"sampler": drawn}), tmp_path / "dataset", tmp_path / "run")
    export.run(tmp_path / "run", tmp_path / "bundle")
    served = {*open_recaller(tmp_path / "bundle").bundle.item_names}
    assert sorted({name for _, name, _ in taken} - served) == unlearnt
