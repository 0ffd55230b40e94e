"""Shards: the forms of I/N, which rows they hold, and which folders they enter."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.bundles.bulk.parts import Shard
from pipelines.errors import DataError

JOB = "recall_bundle-0123456789abcdef_k-100"


@pytest.mark.parametrize("text", ["1/1", "2/8", "99999/99999"])
def test_a_shard_is_written_as_it_is_read(text: str) -> None:
    assert str(Shard.parse(text)) == text


@pytest.mark.parametrize(
    "text", ["", "0/4", "5/4", "4", "1/0", "-1/4", "1/4/2", "1 / 4", "01/4", "1/100000", "a/b", "1.0/4", "१/४", "1/4\n"]
)
def test_another_form_is_refused(text: str) -> None:
    with pytest.raises(DataError) as error:
        Shard.parse(text)
    wanted = "--shard must be I/N, part I of N with 1 <= I <= N <= 99,999, such as 2/8; got "
    assert str(error.value) == wanted + repr(text)


@given(st.integers(0, 200), st.integers(1, 12), st.integers(1, 40))
def test_shards_hold_each_row_once_in_whole_blocks_of_about_equal_number(count: int, block: int, of: int) -> None:
    parts = [Shard(number, of).rows(count, block) for number in range(1, of + 1)]
    assert [row for part in parts for row in part] == [*range(count)]
    assert all(part.start % block == 0 for part in parts if part)
    blocks = [-(-len(part) // block) for part in parts]
    assert max(blocks) - min(blocks) <= 1


def test_files_sort_in_the_order_of_the_rows(tmp_path: Path) -> None:
    files = [Shard(number, 1_000).file(tmp_path) for number in range(1, 1_001)]
    assert sorted(files) == files


def test_shards_of_one_job_share_a_folder(tmp_path: Path) -> None:
    for number in (2, 1, 2):
        shard = Shard(number, 2)
        shard.join(tmp_path / "out", JOB)
        shard.file(tmp_path / "out").touch()
        (tmp_path / "out" / "_SUCCESS").touch()  # of a scheduler
    names = {"_SUCCESS", f"_shards-00002_{JOB}", "part-00001-of-00002.parquet", "part-00002-of-00002.parquet"}
    assert {path.name for path in (tmp_path / "out").iterdir()} == names


@pytest.mark.parametrize(
    ("held", "reason"),
    [
        ("_shards-00004_" + JOB, "holds shards of 4; --shard 1/2 asks for 2"),
        ("part-00001-of-00003.parquet", "holds shards of 3; --shard 1/2 asks for 2"),
        (
            "part-00002-of-00002.parquet",
            "holds part-00002-of-00002.parquet, but no file _shards-… that names its inputs",
        ),
        ("_shards-00002_embed_bundle-0123456789abcdef", "holds shards of embed; --shard 1/2 asks for recall"),
        (
            "_shards-00002_recall_bundle-fedcba9876543210_k-5",
            "holds shards of bundle fedcba9876543210; --shard 1/2 asks for bundle 0123456789abcdef",
        ),
        ("_shards-00002_recall_bundle-0123456789abcdef_k-5", "holds shards of k 5; --shard 1/2 asks for k 100"),
        ("_shards-00002_recall_bundle-0123456789abcdef", "holds shards of another job; --shard 1/2 asks for k 100"),
        ("events.csv", "holds events.csv, which is not a shard's file"),
    ],
)
def test_a_folder_with_something_else_is_refused(tmp_path: Path, held: str, reason: str) -> None:
    (tmp_path / held).touch()
    with pytest.raises(DataError) as error:
        Shard(1, 2).join(tmp_path, JOB)
    assert str(error.value) == f"{tmp_path}: {reason}: name another --out, or remove the folder"
    assert [path.name for path in tmp_path.iterdir()] == [held]


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "out").touch()
    with pytest.raises(DataError, match="--out names a folder for the files of all shards; this is a file"):
        Shard(1, 2).join(tmp_path / "out", JOB)


def test_of_two_jobs_that_enter_at_once_neither_goes_on_unseen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = Path.touch

    def touch(self: Path, *words: object) -> None:
        original(self)
        original(self.parent / "_shards-00003_embed")

    monkeypatch.setattr(Path, "touch", touch)
    with pytest.raises(DataError, match="holds shards of 3; --shard 1/2 asks for 2"):
        Shard(1, 2).join(tmp_path / "out", JOB)
