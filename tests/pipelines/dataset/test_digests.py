"""A changed file of a data set is refused by every command that reads it; unchanged ones are read once."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest

from pipelines.dataset import digests
from pipelines.dataset.dataset import Dataset
from pipelines.dataset.digests import refuse_changes
from pipelines.errors import DataError
from pipelines.ingest import prepare
from towers.config.sections import DataConfig


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    rows = [(f"u{n % 7}", f"i{n % 5}", 1_700_000_000 + n) for n in range(60)]
    pl.DataFrame(rows, schema=["user", "item", "time"], orient="row").write_parquet(tmp_path / "e.parquet")
    prepare.run(DataConfig(duplicates="keep"), tmp_path / "e.parquet", tmp_path / "set")
    return tmp_path / "set"


@pytest.fixture
def hashed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the files that are read."""
    names: list[str] = []
    before = digests.digest_of
    monkeypatch.setattr(digests, "digest_of", lambda path: names.append(path.name) or before(path))
    return names


def flip(path: Path) -> None:
    """Changes one byte; the size stays."""
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def test_every_file_is_compared_and_the_error_says_what_to_do(dataset: Path) -> None:
    data = Dataset.open(dataset)
    for name, info in data.manifest.files.items():
        whole = (dataset / name).read_bytes()
        flip(dataset / name)
        with pytest.raises(DataError) as caught:
            refuse_changes(Dataset.open(dataset))
        told = str(caught.value)
        assert told.startswith(f"{dataset / name}: changed since `towers prepare`") and info.sha256[:12] in told
        assert "put the file back, or prepare the data set again" in told
        (dataset / name).write_bytes(whole)
        refuse_changes(Dataset.open(dataset))


def test_files_are_read_again_only_after_a_change_of_size_or_time(dataset: Path, hashed: list[str]) -> None:
    data = Dataset.open(dataset)
    refuse_changes(data)
    assert len(hashed) == len(data.manifest.files)
    hashed.clear()
    refuse_changes(Dataset.open(dataset))
    assert hashed == []
    os.utime(dataset / "train" / "item.npy", ns=(1, 1))
    refuse_changes(data)
    assert hashed == ["item.npy"]


@pytest.mark.parametrize("content", ["", "[]", "{", '{"train/item.npy": 3}', '{"train/item.npy": [1, 2, "x"]}'])
def test_a_damaged_memory_is_no_memory(dataset: Path, hashed: list[str], content: str) -> None:
    data = Dataset.open(dataset)
    memory = dataset.parent / ".set.digests"
    memory.write_text(content)
    refuse_changes(data)
    assert len(hashed) == len(data.manifest.files) == len(json.loads(memory.read_text()))


def test_a_memory_that_cannot_be_written_costs_only_time(
    dataset: Path, hashed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError("read-only")

    monkeypatch.setattr(digests, "staged", full)
    data = Dataset.open(dataset)
    refuse_changes(data)
    refuse_changes(data)
    assert len(hashed) == 2 * len(data.manifest.files)


def checked(dataset: Path) -> None:
    from pipelines.training import check
    from towers.config.recipe import Config

    check.run(Config(), dataset)


def trained(dataset: Path) -> None:
    from pipelines.training import train
    from towers.config.recipe import Config

    train.run(Config(), dataset, dataset.parent / "run")


def tuned(dataset: Path) -> None:
    from pipelines.tuning import tune

    tune.run(dataset, dataset.parent / "tuned.toml", trials=1, metric="recall@3")


@pytest.mark.parametrize("command", [checked, trained, tuned])
def test_commands_refuse_a_changed_file_before_they_work(dataset: Path, command: Callable[[Path], None]) -> None:
    flip(dataset / "train" / "item.npy")
    before = {path.name for path in dataset.parent.iterdir()}
    with pytest.raises(DataError, match=r"train/item.npy: changed since `towers prepare`"):
        command(dataset)
    assert {path.name for path in dataset.parent.iterdir()} == before
