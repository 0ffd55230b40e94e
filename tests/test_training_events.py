"""The events that train laid together, with and without impressions, against slow loops over the rows of the splits."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from pipelines import prepare
from pipelines.dataset import Dataset
from pipelines.training_events import training_events
from tests.split_world import SPLITS, rows_of, split_world, time_of
from towers.config import DataConfig


@pytest.fixture(params=SPLITS)
def data(tmp_path: Path, request: pytest.FixtureRequest) -> Dataset:
    return split_world(tmp_path, request.param)


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
    monkeypatch.setattr("pipelines.heldout.BLOCK_EVENTS", block)
    monkeypatch.setattr("pipelines.context.ROWS", 3)
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
    assert (found.taken_past is not None) == impressions
    again = replace(found, taken_past=None)
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
