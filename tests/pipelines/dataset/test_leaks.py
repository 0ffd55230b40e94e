"""Planted leaks: each kind is refused with an error that names the row, and an honest data set passes."""

import json
import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl
import pytest

import pipelines.dataset.heldout
import pipelines.dataset.leaks
from pipelines.dataset.dataset import Dataset
from pipelines.dataset.leaks import events_read, refuse_leaks
from pipelines.errors import DataError
from pipelines.ingest import prepare
from towers.config.sections import DataConfig


def prepared(path: Path, split: str, *, impressions: bool = False, **settings: object) -> Dataset:
    draw = random.Random(1)
    rows = [(f"u{draw.randrange(20)}", f"i{draw.randrange(40)}", 1000 + draw.randrange(90), 1.0) for _ in range(400)]
    rows += [(f"u{user}", f"i{50 + place}", 900, 1.0) for user in range(20) for place in (0, 1)]
    frame = pl.DataFrame(rows, schema=["user", "item", "time", "weight"], orient="row")
    if impressions:
        frame = frame.with_columns(weight=pl.int_range(pl.len()) % 3)
    frame.write_parquet(path / "e.parquet")
    config = DataConfig(split=split, valid_share=0.2, test_share=0.2, **settings)
    prepare.run(config, path / "e.parquet", path / "set", overwrite=True)
    return Dataset.open(path / "set")


def change(data: Dataset, name: str, row: int, value: int) -> None:
    file = data.path / f"{name}.npy"
    values = np.load(file)
    values[row] = value
    np.save(file, values)


def edit(data: Dataset, **values: object) -> None:
    file = data.path / "dataset.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **values}))


def with_earlier_event(data: Dataset) -> int:
    """A training event that has an earlier one and an equally early one before it in its user's row."""
    train = data.events("train")
    assert train.time is not None and train.history_end is not None
    return next(
        event for event in range(len(train)) if train.offsets[train.user[event]] < train.history_end[event] < event
    )


@pytest.mark.parametrize("split", ["global_time", "leave_last_out", "random"])
@pytest.mark.parametrize("duplicates", ["first", "keep"])
@pytest.mark.parametrize("impressions", [False, True])
@pytest.mark.parametrize("block", [7, 10**6])
def test_an_honest_data_set_passes_and_each_event_read_is_counted(
    tmp_path: Path, split: str, duplicates: str, impressions: bool, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("towers.data.blocks.BLOCK_ROWS", block)
    monkeypatch.setattr(pipelines.dataset.heldout, "BLOCK_EVENTS", block)
    data = prepared(tmp_path, split, duplicates=duplicates, impressions=impressions)
    assert len(data.parts()) == (6 if impressions else 3)
    told: list[float] = []
    assert refuse_leaks(data, told.append) is None
    train, every = (sum(len(data.events(part)) for part in parts) for parts in (data.parts("train"), data.parts()))
    reads = {"rows": every}
    reads |= {"histories": train} if split != "random" else {}
    reads |= {"cut-offs": every} if split == "global_time" else {}
    reads |= {"pairs": every} if duplicates == "first" else {}
    assert sum(told) == events_read(data.manifest) == sum(reads.values())
    assert (len(told) > len(data.parts()) * len(reads)) == (block == 7)


def expect_refused(data: Dataset, message: str) -> None:
    with pytest.raises(DataError, match=message) as caught:
        refuse_leaks(reopened(data))
    assert str(data.path) in str(caught.value)


def reopened(data: Dataset) -> Dataset:
    """The data set as it lies there now; sizes may have changed with a plant, so files are not checked."""
    text = (data.path / "dataset.json").read_text()
    return Dataset(data.path, type(data.manifest).model_validate_json(text))


@pytest.mark.parametrize("block", [7, 10**6])
def test_a_history_that_holds_the_target_or_later_events_is_refused(
    tmp_path: Path, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("towers.data.blocks.BLOCK_ROWS", block)
    data = prepared(tmp_path, "global_time")
    event = with_earlier_event(data)
    user = data.users["user_id"][int(data.events("train").user[event])]
    for end in (event + 1, event + 2):
        change(data, "train/history_end", event, end)
        expect_refused(
            data, rf"train, row {event} \(user '{user}'\): history_end.npy: the history holds the event itself or later"
        )


def test_a_history_that_holds_an_equally_early_event_is_refused(tmp_path: Path) -> None:
    data = prepared(tmp_path, "leave_last_out")
    event = with_earlier_event(data)
    change(data, "train/history_end", event, event)
    expect_refused(data, rf"train, row {event} \(user .*not strictly earlier")


def test_a_history_that_reaches_into_another_user_is_refused(tmp_path: Path) -> None:
    data = prepared(tmp_path, "global_time")
    event = int(data.events("train").offsets[3])
    change(data, "train/history_end", event, event - 1)
    expect_refused(data, rf"train, row {event} \(user .*events of another user")


def test_a_training_event_after_the_cut_off_is_refused(tmp_path: Path) -> None:
    data = prepared(tmp_path, "global_time")
    row = int(data.events("train").offsets[1]) - 1
    change(data, "train/time", row, data.manifest.split.boundaries["valid"])
    expect_refused(
        data, rf"train, row {row} \(user .*at or after the cut-off {data.manifest.split.boundaries['valid']}"
    )


def test_a_moved_cut_off_is_refused(tmp_path: Path) -> None:
    data = prepared(tmp_path, "global_time")
    bounds = dict(data.manifest.split.boundaries)
    edit(data, split={"kind": "global_time", "boundaries": {**bounds, "valid": bounds["valid"] - 5}})
    expect_refused(data, r"train, row \d+ .*at or after the cut-off")
    edit(data, split={"kind": "global_time", "boundaries": {**bounds, "test": bounds["test"] + 5}})
    expect_refused(data, r"test, row \d+ .*before the cut-off")
    edit(data, split={"kind": "global_time", "boundaries": {}})
    expect_refused(data, r"split.boundaries must hold valid and test")


def test_a_held_out_event_before_a_training_event_is_refused(tmp_path: Path) -> None:
    data = prepared(tmp_path, "leave_last_out")
    user = int(data.events("test").user[4])
    change(data, "test/time", 4, 1)
    expect_refused(
        data,
        rf"test, row 4 \(user '{data.users['user_id'][user]}'\): earlier than the user's last event in train or valid",
    )
    data = prepared(tmp_path, "leave_last_out")
    change(data, "valid/time", 2, 1)
    expect_refused(data, r"valid, row 2 \(user .*earlier than the user's last event in train")


def test_times_out_of_order_are_refused(tmp_path: Path) -> None:
    data = prepared(tmp_path, "global_time")
    row = int(data.events("train").offsets[5]) + 1
    change(data, "train/time", row, 1)
    expect_refused(data, rf"train, row {row} \(user .*earlier than the event before, of the same user")


@pytest.mark.parametrize("block", [7, 10**6])
def test_a_held_out_pair_that_also_trains_is_refused(
    tmp_path: Path, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipelines.dataset.heldout, "BLOCK_EVENTS", block)
    data = prepared(tmp_path, "random")
    train, test = data.events("train"), data.events("test")
    user = next(
        user for user in range(data.manifest.users) if np.diff(train.offsets)[user] and np.diff(test.offsets)[user]
    )
    row, source = int(test.offsets[user]), int(train.offsets[user])
    change(data, "test/item", row, int(train.item[source]))
    item = data.items["item_id"][int(train.item[source])]
    expect_refused(
        data, rf"test, row {row} \(user '{data.users['user_id'][user]}', item '{item}'\): .*also train, row {source}"
    )


@pytest.mark.parametrize("split", ["global_time", "random"])
def test_counts_with_held_out_events_are_refused(tmp_path: Path, split: str) -> None:
    data = prepared(tmp_path, split)
    row = int(data.events("test").item[0])
    one_more = pl.col("train_count") + (pl.int_range(pl.len()) == row).cast(pl.UInt32)
    items = data.items.with_columns(train_count=one_more)
    items.write_parquet(data.path / "items.parquet")
    counted = int((data.events("train").item == row).sum())
    expect_refused(
        data,
        rf"items.parquet, row {row} \('{items['item_id'][row]}'\): train_count is {counted + 1}, but {counted} ",
    )


def test_items_and_users_out_of_order_are_refused(tmp_path: Path) -> None:
    data = prepared(tmp_path, "random")
    items, users = data.manifest.items, data.manifest.users
    for part in ("train", "valid", "test"):
        file = data.path / part / "item.npy"
        np.save(file, (items - 1 - np.load(file)).astype(np.int32))
    original = data.items
    original.reverse().write_parquet(data.path / "items.parquet")
    expect_refused(data, r"items.parquet, row \d+: more training events than the row before")

    data = prepared(tmp_path, "random")
    train = data.events("train")
    counts = np.diff(train.offsets)[::-1]
    order = np.concatenate([np.arange(train.offsets[u], train.offsets[u + 1]) for u in range(users - 1, -1, -1)])
    item, user = train.item[order], (users - 1 - train.user[order]).astype(np.int32)
    np.save(data.path / "train" / "item.npy", item)
    np.save(data.path / "train" / "user.npy", user)
    np.save(data.path / "train" / "offsets.npy", np.concatenate(([0], np.cumsum(counts))))
    expect_refused(data, r"users.parquet, row \d+: more training events than the row before")


def of_first_impression(data: Dataset) -> tuple[int, int]:
    """An impression before its user's last training event, and the number of all these events."""
    train, shown = data.events("train"), data.events("train-impressions")
    assert train.time is not None and shown.time is not None
    ends = train.offsets[shown.user.astype(np.int64) + 1]
    row = int(np.flatnonzero((np.diff(train.offsets)[shown.user] > 0) & (train.time[ends - 1] > shown.time))[0])
    return row, int(np.diff(train.offsets)[shown.user[row]])


def hold_out_before_the_last_positive(data: Dataset) -> None:
    """Moves a user's validation event between the last impression and the last positive event of their training."""
    times, ends = [], []
    for part in ("train", "train-impressions"):
        events = data.events(part)
        assert events.time is not None
        times.append(events.time)
        ends.append(events.offsets[1:] - 1)
    counts = [np.diff(data.events(part).offsets) for part in ("train", "train-impressions", "valid")]
    users = np.flatnonzero((np.array(counts) > 0).all(axis=0))
    user = next(user for user in users if times[0][ends[0][user]] > times[1][ends[1][user]])
    change(data, "valid/time", int(data.events("valid").offsets[user]), int(times[0][ends[0][user]]) - 1)


PLANTS: dict[str, tuple[str, Callable[[Dataset], None], str]] = {
    "event of another user": (
        "random",
        lambda d: change(d, "train/user", 0, 3),
        r"train, row 0 \(user .*outside its user's offsets",
    ),
    "no such user": (
        "random",
        lambda d: change(d, "valid/user", 1, 999),
        r"valid, row 1: user.npy: no such user number",
    ),
    "no such item": ("random", lambda d: change(d, "test/item", 2, 999), r"test, row 2 \(user .*no such item number"),
    "negative item": ("random", lambda d: change(d, "train/item", 2, -1), r"train, row 2 \(user .*no such item number"),
    "offsets that fall": ("random", lambda d: change(d, "train/offsets", 5, 0), r"train/offsets.npy, row 5: falls"),
    "offsets that end early": (
        "random",
        lambda d: change(d, "valid/offsets", -1, 1),
        r"valid/offsets.npy must go from 0 to",
    ),
    "times in a random split": (
        "random",
        lambda d: np.save(d.path / "train" / "time.npy", np.zeros(3, np.int64)),
        r"train/time.npy must not be there",
    ),
    "histories of held-out events": (
        "global_time",
        lambda d: np.save(d.path / "test" / "history_end.npy", np.zeros(3, np.int64)),
        "must not be there",
    ),
    "no histories": (
        "global_time",
        lambda d: (d.path / "train" / "history_end.npy").unlink(),
        "history_end.npy is missing",
    ),
    "short weights": (
        "random",
        lambda d: np.save(d.path / "train" / "weight.npy", np.ones(3, np.float32)),
        "weight.npy has 3 rows",
    ),
    "a timed random split": (
        "global_time",
        lambda d: edit(d, split={"kind": "random", "boundaries": {}}),
        "a random split cannot be timed",
    ),
    "two held out of one user": (
        "global_time",
        lambda d: edit(d, split={"kind": "leave_last_out", "boundaries": {}}),
        r"row \d+: leave_last_out holds",
    ),
    "a history of an impression of another user": (
        "global_time, impressions",
        lambda d: change(d, "train-impressions/place", 4, -1),
        r"train-impressions, row 4 \(user .*place.npy: the history holds events of another user",
    ),
    "a history of an impression with more than all": (
        "global_time, impressions",
        lambda d: change(d, "train-impressions/place", 4, 99),
        r"train-impressions, row 4 \(user .*place.npy: the history holds the event itself or later ones",
    ),
    "a history of an impression with a later event": (
        "global_time, impressions",
        lambda d: change(d, "train-impressions/place", *of_first_impression(d)),
        r"train-impressions, row \d+ \(user .*place.npy: the history holds an event that is not strictly earlier",
    ),
    "an impression after the cut-off": (
        "global_time, impressions",
        lambda d: change(d, "train-impressions/time", int(d.events("train-impressions").offsets[1]) - 1, 10**4),
        r"train-impressions, row \d+ \(user .*at or after the cut-off",
    ),
    "a held-out impression before a training event": (
        "leave_last_out, impressions",
        lambda d: change(d, "test-impressions/time", 2, 1),
        r"test-impressions, row 2 \(user .*earlier than the user's last event in train or valid",
    ),
    "a held-out event before a training event, but after all impressions": (
        "leave_last_out, impressions",
        hold_out_before_the_last_positive,
        r"valid, row \d+ \(user .*earlier than the user's last event in train",
    ),
    "an impression that the manifest does not count": (
        "random, impressions",
        lambda d: edit(d, events={**d.manifest.events, "valid": d.manifest.events["valid"] - 1}),
        r"valid/user.npy has [\d,]+ rows, the manifest says",
    ),
    "impressions without places": (
        "random, impressions",
        lambda d: (d.path / "valid-impressions" / "place.npy").unlink(),
        "valid-impressions/place.npy is missing",
    ),
    "an item too many": ("random", lambda d: edit(d, items=d.manifest.items + 1), "another number of rows"),
}


@pytest.mark.parametrize("plant", PLANTS)
def test_arrays_that_contradict_each_other_are_refused(tmp_path: Path, plant: str) -> None:
    world, spoil, message = PLANTS[plant]
    split, _, impressions = world.partition(", ")
    data = prepared(tmp_path, split, impressions=bool(impressions))
    spoil(data)
    expect_refused(data, message)
