"""The events that train, side by side in one set of files: several splits together, impressions left out.

In: a `Dataset` and the names of its splits. Out: `Events` and their `Context`, both memory-mapped or read in blocks: no
more of them is in memory than a block, however many there are.
"""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from pipelines.context import Context
from pipelines.dataset import Dataset
from pipelines.heldout import user_blocks
from pipelines.ingest.layout import CONTEXT, DTYPES, ArrayWriter, history_ends, map_array, map_events
from towers.events import Events, Int64s, Past
from towers.mapped import let_go


def training_events(
    dataset: Dataset, splits: Sequence[str], directory: Path, *, impressions: bool
) -> tuple[Events, Context | None]:
    """Several splits as one, in the layout of `train/`; a user's events keep the order of `splits` and their own.

    Args:
        dataset: the data set.
        splits: split names in the order of time, for example ``("train", "valid")``.
        directory: exists and gets the files; nothing where one split can be read as it is.
        impressions: keep events of weight 0, which nobody took up. Without them, histories hold none either.

    Returns:
        The events, and their own columns in the same order; None where the data set has no such columns.

    Raises:
        OSError: no room for the files.
    """
    parts = [dataset.events(split) for split in splits]
    tables = [dataset.path / split / CONTEXT for split in splits] if dataset.manifest.event_columns else []
    counts = _counts(parts, impressions)
    if len(parts) == 1 and int(counts.sum()) == len(parts[0]):
        return _with_past(parts[0], dataset, splits, directory), Context(tables) if tables else None
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
    columns = [name for name in ("item", "time", "weight") if all(getattr(part, name) is not None for part in parts)]
    written = ["user", *columns, *(["history_end"] if "time" in columns else [])]
    files: list[Path] = []
    with ExitStack() as opened:
        size = (int(offsets[-1]),)
        out = {
            name: opened.enter_context(ArrayWriter(directory / f"{name}.npy", size, DTYPES[name])) for name in written
        }
        opened.enter_context(ArrayWriter(directory / "offsets.npy", offsets.shape, DTYPES["offsets"])).append(offsets)
        for low, high in user_blocks(parts):
            own = [part.between(low, high) for part in parts]
            order = _order(own, impressions)
            values = {name: _together(own, name)[order] for name in ("user", *columns)}
            if "time" in columns:
                first = offsets[low]
                values["history_end"] = first + history_ends(offsets[low : high + 1] - first, values["time"])
            for name, file in out.items():
                file.append(values[name])
            if tables:
                files.append(directory / f"context-{len(files):05}.parquet")
                _columns(parts, own, tables, low)[order].write_parquet(files[-1])
    return _with_past(map_events(directory), dataset, splits, directory), Context(files) if tables else None


def _with_past(events: Events, dataset: Dataset, splits: Sequence[str], directory: Path) -> Events:
    """Events with impressions among them, and in files beside them what their histories are made of."""
    if events.weight is None or all((events.weight[block] > 0).all() for block in events.blocks()):
        return events
    folder = directory / "taken"
    folder.mkdir()
    taken, _ = training_events(dataset, splits, folder, impressions=False)
    with ArrayWriter(folder / "place.npy", (len(events) + 1,), np.int64) as file:
        file.append(np.zeros(1, np.int64))
        before = 0
        for block in events.blocks():
            after = before + np.cumsum(events.weight[block] > 0)
            file.append(after)
            before = after[-1]
    place, end = map_array(folder / "place.npy"), None
    if events.history_end is not None:
        with ArrayWriter(folder / "end.npy", (len(events),), np.int64) as file:
            for block in events.blocks():
                file.append(place[events.history_end[block]])
                let_go(place)
        end = map_array(folder / "end.npy")
    return replace(events, taken_past=Past(taken.item, taken.offsets, taken.time, end, place))


def _columns(parts: Sequence[Events], own: Sequence[Events], tables: Sequence[Path], low: int) -> pl.DataFrame:
    """The events' own columns of a block, laid one part after the other."""
    first = [int(part.offsets[low]) for part in parts]
    return pl.concat(
        pl.scan_parquet(table).slice(begin, len(block)).collect()
        for table, begin, block in zip(tables, first, own, strict=True)
    )


def _counts(parts: Sequence[Events], impressions: bool) -> Int64s:
    """[users] how many events of each are kept."""
    counts = np.zeros(len(parts[0].offsets) - 1, np.int64)
    for low, high in user_blocks(parts):
        own = [part.between(low, high) for part in parts]
        counts[low:high] = np.bincount(_together(own, "user")[_order(own, impressions)] - low, minlength=high - low)
    return counts


def _order(own: Sequence[Events], impressions: bool) -> Int64s:
    """Which events of a block are kept, laid one part after the other, by user and then by part."""
    # Stable, so that a user's events keep the order of the splits and, within one, of time.
    order: Int64s = np.argsort(_together(own, "user"), kind="stable")
    if impressions or any(part.weight is None for part in own):
        return order
    return order[_together(own, "weight")[order] > 0]


def _together(own: Sequence[Events], name: str) -> NDArray[Any]:
    return np.concatenate([getattr(part, name) for part in own])
