"""Which files of a folder are read: all that hold events, or the user is told which are not; numbers in names count."""

import gzip
import os
import re
from collections.abc import Mapping
from pathlib import Path

import pytest

from pipelines.dataset.dataset import Dataset
from pipelines.errors import DataError
from pipelines.ingest import prepare
from tests.support.worlds.prepared import opened, pairs
from towers.config.sections import DataConfig

HEAD = "user_id,item_id\n"


def folder_of(tmp_path: Path, files: Mapping[str, str]) -> Path:
    for name, text in files.items():
        (tmp_path / "events" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "events" / name).write_text(text)
    return tmp_path / "events"


def csvs(*names: str) -> dict[str, str]:
    """Each of the files has a user of its own."""
    return {name: f"{HEAD}u{n},a\n" for n, name in enumerate(names)}


@pytest.mark.parametrize("name", ["ratings.csv", "RATINGS.csv", "events.csv", "part-0.csv"])
def test_every_partition_of_one_name_is_read(tmp_path: Path, name: str) -> None:
    source = folder_of(tmp_path, csvs(*(f"day={day}/{name}" for day in (1, 2, 10))))
    data = opened(tmp_path, source)
    assert pairs(data) == [("u0", "a"), ("u1", "a"), ("u2", "a")]
    assert data.manifest.source.files == tuple(f"day={day}/{name}" for day in (1, 2, 10))
    assert data.manifest.event_columns == {"day": "number"}


def test_every_partition_of_sequences_is_read(tmp_path: Path) -> None:
    source = folder_of(tmp_path, {f"shop={shop}/sequences.txt": f"{shop} a b\n" for shop in ("eu", "us")})
    assert pairs(opened(tmp_path, source)) == [("eu", "a"), ("eu", "b"), ("us", "a"), ("us", "b")]


@pytest.mark.parametrize(
    ("names", "read", "left"),
    [
        (("events.csv", "events_2026-11.csv"), "events.csv", "events_2026-11.csv"),
        (("day=1/events.csv", "day=2/part-0.csv"), "day=1/events.csv", "day=2/part-0.csv"),
        (("events.tsv", "a.csv.gz", "items.csv", "b.csv"), "events.tsv", "a.csv.gz, b.csv"),
        (("train.csv", "test.csv", "more.csv"), "train.csv, test.csv", "more.csv"),
        (("events.json.gz", "items.json", "more.json"), "events.json.gz", "more.json"),
        (("train.json", "test.json", "more.json"), "train.json, test.json", "more.json"),
        (("events.csv", *(f"e{n}.csv" for n in range(11))), "events.csv", "e0.csv, .*, e7.csv and 3 more"),
    ],
)
def test_a_file_of_events_that_would_be_left_out_is_refused(
    tmp_path: Path, names: tuple[str, ...], read: str, left: str
) -> None:
    source = folder_of(tmp_path, csvs(*names))
    told = f"^{source}: {read} would be read by name, and {left} not; rename files so that none is named events, train"
    with pytest.raises(DataError, match=told):
        opened(tmp_path, source)


@pytest.mark.parametrize(
    "names", [("1.csv", "2.csv", "test.csv"), ("1.csv", "valid.csv"), ("test.csv", "valid.csv"), ("train.csv", "1.csv")]
)
def test_a_split_without_train_or_test_is_refused(tmp_path: Path, names: tuple[str, ...]) -> None:
    source = folder_of(tmp_path, csvs(*names))
    told = f"{source}: a given split needs one train and one test file and no other events, got "
    with pytest.raises(DataError, match=re.escape(told + ", ".join(sorted(names)))):
        opened(tmp_path, source)


def test_files_that_the_user_names_are_not_left_out(tmp_path: Path) -> None:
    files = csvs("events.csv") | {"catalogue.csv": "item_id,colour\na,red\n", "people.csv": "user_id,age\nu0,3\n"}
    source = folder_of(tmp_path, files)
    data = opened(tmp_path, source, items=source / "catalogue.csv", users=f"{source}/../events/people.csv")
    assert data.items["colour"].to_list() == ["red"] and data.users["age"].to_list() == [3]


@pytest.mark.parametrize(
    ("files", "left"),
    [
        (csvs("ratings.csv", "tags.csv", "links.csv") | {"movies.csv": "movieId,title\na,A\n"}, "links.csv, tags.csv"),
        (csvs("events.csv") | {"old.jsonl": "{}\n", "notes.md": "about\n"}, "old.jsonl"),
        ({"sequences.txt": "u0 a\n", "sequences_2.txt": "u1 a\n"}, "sequences_2.txt"),
        ({"sequences.txt": "u0 a\n", "more.json": "{}\n"}, "more.json"),
        ({"train.txt": "u0 a\n", "test.txt": "u0 b\n", "item_list.txt": "a 1\n"}, "item_list.txt"),
        (csvs("events.csv") | {"README.txt": "about\n"}, None),
    ],
)
def test_other_files_that_could_hold_events_are_named(
    tmp_path: Path, files: dict[str, str], left: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    source = folder_of(tmp_path, files)
    opened(tmp_path, source)
    said = [line for line in capsys.readouterr().err.splitlines() if "not read" in line]
    assert said == ([] if left is None else [f"{source}: not read: {left}"])


def test_items_and_users_beside_ratings_are_read_under_any_name_of_theirs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    about = {"items.csv": "item_id,colour\na,red\n", "users.csv": "user_id,age\nu0,3\n"}
    source = folder_of(tmp_path, csvs("ratings.csv") | about)
    data = opened(tmp_path, source)
    assert data.items["colour"].to_list() == ["red"] and data.users["age"].to_list() == [3]
    # MovieLens has its own file of movies, and the other is named.
    (source / "movies.csv").write_text("movieId,title\na,A\n")
    assert opened(tmp_path, source).items["title"].to_list() == ["A"]
    assert f"{source}: not read: items.csv" in capsys.readouterr().err


def test_the_order_of_numbered_files_is_that_of_their_numbers(tmp_path: Path) -> None:
    files = {f"log_{n}.csv": f"{HEAD}u,i{n}\n" for n in range(1, 13)} | {"log_007.csv": f"{HEAD}u,i7b\n"}
    source = folder_of(tmp_path, files)
    prepare.run(DataConfig(ordered=True), source, tmp_path / "out")
    data = Dataset.open(tmp_path / "out")
    assert data.items["item_id"].gather(data.events("test").item).to_list() == ["i12"]
    assert data.items["item_id"].gather(data.events("valid").item).to_list() == ["i11"]
    assert data.manifest.source.files[5:9] == ("log_6.csv", "log_007.csv", "log_7.csv", "log_8.csv")


@pytest.mark.parametrize(
    "name",
    [
        *("part-1.csv.zst", "day=2/b.CSV.BZ2", "items.jsonl.xz", "users.parquet.zip", "items.json.7z"),
        *("part-1.csv.snappy", "part-1.csv.deflate", "part-1.csv.lzma", "part-1.csv.Z", "part-1.csv.zstd"),
    ],
)
def test_a_file_packed_otherwise_than_by_gzip_is_refused_where_its_rows_would_be_missing(
    tmp_path: Path, name: str
) -> None:
    source = folder_of(tmp_path, {**csvs("part-0.csv"), name: "packed"})
    told = f"^{source / name}: packed as {Path(name).suffix}, and only gzip is read; unpack it, or pack it as .gz$"
    with pytest.raises(DataError, match=told):
        opened(tmp_path, source)
    (source / name).unlink()
    assert pairs(opened(tmp_path, source)) == [("u0", "a")]


@pytest.mark.parametrize(
    ("events", "packed"),
    [
        ("x.inter", "x.item.zst"),
        ("x.inter", "x.user.zip"),
        ("ratings.csv", "movies.csv.zst"),
        ("backup.zip", "backup.zip"),
        ("a.txt.zst", "a.txt.zst"),
        (".", "archive.zip"),
        (".", "ratings.dat.bz2"),
    ],
)
def test_beside_or_as_the_only_file_too(tmp_path: Path, events: str, packed: str) -> None:
    texts = {"x.inter": "user_id:token\titem_id:token\nu0\ta\n", **csvs("ratings.csv")}
    source = folder_of(tmp_path, {**({events: texts[events]} if events in texts else {}), packed: "packed"})
    with pytest.raises(DataError, match=f"^{source / packed}: packed as {Path(packed).suffix}, and only gzip is read"):
        opened(tmp_path, source / events)


@pytest.mark.parametrize(
    ("events", "packed", "left"),
    [
        ("events.csv", "events.csv.zip", False),
        ("events.csv.gz", "events.csv.zst", False),
        ("day=1/part-0.csv", "day=1/part-0.CSV.ZIP", False),
        ("events.csv", "README.txt.bz2", False),
        ("events.csv", "old.json.zip", False),
        ("events.csv", "old.parquet.zst", True),
        ("part-0.csv", "old.parquet.zst", True),
        ("part-0.csv", "events.parquet.zst", True),
        ("events.csv", "impressions.csv.zst", True),
        ("events.csv", "old.csv.zst", True),
    ],
)
def test_a_packed_file_that_would_not_be_read_is_ignored_or_named(
    tmp_path: Path, events: str, packed: str, left: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    source = folder_of(tmp_path, {events: "", packed: "packed"})
    text = csvs("")[""].encode()
    (source / events).write_bytes(gzip.compress(text) if events.endswith(".gz") else text)
    assert pairs(opened(tmp_path, source)) == [("u0", "a")]
    said = [line for line in capsys.readouterr().err.splitlines() if "not read" in line]
    assert said == ([f"{source}: not read: {packed}"] if left else [])


def test_given_items_take_the_place_of_packed_ones(tmp_path: Path) -> None:
    source = folder_of(tmp_path, {**csvs("events.csv"), "items.csv.zst": "packed"})
    (tmp_path / "items.csv").write_text("item_id,colour\na,red\n")
    assert opened(tmp_path, source, items=tmp_path / "items.csv").items["colour"].to_list() == ["red"]


@pytest.mark.parametrize(
    ("names", "train", "test"),
    [
        (("train-00000-of-00001", "test-00000-of-00001"), "train-00000-of-00001", "test-00000-of-00001"),
        (("train-0", "train-1", "validation-0", "test-0"), "train-0", "test-0"),
        (("ml_train", "ml_test"), "ml_train", "ml_test"),
        (("part=1/ml.train.2020", "part=2/ml.test.2020"), "part=1/ml.train.2020", "part=2/ml.test.2020"),
        (("split=train/part-0", "split=test/part-0"), "split=train/part-0", "split=test/part-0"),
        (("TrainSet", "TestSet"), "TrainSet", "TestSet"),
        (("train1", "test1"), "train1", "test1"),
        (("training_set", "test_set"), "training_set", "test_set"),
        (("trainData", "testData"), "trainData", "testData"),
        (("train (1)", "test (1)"), "train (1)", "test (1)"),
    ],
)
def test_parts_of_a_split_under_other_names_are_not_read_as_one_log(
    tmp_path: Path, names: tuple[str, ...], train: str, test: str
) -> None:
    source = folder_of(tmp_path, csvs(*(f"{name}.csv" for name in names)))
    with pytest.raises(DataError) as caught:
        opened(tmp_path, source)
    assert str(caught.value) == (
        f"{source}: {train}.csv, {test}.csv would be read as one log, test and all; for a given split make each part "
        "one file, train.*, test.* and perhaps valid.*; else rename them"
    )


def test_a_name_that_is_not_utf_8_is_refused_at_once(tmp_path: Path) -> None:
    source = folder_of(tmp_path, csvs("a.csv", "city=x/b.csv"))
    (source / "a.csv").rename(file := Path(os.fsdecode(os.fsencode(source) + b"/donn\xe9es.csv")))
    with pytest.raises(DataError, match=r"events: the name b'donn\\xe9es\.csv' is not UTF-8; rename it"):
        opened(tmp_path, source)
    file.unlink()
    (source / "city=x").rename(os.fsdecode(os.fsencode(source) + b"/city=M\xfcnchen"))
    with pytest.raises(DataError, match=r"events: the name b'city=M\\xfcnchen' is not UTF-8; rename it"):
        opened(tmp_path, source)


@pytest.mark.parametrize(
    "names",
    [
        ("ml_train_1", "ml_train_2"),
        ("latest_0", "training_0"),
        ("train_test_0", "train_test_1"),
        ("my_test", "more"),
        ("trainsets", "testsets"),
        ("test=a/transport=bus/x", "test=a/transport=train/x"),
        ("ab_test_id=1/transport=bus/x", "ab_test_id=1/transport=train/x"),
    ],
)
def test_names_that_are_no_parts_of_a_split_are_one_log(tmp_path: Path, names: tuple[str, ...]) -> None:
    source = folder_of(tmp_path, csvs(*(f"{name}.csv" for name in names)))
    assert pairs(opened(tmp_path, source)) == [("u0", "a"), ("u1", "a")]
