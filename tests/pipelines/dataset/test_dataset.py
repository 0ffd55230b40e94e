"""Opening and questioning a data set, against slow loops over its rows."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import pipelines.dataset.heldout
from pipelines.dataset.dataset import Dataset
from pipelines.dataset.derive_features import derive
from pipelines.dataset.heldout import heldout, heldout_users, seen
from pipelines.errors import DataError
from pipelines.forget.dataset import forget_in_dataset
from pipelines.ingest import prepare
from tests.support.worlds.splits import SPLITS, rows_of, split_world
from towers.config.sections import DataConfig


@pytest.fixture(params=SPLITS)
def data(tmp_path: Path, request: pytest.FixtureRequest) -> Dataset:
    return split_world(tmp_path, request.param)


@pytest.mark.parametrize("block", [40, 10**6])
def test_held_out_questions_are_those_of_a_slow_loop(
    data: Dataset, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipelines.dataset.heldout, "BLOCK_EVENTS", block)
    for split, earlier in (("valid", ["train"]), ("test", ["train", "valid"])):
        held, parts = data.events(split), [data.events(name) for name in earlier]
        users, targets, known, dropped = [], [], [], 0
        for user in range(data.manifest.users):
            mine = rows_of(held, user)
            before = [
                int(part.item[row])
                for part in parts
                for row in rows_of(part, user)
                if held.time is None or part.time is None or (mine and part.time[row] <= held.time[mine[0]])
            ]
            wanted = list(dict.fromkeys(int(held.item[row]) for row in mine))
            fresh = [item for item in wanted if item not in before]
            dropped += len(wanted) - len(fresh)
            if fresh:
                users.append(user)
                targets.append(fresh)
                known.append(before)
        found = heldout(data, split)
        assert found.users.tolist() == users and dropped == found.dropped_targets
        assert [x.tolist() for x in np.split(found.target_items, found.target_offsets[1:-1])] == targets
        assert [x.tolist() for x in np.split(found.seen_items, found.seen_offsets[1:-1])] == known
        assert (found.target_offsets[-1], found.seen_offsets[-1]) == (len(found.target_items), len(found.seen_items))
        assert found.users.dtype == found.target_items.dtype == found.seen_items.dtype == np.int32
        assert dropped > 0, "the world must hold repeated pairs"
        assert heldout_users(data, split).tolist() == users
        some = list(range(0, len(users), 3))
        few = heldout(data, split, found.users[some])
        assert few.users.tolist() == [users[place] for place in some]
        assert [x.tolist() for x in np.split(few.target_items, few.target_offsets[1:-1])] == [targets[n] for n in some]
        assert [x.tolist() for x in np.split(few.seen_items, few.seen_offsets[1:-1])] == [known[n] for n in some]
        times = np.split(found.seen_times, found.seen_offsets[1:-1]) if found.seen_times is not None else []
        wanted = [time for place in some for time in times[place].tolist()] if times else None
        assert (None if few.seen_times is None else few.seen_times.tolist()) == wanted


def test_seen_items_are_the_taken_ones_of_all_splits_in_order(data: Dataset) -> None:
    offsets, items = seen(data, ("train", "valid"))
    parts = [data.events("train"), data.events("valid")]
    for user in range(data.manifest.users):
        expected = [int(part.item[row]) for part in parts for row in rows_of(part, user)]
        assert items[offsets[user] : offsets[user + 1]].tolist() == expected


def test_a_split_without_events_asks_nothing(tmp_path: Path) -> None:
    (tmp_path / "e.csv").write_text("user,item\nu,a\n")
    prepare.run(DataConfig(valid_share=0, test_share=0), tmp_path / "e.csv", tmp_path / "set")
    found = heldout(Dataset.open(tmp_path / "set"), "test")
    assert (len(found.users), found.target_offsets.tolist(), found.seen_offsets.tolist()) == (0, [0], [0])


def edit(path: Path, **values: object) -> None:
    file = path / "dataset.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **values}))


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda p: (p / "dataset.json").unlink(), "not a data set"),
        (lambda p: edit(p, schema_version=4), "schema version 4, this program reads 1 to 3"),
        (lambda p: edit(p, extra=1), "extra: "),
        (lambda p: (p / "dataset.json").write_text('{"schema_version": 1, '), "the whole file: Invalid JSON"),
        (lambda p: (p / "train" / "item.npy").unlink(), "train/item.npy is missing"),
        (
            lambda p: (p / "items.parquet").write_bytes((p / "items.parquet").read_bytes()[:-9]),
            "items.parquet has .* truncated",
        ),
    ],
)
def test_a_spoilt_data_set_is_refused_with_the_reason(tmp_path: Path, spoil: object, message: str) -> None:
    (tmp_path / "e.csv").write_text("user,item\nu,a\nv,b\n")
    prepare.run(DataConfig(valid_share=0, test_share=0), tmp_path / "e.csv", tmp_path / "set")
    spoil(tmp_path / "set")  # type: ignore[operator]
    with pytest.raises(DataError, match=message):
        Dataset.open(tmp_path / "set")


def test_a_path_that_is_no_directory_is_no_data_set(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path / "none", tmp_path / "file"):
        with pytest.raises(DataError, match="not a data set"):
            Dataset.open(path)


OPENED = (lambda data: data.events("train"), lambda data: data.items, lambda data: data.users)


@pytest.mark.parametrize("opened", OPENED, ids=("events", "items", "users"))
def test_files_of_a_data_set_that_has_taken_the_place_of_the_opened_one_are_refused(
    tmp_path: Path, opened: Callable[[Dataset], object]
) -> None:
    """As `towers prepare --overwrite` beside a training, which opens files until its end."""
    (tmp_path / "e.csv").write_text("user,item\nu,a\nv,b\n")
    prepare.run(DataConfig(), tmp_path / "e.csv", tmp_path / "set")
    data, again = Dataset.open(tmp_path / "set"), Dataset.open(tmp_path / "set")
    events = data.events("train").item
    prepare.run(DataConfig(), tmp_path / "e.csv", tmp_path / "set", overwrite=True)
    opened(again)  # the same events make the same data set
    (tmp_path / "e.csv").write_text("user,item\nu,a\nv,b\nv,c\n")
    prepare.run(DataConfig(), tmp_path / "e.csv", tmp_path / "set", overwrite=True)
    with pytest.raises(DataError, match="set: another command has replaced it meanwhile"):
        opened(data)
    assert sorted(events) == [0, 1]


@pytest.mark.parametrize("opened", [lambda data: data.events("train-impressions"), lambda data: data.context("train")])
def test_a_file_that_the_new_data_set_lacks_is_no_other_error(
    tmp_path: Path, opened: Callable[[Dataset], object]
) -> None:
    (tmp_path / "e.csv").write_text("user,item,weight,device\nu,a,1,tv\nv,b,1,tv\nu,b,0,tv\n")
    prepare.run(DataConfig(), tmp_path / "e.csv", tmp_path / "set")
    data = Dataset.open(tmp_path / "set")
    opened(data)
    (tmp_path / "e.csv").write_text("user,item\nu,a\nv,b\n")
    prepare.run(DataConfig(), tmp_path / "e.csv", tmp_path / "set", overwrite=True)
    with pytest.raises(DataError, match="set: another command has replaced it meanwhile"):
        opened(data)


@pytest.mark.parametrize("name", ["week[1]", "a*b?c"])
def test_the_name_of_a_folder_is_no_pattern(tmp_path: Path, name: str) -> None:
    folder = tmp_path / name
    folder.mkdir()
    rows = "".join(f"u{n % 3},i{n},{n},{n % 2},{'tv' if n % 4 else 'phone'}\n" for n in range(30))
    (folder / "events.csv").write_text(f"user_id,item_id,timestamp,weight,device\n{rows}u0,,99,1,tv\n")
    prepare.run(DataConfig(), folder / "events.csv", folder / "dataset", on_bad_rows="skip")
    data = Dataset.open(folder / "dataset")
    assert (data.users.height, data.items.height) == (3, 30)
    assert "device" in derive(data, "query")
    context = data.context("train")
    assert context is not None
    assert len(context.collect()) == len(data.events("train"))
    assert forget_in_dataset(folder / "dataset", "u1", dry_run=False)["events"] == 10
    assert Dataset.open(folder / "dataset").users["user_id"].to_list() == ["u0", "u2"]
