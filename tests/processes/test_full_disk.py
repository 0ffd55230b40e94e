"""A full disk: one clear line, no half output, the last good checkpoint kept; with room again the command goes on."""

import errno
import sqlite3
import subprocess
from contextlib import closing
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import tensorflow as tf

from pipelines.dataset.arrays import ArrayWriter, new_array
from serving.files.disk_full import DiskFullError, no_room, telling_full_disk
from tests.support.worlds.interrupted import Point, make_world, same, stopped, training

TRAIN: list[Point] = [
    ("open", "/.key.", 1),
    ("open", "features.json", 1),
    ("write", "latest", 2),
    ("os.mkdir", "best", 1),  # before the first line of the TensorBoard log
    ("write", "best", 1),
    ("write", "latest", 3),
    ("write", "final", 1),
    ("open", "stage.json", 1),
    ("step", "", 1),
    ("write", "final", 1),
    ("open", "summary.json", 1),
]
PREPARE: list[Point] = [("os.mkdir", "partial", 1), ("open", "offsets.npy", 1), ("open", "dataset.json", 1)]
EXPORT: list[Point] = [("open", "popularity.npy", 1), ("tower", "query_tower", 1), ("open", "manifest.json", 1)]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = make_world(tmp_path_factory.mktemp("full_disk"))
    stopped(training(folder, folder / "whole"), [])
    return folder


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    """A folder that `stopped` makes a disk of its own."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["unshare", "-Urm", "mount", "-t", "tmpfs", "tmpfs", str(folder)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("this machine lets nobody mount a small file system of their own (unshare -Urm)")
    return folder


def refused(ends: list[dict[str, str]], out: Path) -> None:
    """Each but the last ended with one line that says what is wrong, and left no half of anything."""
    for each in ends[:-1]:
        assert each["ended"] == "2", each["told"]
        (line,) = [line for line in each["told"].splitlines() if line.startswith("error: ")]
        assert line.startswith(f"error: {out}: No space left on device; make room, then give the same command again: ")
        assert "Traceback" not in each["told"]
        assert ".partial" not in each["left"]


@pytest.mark.long
def test_training_keeps_its_last_checkpoint_and_goes_on(world: Path, disk: Path, tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    ends = stopped(training(world, disk / "run"), TRAIN, "full", disk, tmp_path / "kept")
    refused(ends, disk / "run")
    # The second checkpoint found no room, the first one is as it was.
    assert "/latest/1-step-2-best-0/weights.index" in ends[2]["left"]
    same(tmp_path / "kept" / "run", world / "whole")


@pytest.mark.long
def test_prepare_and_export_leave_nothing_and_work_again(world: Path, disk: Path, tmp_path: Path) -> None:
    config = ["--config", str(world / "recipe.toml")]
    prepare = ["prepare", "--events", str(world / "events.csv"), *config, "--out", str(disk / "dataset")]
    export = ["export", "--run", str(world / "whole"), "--out", str(disk / "bundle")]
    for words, points, out in ((prepare, PREPARE, "dataset"), (export, EXPORT, "bundle")):
        (tmp_path / out).mkdir()
        ends = stopped(words, points, "full", disk, tmp_path / out)
        refused(ends, disk / out)
        assert {each["left"] for each in ends[:-1]} == {str(disk / "filler")}
    assert (tmp_path / "dataset" / "dataset" / "dataset.json").read_bytes() == (
        world / "dataset" / "dataset.json"
    ).read_bytes()
    assert (tmp_path / "bundle" / "bundle" / "manifest.json").is_file()


@pytest.mark.long
def test_a_limit_of_file_sizes_is_told_as_a_full_disk_is(world: Path, tmp_path: Path) -> None:
    first, _ = stopped(training(world, tmp_path / "run"), [("write", "latest", 2)], "limit")
    assert first["ended"] == "2"
    assert f"error: {tmp_path / 'run'}: File too large; make room" in first["told"]
    same(tmp_path / "run", world / "whole")


def test_whichever_library_wrote_the_reason_is_found(tmp_path: Path) -> None:
    """On /dev/full, where every write finds no room."""
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("no /dev/full on this machine")
    frame = pl.DataFrame({"a": np.arange(100_000)})
    writers = {
        "text": lambda: full.write_text("x" * 100_000),
        "numpy": lambda: np.arange(100_000).tofile(full),
        "arrays": lambda: ArrayWriter(full, (100_000,), np.int64).append(np.arange(100_000)),
        "csv": lambda: frame.write_csv(full),
        "parquet": lambda: frame.write_parquet(full),
        "tensorflow": lambda: tf.io.write_file(str(full), "x" * 100_000),
    }
    for name, write in writers.items():
        with pytest.raises(DiskFullError, match=f"^{tmp_path}: ") as caught, telling_full_disk(tmp_path):
            write()
        assert no_room(caught.value.__cause__), name  # type: ignore[arg-type]
    for other in (OSError(errno.EACCES, "Permission denied"), ValueError("12 requested and 3 written"), KeyError("x")):
        assert no_room(other) is None
        with pytest.raises(type(other)), telling_full_disk(tmp_path):
            raise other


def test_an_error_that_a_full_disk_led_to_is_told_as_one(tmp_path: Path) -> None:
    """As Optuna raises others for SQLite's, one of them without its cause."""
    with closing(sqlite3.connect(tmp_path / "study.db")) as study, pytest.raises(DiskFullError) as caught:
        study.execute("PRAGMA page_size = 512")
        study.execute("CREATE TABLE trial (run TEXT)")
        study.execute("PRAGMA max_page_count = 3")
        with telling_full_disk(tmp_path):
            try:
                try:
                    study.execute("INSERT INTO trial VALUES (?)", ("x" * 10_000,))
                except sqlite3.OperationalError as error:
                    raise RuntimeError("an exception is raised during the commit") from error
            finally:
                raise AssertionError("Should not reach.")
    assert str(caught.value) == f"{tmp_path}: No space left on device"
    hidden = KeyError("x")
    hidden.__context__, hidden.__suppress_context__ = OSError(errno.ENOSPC, "No space left on device"), True
    assert no_room(hidden) is None


def test_a_mapped_array_takes_its_room_at_once(tmp_path: Path) -> None:
    """A page of a mapped file that finds no room kills the process, with no word."""
    path = tmp_path / "array.npy"
    array = new_array(path, (1000, 64), np.float32)
    assert path.stat().st_blocks * 512 >= 1000 * 64 * 4
    array[:] = 1
    array.flush()
    np.testing.assert_array_equal(np.load(path), np.ones((1000, 64), np.float32))
