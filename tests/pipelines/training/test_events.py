"""The events that train laid together, with and without impressions, against slow loops over the rows of the splits."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from pipelines.dataset.dataset import Dataset
from pipelines.ingest import prepare
from pipelines.training.check import check_recipe
from pipelines.training.events import training_events
from pipelines.training.stage import build_training
from tests.support.worlds.splits import SPLITS, rows_of, split_world, time_of
from towers.config.recipe import parse_config
from towers.config.sections import DataConfig
from towers.data.examples import Examples


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
    monkeypatch.setattr("pipelines.dataset.context.ROWS", 3)
    expected = []
    for user in range(data.manifest.users):
        for split in splits:
            part, frame = data.events(split), data.context(split)
            assert part.weight is not None and frame is not None
            for row in rows_of(part, user):
                if impressions or part.weight[row] > 0:
                    values = int(part.item[row]), time_of(part, row), float(part.weight[row]), frame["place"][row]
                    expected.append((user, *values))
    found, context = training_events(data, splits, tmp_path, impressions=impressions)
    assert found.weight is not None and context is not None
    times = [None] * len(found) if found.time is None else found.time.tolist()
    places = pl.concat(context.blocks("place")).to_list()
    assert context.rows == len(found)
    assert list(zip(found.user.tolist(), found.item.tolist(), times, found.weight.tolist(), places, strict=True)) == (
        expected
    )
    assert found.offsets.tolist() == [sum(user < u for user, *_ in expected) for u in range(data.manifest.users + 1)]
    # An impression is no part of a history: those of taken events alone are read where they lie.
    assert found.stored_past is not None and (found.stored_past.place is not None) == impressions
    again = replace(found, stored_past=None)
    for name in ("item", "offsets", "time", "end", "place"):
        mapped, made = getattr(found.past, name), getattr(again.past, name)
        assert (mapped is None and made is None) or mapped.tolist() == made.tolist(), name
    if found.time is None:
        assert found.history_end is None
        return
    assert found.history_end is not None
    for event in range(len(found)):
        mine = rows_of(found, int(found.user[event]))
        earlier = [row for row in mine if found.time[row] < found.time[event]]
        assert list(range(mine[0], int(found.history_end[event]))) == earlier


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
        "user,item,time,rating,shop\n" + "".join(f"u{n % 3},i{n},{n},0,s\n" for n in range(30))
    )
    prepare.run(DataConfig(valid_share=0, test_share=0), tmp_path / "e.csv", tmp_path / "set")
    (tmp_path / "work").mkdir()
    data = Dataset.open(tmp_path / "set")
    found, context = training_events(data, ("train",), tmp_path / "work", impressions=False)
    assert (len(found), found.offsets.tolist()) == (0, [0] * (data.manifest.users + 1))
    assert context is not None and context.rows == 0 and np.asarray(found.time).tolist() == []


@pytest.mark.parametrize("name", ["item", "user", "time", "weight", "offsets"])
def test_a_feature_may_be_named_like_an_array_of_the_events(name: str, tmp_path: Path) -> None:
    data = split_world(tmp_path, "global_time")
    raw = {"features": {"query": {name: {"kind": "numeric", "column": "place"}}, "candidate": {"id": {"kind": "id"}}}}
    config = check_recipe(parse_config(raw), data)
    run = tmp_path / "run"
    run.mkdir()
    training = build_training(config, data, ("train",), run, run, validated=False)
    assert isinstance(training.batches, Examples)
    wanted = data.events("train").positives()
    for array in ("item", "user", "time", "weight", "offsets"):
        assert getattr(training.batches.events, array).tolist() == getattr(wanted, array).tolist()
    assert len(training.batches.tables.context[name]) == len(wanted)
