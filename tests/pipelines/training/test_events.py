"""The events that train laid together, with and without impressions, against slow loops over the rows of the splits."""

from pathlib import Path
from typing import NamedTuple

import numpy as np
import polars as pl
import pytest

from pipelines.dataset.dataset import Dataset
from pipelines.ingest import prepare
from pipelines.training.check import check_recipe
from pipelines.training.events import training_events
from pipelines.training.stage import build_training
from tests.support.worlds.splits import SPLITS, split_world
from towers.config.recipe import parse_config
from towers.config.sections import DataConfig
from towers.data.examples import Examples


class Row(NamedTuple):
    """An event: numbers of its user and item, its time if the split has times, its weight and row in the file."""

    user: int
    item: int
    time: int | None
    weight: float
    place: int


def rows_in_order(data: Dataset, splits: tuple[str, ...], *, impressions: bool) -> list[Row]:
    """The events of the file in some splits: by user, split and, if there are any, time, else as in the file."""
    ids = [{name: number for number, name in enumerate(frame.to_series(0))} for frame in (data.users, data.items)]
    file = pl.read_parquet(data.path.parent / "e.parquet").rows_by_key("place", unique=True, named=True)
    rows = []
    for split in splits:
        frames = [context.collect() for part in data.parts(split) if (context := data.context(part)) is not None]
        own = []
        for place in pl.concat(frames)["place"]:
            each = file[place]
            time = each["time"] if data.manifest.timed else None
            own.append(Row(ids[0][each["user"]], ids[1][each["item"]], time, float(each["rating"]), place))
        rows += sorted(own, key=lambda row: (row.time or 0, row.place))
    rows = [row for row in rows if impressions or row.weight > 0]
    return sorted(rows, key=lambda row: row.user)


@pytest.fixture(scope="module", params=SPLITS)
def data(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Dataset:
    return split_world(tmp_path_factory.mktemp("world"), request.param)


@pytest.mark.parametrize("block", [7, 10**6])
@pytest.mark.parametrize("impressions", [True, False])
@pytest.mark.parametrize("splits", [("train",), ("train", "valid")])
def test_splits_laid_together_are_one_split_with_histories(
    data: Dataset,
    splits: tuple[str, ...],
    impressions: bool,
    block: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("pipelines.dataset.heldout.BLOCK_EVENTS", block)
    rows = rows_in_order(data, splits, impressions=impressions)
    found, context = training_events(data, splits, tmp_path, impressions=impressions)
    assert found.weight is not None and context is not None
    times = [None] * len(found) if found.time is None else found.time.tolist()
    places = context.collect()["place"].to_list()
    joined = zip(found.user.tolist(), found.item.tolist(), times, found.weight.tolist(), places, strict=True)
    assert [Row(*row) for row in joined] == rows
    assert found.offsets.tolist() == [sum(row.user < user for row in rows) for user in range(data.manifest.users + 1)]
    # An impression is no part of a history.
    taken = [row for row in rows if row.weight > 0]
    past = found.past
    assert list(zip(past.user.tolist(), past.item.tolist(), strict=True)) == [(row.user, row.item) for row in taken]
    assert past.offsets.tolist() == [sum(row.user < user for row in taken) for user in range(data.manifest.users + 1)]
    assert (None if past.time is None else past.time.tolist()) == (
        None if found.time is None else [row.time for row in taken]
    )
    before = [
        [taken.index(other) for other in rows[:place] if other.user == row.user and other.weight > 0]
        for place, row in enumerate(rows)
    ]
    assert (found.place is not None) == (found.positives is not None) == impressions
    if found.place is not None:
        assert found.place.tolist() == [len(each) for each in before]
    if found.time is None:
        assert found.history_end is None
        return
    assert found.history_end is not None
    for row, end in zip(rows, found.history_end.tolist(), strict=True):
        history = taken[int(past.offsets[row.user]) : end]
        assert history == [each for each in taken if each.user == row.user and each.time < row.time]


def test_one_split_without_impressions_is_read_where_it_lies(tmp_path: Path) -> None:
    (tmp_path / "e.csv").write_text("user,item,time\n" + "".join(f"u{n % 3},i{n},{n}\n" for n in range(30)))
    prepare.run(DataConfig(), tmp_path / "e.csv", tmp_path / "set")
    data = Dataset.open(tmp_path / "set")
    (tmp_path / "work").mkdir()
    found, context = training_events(data, ("train",), tmp_path / "work", impressions=False)
    assert found.item.tolist() == data.events("train").item.tolist() and context is None
    assert list((tmp_path / "work").iterdir()) == []


def test_a_split_of_impressions_alone_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "e.csv").write_text(
        "user,item,time,rating,shop\n" + "".join(f"u{n % 3},i{n},{n},{int(n < 27)},s\n" for n in range(30))
    )
    prepare.run(DataConfig(valid_share=0.1, test_share=0), tmp_path / "e.csv", tmp_path / "set")
    (tmp_path / "work").mkdir()
    data = Dataset.open(tmp_path / "set")
    found, context = training_events(data, ("valid",), tmp_path / "work", impressions=False)
    assert (len(found), found.offsets.tolist()) == (0, [0] * (data.manifest.users + 1))
    assert context is not None and context.collect().is_empty() and np.asarray(found.time).tolist() == []


@pytest.mark.parametrize("name", ["item", "user", "time", "weight", "offsets"])
def test_a_feature_may_be_named_like_an_array_of_the_events(name: str, tmp_path: Path) -> None:
    data = split_world(tmp_path, "global_time")
    raw = {"features": {"query": {name: {"kind": "numeric", "column": "place"}}, "candidate": {"id": {"kind": "id"}}}}
    config = check_recipe(parse_config(raw), data)
    run = tmp_path / "run"
    run.mkdir()
    training = build_training(config, data, ("train",), run, run, validated=False)
    assert isinstance(training.batches, Examples)
    wanted = data.events("train")
    for array in ("item", "user", "time", "weight", "offsets"):
        assert getattr(training.batches.events, array).tolist() == getattr(wanted, array).tolist()
    assert len(training.batches.tables.context[name]) == len(wanted)


@pytest.mark.parametrize("positives", [1, 9])
def test_a_history_that_no_example_has_leaves_no_rows(positives: int, tmp_path: Path) -> None:
    """Nine users who took seven items without times: with nine targets, no example has anything beside them."""
    (tmp_path / "e.csv").write_text("user,item\n" + "".join(f"u{n % 9},i{n % 7}\n" for n in range(63)))
    prepare.run(DataConfig(split="random"), tmp_path / "e.csv", tmp_path / "set")
    data = Dataset.open(tmp_path / "set")
    past = {"past": {"kind": "history", "share_item_table": False}}
    raw = {"features": {"query": past}, "loss": {"name": "sampled_softmax", "positives_per_query": positives}}
    run = tmp_path / "run"
    run.mkdir()
    training = build_training(check_recipe(parse_config(raw), data), data, ("train",), run, run, validated=False)
    assert training.task.towers.query_tower.encoders[0].table.numpy().any() == (positives == 1)


@pytest.mark.parametrize("loss", ["sampled_softmax", "full_softmax"])
def test_no_row_of_positives_is_longer_than_the_longest_list(loss: str, tmp_path: Path) -> None:
    (tmp_path / "e.csv").write_text("user,item\n" + "".join(f"u{n % 9},i{n % 7}\n" for n in range(63)))
    prepare.run(DataConfig(split="random"), tmp_path / "e.csv", tmp_path / "set")
    data = Dataset.open(tmp_path / "set")
    (run := tmp_path / "run").mkdir()
    recipe = check_recipe(parse_config({"loss": {"name": loss, "positives_per_query": 2_000}}), data)
    training = build_training(recipe, data, ("train",), run, run, validated=False)
    longest = max(np.bincount(data.events("train").user))
    assert training.batches.positives == longest == training.batches.batch(0, 0).item.shape[1]
