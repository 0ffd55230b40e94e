"""A small data set with repeats, impressions and a column of its events, split three ways, and loops over its rows."""

import random
from pathlib import Path
from typing import Literal

import polars as pl

from pipelines.dataset.dataset import Dataset
from pipelines.ingest import prepare
from towers.config.sections import DataConfig
from towers.data.events import Events

SPLITS = ("global_time", "random", "leave_last_out")


def split_world(
    directory: Path, split: Literal["global_time", "random", "leave_last_out"], *, typed: bool = False
) -> Dataset:
    """350 events of 25 users; `place` is the row in the file, a rating of 0 an impression that nobody took up.

    With `typed` every third row is a purchase, the others are clicks.
    """
    draw = random.Random(3)
    rows = [(f"u{draw.randrange(25)}", f"i{draw.randrange(15)}", 1000 + draw.randrange(40), n) for n in range(300)]
    rows += [(f"u{user}", f"i{user % 3}", 1000, 500 + user) for user in range(25) for _ in range(2)]
    frame = pl.DataFrame(rows, schema=["user", "item", "time", "place"], orient="row")
    frame = frame.with_columns(rating=pl.col("place") % 5)
    if typed:
        frame = frame.with_columns(
            action=pl.when(pl.col("place") % 3 == 0).then(pl.lit("buy")).otherwise(pl.lit("click"))
        )
    frame.write_parquet(directory / "e.parquet")
    config = DataConfig(split=split, duplicates="keep", valid_share=0.15, test_share=0.2)
    prepare.run(config, directory / "e.parquet", directory / "set")
    return Dataset.open(directory / "set")


def rows_of(events: Events, user: int) -> list[int]:
    """The rows of one user."""
    return [row for row in range(len(events)) if events.user[row] == user]
