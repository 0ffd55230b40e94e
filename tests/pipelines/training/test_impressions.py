"""Which impressions belong to a training event, against slow loops over the rows of a file; what is refused."""

import json
import random
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from pipelines.dataset.column_lines import column_lines
from pipelines.dataset.dataset import Dataset
from pipelines.ingest import prepare
from pipelines.training import batch, check, train
from pipelines.training.check import check_recipe
from pipelines.training.events import training_events
from pipelines.training.impressions import impressions_of
from pipelines.tuning.traits import Traits
from towers.config.recipe import Config, parse_config
from towers.config.sections import DataConfig
from towers.data.impressions import AT_ONCE, NEVER, Impressions
from towers.errors import ConfigError

Row = dict[str, Any]


def world(directory: Path, split: str, *, request: str = "text") -> Dataset:
    """400 events of 20 users; a rating of 0 is an impression, and some rows name no request."""
    draw = random.Random(5)
    rows = [
        (
            f"u{draw.randrange(20)}",
            f"i{draw.randrange(15)}",
            1000 + draw.randrange(60),
            place,
            draw.randrange(3),
            draw.choice([None, 1, 2, 3]),
        )
        for place in range(400)
    ]
    frame = pl.DataFrame(rows, schema=["user", "item", "time", "place", "rating", "request"], orient="row")
    if request == "text":
        frame = frame.with_columns(("r" + pl.col("request").cast(pl.String)).alias("request"))
    frame.write_parquet(directory / "e.parquet")
    config = parse_config({"data": {"split": split, "duplicates": "keep", "valid_share": 0.2, "test_share": 0.1}}).data
    prepare.run(config, directory / "e.parquet", directory / "set")
    return Dataset.open(directory / "set")


def recipe(**loss: Any) -> Config:
    return parse_config({"loss": {"impressions": 3, **loss}, "train": {"epochs": 1, "batch_size": 16}})


def found(
    data: Dataset, splits: tuple[str, ...], directory: Path, **loss: Any
) -> tuple[list[Row], list[Row], Impressions]:
    """The rows of the file: those of positive training events in order, those of impressions that train; the result."""
    directory.mkdir()
    events, context = training_events(data, splits, directory, impressions=False)
    impressions = impressions_of(data, splits, events, context, directory / "shown", recipe(**loss).loss.sampled)
    assert impressions is not None and context is not None
    rows = pl.read_parquet(data.path.parent / "e.parquet").rows_by_key("place", unique=True, named=True)
    shown = [place for split in splits for place in places_of(data, f"{split}-impressions")]
    positive = context.collect()["place"].to_list()
    return [{**rows[each], "place": each} for each in positive], [{**rows[e], "place": e} for e in shown], impressions


def places_of(data: Dataset, part: str) -> list[int]:
    context = data.context(part)
    assert context is not None
    return list(context.collect()["place"])


def taken_at(row: Row, positives: list[Row], *, timed: bool, requests: bool) -> int:
    same = [each for each in positives if (each["user"], each["item"]) == (row["user"], row["item"])]
    if requests and row["request"] is not None and row["request"] in [each["request"] for each in same]:
        return AT_ONCE
    times = [each["time"] for each in same]
    return NEVER if not times else min(times) if timed else 0


@pytest.mark.parametrize("block", [7, 10**6])
@pytest.mark.parametrize("splits", [("train",), ("train", "valid")])
@pytest.mark.parametrize("split", ["global_time", "random", "leave_last_out"])
@pytest.mark.parametrize("request_name", [None, "text", "number"])
def test_the_impressions_of_an_event_are_those_of_its_context(
    request_name: str | None,
    split: str,
    splits: tuple[str, ...],
    block: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("pipelines.dataset.heldout.BLOCK_EVENTS", block)
    data = world(tmp_path, split, request=request_name or "text")
    timed = data.manifest.timed
    column = {} if request_name is None else {"impression_request": "request"}
    positives, shown, impressions = found(data, splits, tmp_path / "work", **column)
    items = {item: number for number, item in enumerate(data.items["item_id"])}
    assert impressions.nearest == (timed and request_name is None) and impressions.number == 3
    for row, begin, end in zip(positives, impressions.begin.tolist(), impressions.end.tolist(), strict=True):
        mine = [each for each in shown if each["user"] == row["user"]]
        if request_name is not None:
            mine = [each for each in mine if row["request"] is not None and each["request"] == row["request"]]
        elif timed:
            mine = [each for each in mine if each["time"] <= row["time"]]
            mine.sort(key=lambda each: (each["time"], -each["place"]))
        requests = request_name is not None
        wanted = [(items[each["item"]], taken_at(each, positives, timed=timed, requests=requests)) for each in mine]
        got = list(zip(impressions.item[begin:end].tolist(), impressions.taken[begin:end].tolist(), strict=True))
        assert (got if impressions.nearest else sorted(got)) == (wanted if impressions.nearest else sorted(wanted))


def test_a_batch_holds_them_and_none_of_a_later_split(tmp_path: Path) -> None:
    data = world(tmp_path, "global_time")
    trained, _ = training_events(data, ("train",), tmp_path, impressions=False)
    shown = data.events("train-impressions")
    pairs = set(zip(shown.user.tolist(), shown.item.tolist(), strict=True))
    numbers = sorted(set(trained.item.tolist()), key=lambda item: (-(trained.item == item).sum(), item))
    there = 0
    for step in range(len(trained) // 16):
        made = batch.run(recipe(), data.path, epoch=0, step=step)
        for user, ranks in zip(made.user.tolist(), made.shown.tolist(), strict=True):
            assert {(user, numbers[rank]) for rank in ranks if rank >= 0} <= pairs
            there += sum(rank >= 0 for rank in ranks)
    assert there > 100


def test_what_was_taken_of_the_same_request_is_no_negative_even_before_that(tmp_path: Path) -> None:
    rows = [("u0", item, 100, 0, "page") for item in ("a", "b", "c")]
    rows += [("u0", "a", 101, 1, "page"), ("u0", "b", 102, 1, "page"), ("u1", "c", 103, 1, "other")]
    data = plain(tmp_path, rows, [*COLUMNS, "page"])
    made = batch.run(recipe(impression_request="page"), data, epoch=0, step=0)
    shown = {(int(u), int(i)): {*s} - {-1} for u, [i], s in zip(made.user, made.item, made.shown.tolist(), strict=True)}
    # Each item was taken once, so their ranks are a, b, c.
    assert shown == {(0, 0): {2}, (0, 1): {2}, (1, 2): set()}


def test_the_name_of_a_request_is_no_derived_feature(tmp_path: Path) -> None:
    data = world(tmp_path, "global_time")
    without, given = (check_recipe(recipe(**loss), data) for loss in ({}, {"impression_request": "request"}))
    assert without.features.query is not None and given.features.query is not None
    assert set(without.features.query) - set(given.features.query) == {"request"}
    # Nor one that `towers tune` tries.
    assert "request" in Traits.of(data, without).query and "request" not in Traits.of(data, given).query
    [told] = [line for line in column_lines(data, given) if "request" in line]
    assert told.endswith("request  the names of requests, of loss.impression_request")


def plain(tmp_path: Path, rows: list[tuple[Any, ...]], columns: list[str]) -> Path:
    pl.DataFrame(rows, schema=columns, orient="row").write_parquet(tmp_path / "e.parquet")
    prepare.run(DataConfig(valid_share=0, test_share=0), tmp_path / "e.parquet", tmp_path / "set")
    return tmp_path / "set"


TAKEN = [(f"u{n % 5}", f"i{n % 7}", 100 + n, 1) for n in range(30)]
COLUMNS = ["user", "item", "time", "rating"]
REFUSED: dict[str, tuple[list[tuple[Any, ...]], list[str], dict[str, Any], str]] = {
    "no weights": (
        [row[:3] for row in TAKEN],
        COLUMNS[:3],
        {},
        r"loss.impressions: the data set has no training event of weight 0, .*data.columns.weight.* got 3",
    ),
    "no weight of 0": (TAKEN, COLUMNS, {}, "loss.impressions: the data set has no training event of weight 0"),
    "no such column": (
        [*TAKEN, ("u0", "i1", 99, 0)],
        COLUMNS,
        {"impression_request": "page"},
        "impression_request: must be a column of texts or numbers of the events; the data set has none; got 'page'",
    ),
    "a column of lists": (
        [(*row, ["a"], 3.5) for row in [*TAKEN, ("u0", "i1", 99, 0)]],
        [*COLUMNS, "tags", "price"],
        {"impression_request": "tags"},
        "of the events; the data set has price; got 'tags'",
    ),
    "all too late": (
        [*TAKEN, *((f"u{n}", "i9", 999, 0) for n in range(5)), ("u9", "i9", 0, 1)],
        COLUMNS,
        {},
        "loss.impressions: no training event has an impression before it; set it to 0",
    ),
    "of other requests": (
        [*((*row, "a") for row in TAKEN), ("u0", "i1", 99, 0, "b")],
        [*COLUMNS, "page"],
        {"impression_request": "page"},
        "loss.impressions: no training event has an impression of its own 'page'; set it to 0",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_check_and_train_refuse_data_that_has_none(case: str, tmp_path: Path) -> None:
    rows, columns, loss, message = REFUSED[case]
    data = plain(tmp_path, rows, columns)
    with pytest.raises(ConfigError, match=message):
        check.run(recipe(**loss), data)
    with pytest.raises(ConfigError, match=message):
        train.run(recipe(**loss), data, tmp_path / "run")


def test_a_training_with_refit_uses_them_and_says_nothing_else(tmp_path: Path) -> None:
    data = world(tmp_path, "global_time")
    config = parse_config(
        {
            "data": {"refit": True},
            "loss": {"impressions": 3, "impression_weight": 50.0},
            "model": {"dimension": 4},
            "train": {"epochs": 1, "batch_size": 16, "metric": "recall@2"},
        }
    )
    summary = train.run(config, data.path, tmp_path / "run")
    assert [each["stage"] for each in summary["stages"]] == ["train", "refit"]
    written = (tmp_path / "run" / "config.toml").read_text(encoding="utf-8")
    assert "impressions = 3" in written and "impression_weight = 50.0" in written
    assert json.loads((tmp_path / "run" / "summary.json").read_text(encoding="utf-8"))["stages"]
    assert not list((tmp_path / "run").rglob("taken.npy"))
