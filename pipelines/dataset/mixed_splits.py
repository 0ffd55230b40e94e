"""Reads the splits of schema version 1, in which impressions, of weight 0, lie among the positive events.

Each part is named by the folder that it would have now, and is a copy in memory unless all events are positive.
"""

from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from pipelines.dataset.arrays import IMPRESSIONS, map_array, map_events
from towers.data.events import Events


def events_of(part: Path) -> Events:
    """Returns the positive events of a split, or its impressions."""
    split, keep = _kept(part)
    every, positive = map_events(split), part == split
    if positive and keep.all():
        return every
    before = np.concatenate([np.zeros(1, np.int64), np.cumsum(keep == positive)])
    place = (before[:-1] - before[every.offsets[every.user]])[keep].astype(np.int32)
    return Events(
        every.user[keep],
        every.item[keep],
        before[every.offsets] if positive else every.offsets - before[every.offsets],
        None if every.time is None else every.time[keep],
        before[every.history_end[keep]] if positive and every.history_end is not None else None,
        None if every.weight is None else every.weight[keep],
        None if positive else place,
    )


def context_of(file: Path) -> pl.LazyFrame:
    """Returns the own columns of these events, named by the file that they would lie in now."""
    split, keep = _kept(file.parent)
    table = pl.scan_parquet(split / file.name)
    return table if keep.all() else table.collect().filter(pl.Series(keep)).lazy()


def _kept(part: Path) -> tuple[Path, NDArray[np.bool_]]:
    """The folder of the split, and which of its events are in the part."""
    split = part.with_name(part.name.removesuffix(IMPRESSIONS))
    return split, (map_array(split / "weight.npy") > 0) == (part == split)
