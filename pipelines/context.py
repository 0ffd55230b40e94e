"""The events' own columns (device, …) of the splits that train, read a block at a time: they are as long as the events.

In: a `Dataset`. Out: `Context`, whose rows are those of the events; None where the data set has no such columns.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from pipelines.dataset import Dataset
from pipelines.heldout import user_blocks
from pipelines.ingest.layout import CONTEXT, merged_places
from towers.events import Events

ROWS = 100_000  # read at once


@dataclass(frozen=True)
class Context:
    """Columns in Parquet files.

    Attributes:
        files: one after another.
        keep: bool, of every row: which of them count; None for all.
    """

    files: list[Path]
    keep: NDArray[np.bool_] | None = None

    @cached_property
    def rows(self) -> int:
        """How many count."""
        if self.keep is not None:
            return int(np.count_nonzero(self.keep))
        return int(pl.scan_parquet(self.files).select(pl.len()).collect().item())

    def blocks(self, column: str) -> Iterator[pl.Series]:
        """The values of one column, in the order of the events; one empty block where there are none."""
        begin, more = 0, True
        while more:
            part = pl.scan_parquet(self.files).select(column).slice(begin, ROWS).collect()[column]
            yield part if self.keep is None else part.filter(pl.Series(self.keep[begin : begin + ROWS]))
            begin, more = begin + ROWS, len(part) == ROWS

    def kept(self, events: Events) -> "Context":
        """Of `events` those of a weight above 0, as `Events.taken` keeps them."""
        return self if events.weight is None else replace(self, keep=np.asarray(events.weight) > 0)


def context_of(dataset: Dataset, splits: Sequence[str], directory: Path) -> Context | None:
    """The columns of the events of several splits, in the order of `Dataset.merged`.

    Args:
        dataset: the data set.
        splits: split names in the order of time.
        directory: gets files where there are several splits; it exists.
    """
    if not dataset.manifest.event_columns:
        return None
    sources = [dataset.path / split / CONTEXT for split in splits]
    if len(sources) == 1:
        return Context(sources)
    parts = [dataset.events(split) for split in splits]
    files: list[Path] = []
    for low, high in user_blocks(parts):
        own = [_of_users(part, low, high) for part in parts]
        spans = [(int(part.offsets[low]), int(part.offsets[high])) for part in parts]
        frames = [
            pl.scan_parquet(source).slice(begin, end - begin).collect()
            for source, (begin, end) in zip(sources, spans, strict=True)
        ]
        order = np.argsort(np.concatenate(merged_places(own)))
        files.append(directory / f"context-{len(files):05}.parquet")
        pl.concat(frames)[order].write_parquet(files[-1])
    return Context(files)


def _of_users(events: Events, low: int, high: int) -> Events:
    """The events of some users alone; `merged_places` needs no more of them than how many each has."""
    span = slice(int(events.offsets[low]), int(events.offsets[high]))
    return Events(events.user[span], events.item[span], events.offsets[low : high + 1] - events.offsets[low])
