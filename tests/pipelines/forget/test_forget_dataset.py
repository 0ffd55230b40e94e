"""A data set of a given split and given items without a user is the one that `towers prepare` makes without it."""

import json
import shutil
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from pipelines.dataset.arrays import DTYPES
from pipelines.dataset.dataset import Dataset
from pipelines.dataset.leaks import refuse_leaks
from pipelines.dataset.manifest import digest_files
from pipelines.errors import DataError
from pipelines.forget import forget
from pipelines.forget.dataset import forget_in_dataset
from pipelines.ingest import prepare
from pipelines.ingest.formats import rejects
from pipelines.rankers.cache import Cache
from pipelines.rankers.ranker import refuse_other_data
from serving.bundle.reader import Bundle
from serving.catalogue.journal import UserEvent
from serving.catalogue.sqlite_journal import SqliteJournal
from serving.errors import BundleError
from tests.support.paths import ROOT
from towers.config.sections import DataConfig

USERS, ITEMS, EVENTS = 12, 9, 150


def write(folder: Path, gone: str | None, *, timed: bool) -> Path:
    """A given split with weights, a context column and attributes; files without the user `gone`."""
    numbers = np.random.default_rng(3)
    user, item = numbers.integers(0, USERS, EVENTS), numbers.integers(0, ITEMS, EVENTS)
    frame = pl.DataFrame(
        {
            "user_id": [f"u{n}" for n in user],
            "item_id": [f"i{n}" for n in item],
            "rating": numbers.integers(0, 3, EVENTS).astype(np.float32),
            "device": [("phone", "desk")[n] for n in numbers.integers(0, 2, EVENTS)],
        }
    )
    if timed:
        frame = frame.with_columns(timestamp=pl.int_range(EVENTS) // 4 + 1_700_000_000)
    folder.mkdir()
    for split, (begin, end) in {"train": (0, 100), "valid": (100, 125), "test": (125, 150)}.items():
        frame[begin:end].filter(pl.col("user_id") != (gone or "")).write_parquet(folder / f"{split}.parquet")
    names = [f"u{n}" for n in range(USERS + 1) if f"u{n}" != gone]  # the last one has no event
    pl.DataFrame({"user_id": names, "country": [name[-1] for name in names]}).write_csv(folder / "users.csv")
    names = [f"i{n}" for n in range(ITEMS)]
    pl.DataFrame({"item_id": names, "title": [f"title {name}" for name in names]}).write_csv(folder / "items.csv")
    config = DataConfig(duplicates="keep")
    users, items = folder / "users.csv", folder / "items.csv"
    data = folder.with_name(f"{folder.name}-data")
    for attributes in (users, items):
        attributes.rename(folder.with_name(f"{folder.name}-{attributes.name}"))
    users, items = (folder.with_name(f"{folder.name}-{each.name}") for each in (users, items))
    prepare.run(config, folder, data, users=users, items=items)
    return data


@pytest.mark.parametrize("timed", [True, False])
@pytest.mark.parametrize("user", ["u0", "u7", "u12"])
def test_it_is_what_prepare_makes_without_the_user(user: str, timed: bool, tmp_path: Path) -> None:
    path, expected = (
        write(tmp_path / "all", None, timed=timed),
        Dataset.open(write(tmp_path / "rest", user, timed=timed)),
    )
    before = Dataset.open(path)
    number = before.users["user_id"].to_list().index(user)
    events = sum(int((before.events(part).user == number).sum()) for part in before.parts())
    assert (events > 0) is (user != "u12")
    counted = {"users": 1, "events": events, "bad rows": 0}
    assert forget_in_dataset(path, user, dry_run=True) == counted
    assert digest_files(path)[0] == before.manifest.files
    assert forget_in_dataset(path, user, dry_run=False) == counted
    found = Dataset.open(path)
    assert found.users.equals(expected.users) and found.items.equals(expected.items)
    assert found.parts() == expected.parts() == before.parts() and len(found.parts()) == 6
    for split in found.parts():
        left, right = found.events(split), expected.events(split)
        for name, dtype in DTYPES.items():
            mine, its = getattr(left, name), getattr(right, name)
            assert (mine is None) == (its is None), name
            if its is not None:
                assert mine.dtype == dtype and mine.tolist() == its.tolist(), (split, name)
        mine, its = found.context(split), expected.context(split)
        assert mine is not None and its is not None and mine.collect().equals(its.collect())
    assert found.manifest.before_forget == (before.manifest.fingerprint,)
    ignored = {"config", "source", "before_forget"}
    assert found.manifest.model_dump(exclude=ignored) == expected.manifest.model_dump(exclude=ignored)
    assert digest_files(path)[0] == found.manifest.files
    refuse_leaks(found)
    assert forget_in_dataset(path, user, dry_run=False) == dict.fromkeys(counted, 0)


def test_rejected_rows_truth_and_caches_go_too(tmp_path: Path) -> None:
    (tmp_path / "world").mkdir()
    rows = ["user_id,item_id,timestamp", *(f"u{n % 3},i{n},{n}" for n in range(1, 30)), "u1,,7", "u2,i1,", "u1 ,i9,x"]
    (tmp_path / "world" / "events.csv").write_text("\n".join(rows) + "\n")
    users = ["user_id,age", "u0,1", "u1,2", "u1,3", "u2,4", "u2,5"]
    (tmp_path / "world" / "users.csv").write_text("\n".join(users) + "\n")
    path = tmp_path / "dataset"
    prepare.run(DataConfig(), tmp_path / "world", path, on_bad_rows="skip")
    Cache.beside(path).write("fitted", "key", {"x": np.arange(3)})
    before = pl.read_csv(path / "rejects.csv", infer_schema=False)
    assert before["value"].to_list().count("u1") == 1 == before["value"].to_list().count("u2")
    found = forget_in_dataset(path, "u1", dry_run=False)
    assert found["bad rows"] == 1 and found["users"] == 1
    after = pl.read_csv(path / "rejects.csv", infer_schema=False)
    assert after.equals(before.filter(pl.col("value").is_null() | (pl.col("value") != "u1")))
    assert Dataset.open(path).manifest.rejected == after.height
    assert Cache.beside(path).read("fitted", "key") is None
    forget_in_dataset(path, "u0", dry_run=False)
    journal = SqliteJournal.open(tmp_path / "state")
    journal.add_events([UserEvent("a", "u2", "i1", 5)])
    journal.close()
    with pytest.raises(DataError, match="holds no other user"):
        forget.run("u2", state=tmp_path / "state", datasets=[path])
    assert forget.run("u2", state=tmp_path / "state") == {tmp_path / "state": {"events": 1}}, "it was still there"
    assert Dataset.open(path).users["user_id"].to_list() == ["u2"]


RATINGS = [
    f"{user}::{100 + (user + n) % 9}::4::{1600000000 + 9 * user + n}" for user in range(7040, 7045) for n in range(3)
]
OBJECTS = [json.dumps({"user_id": f"é-{user}", "item_id": f"i{n % 9}"}) for user in range(7040, 7045) for n in range(3)]
ESCAPED = json.dumps("é-7042")
# Bad lines by the name of their file, each with whether its value names the user 7042 or é-7042.
LINES = {
    "ratings.dat": [(f"{user}::131", user == 7042) for user in (7042, 70421, 17042, 7041)]
    + [("7041::7042::4::9::9", True), ("7042::132::5::16::x", True)],
    "events.jsonl": [
        ('{"user_id":"é-7042","item_id":"i1"', True),
        (f'{{"user_id":{ESCAPED},"item_id":"i1"', True),
        ('{"user_id":"é-70421","item_id":"i1"', False),
        (f'{{"item_id":"{"i" * 50}","user_id":"é-7042","time":1', True),  # only a part of the id is kept
        (f'{{"item_id":"{"i" * 53}","user_id":"é-7042","time":1', True),  # half of its first letter
        (f'{{"item_id":"{"i" * 90}","user_id":"x"', False),
    ],
}


@pytest.mark.parametrize(("name", "user"), [("ratings.dat", "7042"), ("events.jsonl", "é-7042")])
def test_a_rejected_line_that_names_the_user_is_blank_afterwards(
    name: str, user: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Readers of lines keep what they cannot read, with the user and the items in it."""
    good, bad = {"ratings.dat": RATINGS, "events.jsonl": OBJECTS}[name], LINES[name]
    (tmp_path / name).write_text("\n".join([*good, *(line for line, _ in bad)]) + "\n", encoding="utf-8")
    path = tmp_path / "dataset"
    prepare.run(DataConfig(), tmp_path / name, path, on_bad_rows="skip")
    before = pl.read_csv(path / "rejects.csv", infer_schema=False)
    naming = sum(names for _, names in bad)
    assert forget_in_dataset(path, user, dry_run=True)["bad rows"] == naming
    capsys.readouterr()
    assert forget.run(user, datasets=[path])[path]["bad rows"] == naming
    assert "train again" in capsys.readouterr().out
    after = pl.read_csv(path / "rejects.csv", infer_schema=False)
    kept = [None if names else value for value, (_, names) in zip(before["value"], bad, strict=True)]
    assert after["value"].to_list() == kept and after.drop("value").equals(before.drop("value"))
    assert Dataset.open(path).manifest.rejected == after.height == len(bad)
    assert forget.run(user, datasets=[path]) == {}


def test_a_user_of_whom_only_a_bad_row_came_was_seen_by_no_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "ratings.dat").write_text("\n".join([*RATINGS, "1::2"]) + "\n")
    prepare.run(DataConfig(), tmp_path / "ratings.dat", tmp_path / "dataset", on_bad_rows="skip")
    capsys.readouterr()
    assert forget.run("1", datasets=[tmp_path / "dataset"]) == {tmp_path / "dataset": {"bad rows": 1}}
    assert capsys.readouterr().out == f"{tmp_path / 'dataset'}: removed bad rows 1\n"


@pytest.mark.parametrize("older", [False, True])
@pytest.mark.parametrize("gone", ["ada", "eve smith"])
def test_partitions_by_user_name_nobody(
    older: bool, gone: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of Eve there are bad rows alone."""
    for user, rows in (("ada", "a,1\nb,2\n,3\n"), ("bob", "a,4\nc,5\n"), ("eve%20smith", ",6\n")):
        folder = tmp_path / "events" / f"user_id={user}" / "day=1"
        folder.mkdir(parents=True)
        (folder / "part.csv").write_text(f"item,time\n{rows}")
    with monkeypatch.context() as patch:
        for module in (prepare, rejects) if older else ():
            patch.setattr(module, "without_value", lambda files, key: files)
        prepare.run(DataConfig(test_share=0), tmp_path / "events", tmp_path / "set", on_bad_rows="skip")
    for name in ("dataset.json", "rejects.csv"):
        told = (tmp_path / "set" / name).read_text()
        assert f"user_id={'ada' if older else '*'}/day=1/part.csv" in told
    told = forget_in_dataset(tmp_path / "set", gone, dry_run=False)
    named = {"names of files": 1} if older else {}
    assert told == {"users": int(gone == "ada"), "events": 2 * (gone == "ada"), "bad rows": 0} | named
    files = [path for path in (tmp_path / "set").rglob("*") if path.is_file()]
    assert not [path for path in files if gone.replace(" ", "%20").encode() in path.read_bytes()]


@pytest.mark.slow
def test_a_bundle_that_was_trained_on_it_before_is_still_reported_on_it(tmp_path: Path) -> None:
    golden, path = ROOT / "tests" / "golden", tmp_path / "data"
    shutil.copytree(golden / "dataset", path)
    shutil.copytree(golden / "bundle", tmp_path / "bundle")
    for user in Dataset.open(path).users["user_id"].head(2):
        forget.run(user, bundles=[tmp_path / "bundle"], datasets=[path])
        for bundle in (golden / "bundle", tmp_path / "bundle"):
            refuse_other_data(Bundle.open(bundle), Dataset.open(path))
    other = write(tmp_path / "other", None, timed=True)
    with pytest.raises(BundleError, match="was trained on the data set"):
        refuse_other_data(Bundle.open(golden / "bundle"), Dataset.open(other))


def test_the_truth_follows_its_users_and_items(tmp_path: Path) -> None:
    path = tmp_path / "dataset"
    shutil.copytree(ROOT / "tests" / "golden" / "dataset", path)
    data = Dataset.open(path)
    shapes = {"query_vectors": data.users.height, "item_vectors": data.items.height}
    (path / "truth").mkdir()
    for name, count in shapes.items():
        np.save(path / "truth" / f"{name}.npy", np.arange(count, dtype=np.float32)[:, np.newaxis])
    user = data.users["user_id"][5]
    forget_in_dataset(path, user, dry_run=False)
    found = Dataset.open(path)
    truth = found.truth()
    assert truth is not None
    for vectors, ids, before in (
        (truth[0], found.users["user_id"], data.users["user_id"]),
        (truth[1], found.items["item_id"], data.items["item_id"]),
    ):  # fmt: skip
        assert [before[int(row)] for row in vectors[:, 0]] == ids.to_list()
    refuse_leaks(found)
