"""Data sets of a few pairs, all of them for training."""

from pathlib import Path

from pipelines.dataset.dataset import Dataset
from pipelines.ingest import prepare
from towers.config.sections import DataConfig

ALL_TRAIN = DataConfig(valid_share=0, test_share=0)


def opened(tmp_path: Path, events: Path, **options: object) -> Dataset:
    """The data set that `prepare` makes of events, in `tmp_path`."""
    prepare.run(ALL_TRAIN, events, tmp_path / "out", overwrite=True, **options)
    return Dataset.open(tmp_path / "out")


def pairs(data: Dataset) -> list[tuple[str, str]]:
    """User and item of every training event, sorted."""
    train = data.events("train")
    users, items = data.users["user_id"], data.items["item_id"]
    return sorted((users[int(u)], items[int(i)]) for u, i in zip(train.user, train.item, strict=True))
