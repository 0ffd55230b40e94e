"""The types of events are kept, whatever the format: as numbers beside the events, as names in the manifest."""

import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from pipelines.dataset.dataset import Dataset
from pipelines.dataset.heldout import heldout, seen, seen_types
from pipelines.dataset.leaks import refuse_leaks
from pipelines.errors import DataError
from pipelines.forget.dataset import forget_in_dataset
from pipelines.ingest import prepare
from pipelines.ingest.columns.ids import IdForm, IdForms
from pipelines.ingest.events import read_events
from pipelines.ingest.formats.copies import local_copies
from pipelines.ingest.formats.rejects import Rejects
from pipelines.ingest.formats.source import open_source
from pipelines.training.events import training_events
from towers.config.sections import DataConfig

TYPES = ["click", "buy", None, "view"]


def frame(rows: int = 60) -> pl.DataFrame:
    """Each event of a user and an item of its own, in time order; the type is a function of the item."""
    numbers = range(rows)
    return pl.DataFrame(
        {
            "user_id": [f"u{n % 6}" for n in numbers],
            "item_id": [f"i{n % 20}" for n in numbers],
            "timestamp": [1_600_000_000 + n * 100 for n in numbers],
            "action": [TYPES[n % 20 % 4] for n in numbers],
            "weight": [0.0 if n % 5 == 0 else 1.0 for n in numbers],
        }
    )


def type_of(item_id: str) -> str | None:
    return TYPES[int(item_id[1:]) % 4]


def write(events: pl.DataFrame, path: Path) -> Path:
    if path.suffix == ".parquet":
        events.write_parquet(path)
    elif path.suffix == ".jsonl":
        events.write_ndjson(path)
    else:
        events.write_csv(path)
    return path


@pytest.mark.parametrize("suffix", ["csv", "parquet", "jsonl"])
@pytest.mark.parametrize("split", ["global_time", "random", "leave_last_out"])
def test_each_event_keeps_its_type(tmp_path: Path, suffix: str, split: str) -> None:
    path = write(frame(), tmp_path / f"events.{suffix}")
    config = DataConfig.model_validate({"split": split, "duplicates": "keep"})
    manifest = prepare.run(config, path, tmp_path / "out")
    assert manifest.event_types == ("buy", "click", "view")
    data = Dataset.open(tmp_path / "out")
    names, found = data.items["item_id"].to_list(), set()
    for part in data.parts():
        events = data.events(part)
        assert events.type is not None and events.type.dtype == np.int16
        told = [None if number < 0 else manifest.event_types[number] for number in events.type]
        assert told == [type_of(names[item]) for item in events.item]
        found |= set(told)
    assert found == set(TYPES) and len(data.parts()) == 6, "with impressions, of all types"
    refuse_leaks(data)
    (tmp_path / "joined").mkdir()
    joined, _ = training_events(data, ("train", "valid"), tmp_path / "joined", impressions=True)
    assert joined.type is not None and joined.past.type is not None
    for events in (joined, joined.past):
        assert [type_of(names[item]) for item in events.item] == [
            None if number < 0 else manifest.event_types[number] for number in events.type
        ]
    _, items = seen(data, ("train", "valid"))
    types = seen_types(data, ("train", "valid"))
    assert types is not None and [None if n < 0 else manifest.event_types[n] for n in types] == [
        type_of(names[item]) for item in items
    ]
    held = heldout(data, "test", repeats=True)
    assert held.seen_types is not None and len(held.seen_types) == len(held.seen_items) > 0
    assert [None if n < 0 else manifest.event_types[n] for n in held.seen_types] == [
        type_of(names[item]) for item in held.seen_items
    ]


def test_a_forgotten_user_takes_the_types_along(tmp_path: Path) -> None:
    prepare.run(DataConfig(duplicates="keep"), write(frame(), tmp_path / "events.csv"), tmp_path / "out")
    assert forget_in_dataset(tmp_path / "out", "u2", dry_run=False)["events"] == 10
    data = Dataset.open(tmp_path / "out")
    names = data.items["item_id"].to_list()
    for part in data.parts():
        events = data.events(part)
        assert events.type is not None
        told = [None if number < 0 else data.manifest.event_types[number] for number in events.type]
        assert told == [type_of(names[item]) for item in events.item]
    refuse_leaks(data)


@pytest.mark.parametrize("typed", [0, 1])
def test_a_file_without_types_has_events_without_one(tmp_path: Path, typed: int) -> None:
    folder = tmp_path / "events"
    folder.mkdir()
    for number, part in enumerate((frame().head(30), frame().tail(30))):
        write(part if number == typed else part.drop("action"), folder / f"part-{number}.csv")
    manifest = prepare.run(DataConfig(duplicates="keep"), folder, tmp_path / "out")
    assert manifest.type_column == "action"
    data, first = Dataset.open(tmp_path / "out"), 1_600_000_000
    for part in data.parts():
        events = data.events(part)
        assert events.type is not None and events.time is not None
        for number, item, time in zip(events.type, events.item, events.time, strict=True):
            wanted = type_of(data.items["item_id"][int(item)]) if ((time - first) // 100 >= 30) == typed else None
            assert (None if number < 0 else manifest.event_types[number]) == wanted


def test_without_a_column_of_types_nothing_is_written(tmp_path: Path) -> None:
    manifest = prepare.run(DataConfig(), write(frame().drop("action"), tmp_path / "events.csv"), tmp_path / "out")
    assert manifest.event_types == () and not any("type" in name for name in manifest.files)
    assert seen_types(Dataset.open(tmp_path / "out"), ("train",)) is None


@pytest.mark.parametrize(("number", "value"), [(-2, "no such number"), (3, "no such number")])
def test_a_number_that_is_no_type_is_refused(tmp_path: Path, number: int, value: str) -> None:
    manifest = prepare.run(DataConfig(duplicates="keep"), write(frame(), tmp_path / "events.csv"), tmp_path / "out")
    file = tmp_path / "out" / "train" / "type.npy"
    types = np.load(file)
    types[4] = number
    np.save(file, types)
    with pytest.raises(DataError, match=rf"train, row 4 .*type\.npy: {value} of a type"):
        refuse_leaks(Dataset.open(tmp_path / "out"))
    file.unlink()
    content = json.loads((tmp_path / "out" / "dataset.json").read_text())
    del content["files"]["train/type.npy"]
    (tmp_path / "out" / "dataset.json").write_text(json.dumps(content))
    with pytest.raises(DataError, match=r"train/type\.npy is missing"):
        refuse_leaks(Dataset.open(tmp_path / "out"))
    assert len(manifest.event_types) == 3


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
@pytest.mark.parametrize("wanted", [("click", "Buy"), ("Buy", "click", "view"), ("click", "buy", "")])
def test_a_wanted_type_that_no_event_has_is_refused(tmp_path: Path, suffix: str, wanted: tuple[str, ...]) -> None:
    path = write(frame(), tmp_path / f"events.{suffix}")
    absent = next(name for name in wanted if name not in TYPES)
    told = (
        rf"events\.{suffix}: data\.event_types: no event has the type '{absent}'; the types there are buy, click, view$"
    )
    with pytest.raises(DataError, match=told):
        prepare.run(DataConfig(event_types=wanted), path, tmp_path / "out")


def test_types_of_exported_events_may_be_named_before_there_are_any(tmp_path: Path) -> None:
    path = write(frame(), tmp_path / "events.parquet")
    wanted = ("buy", "event", "impression")
    assert prepare.run(DataConfig(event_types=wanted), path, tmp_path / "out").event_types == wanted[:1]


def test_a_wanted_type_may_come_late_and_after_many_others(tmp_path: Path) -> None:
    others = frame(3_000).with_columns(action=pl.format("t{}", pl.int_range(pl.len())))
    folder = tmp_path / "events"
    folder.mkdir()
    write(others, folder / "part-0.csv")
    write(frame(), folder / "part-1.csv")
    manifest = prepare.run(DataConfig(event_types=("buy", "t7"), duplicates="keep"), folder, tmp_path / "out")
    assert manifest.event_types == ("buy", "t7") and manifest.dropped == {"event_types": 3_000 - 1 + 60 * 3 // 4}


def test_newer_events_of_a_prior_need_not_have_every_type(tmp_path: Path) -> None:
    config = DataConfig(event_types=("click", "return"))
    path = write(frame(), tmp_path / "events.csv")
    with local_copies() as copies:
        source = open_source(path, None, None, "csv", config, copies, skip=False)
        events = read_events(source, config, None, Rejects(), IdForms(IdForm), every_type=False)
    assert events.types == ("click",) and len(events) == 15
