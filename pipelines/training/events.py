"""Builds the training events: joins several splits into one set of files, if wanted without impressions.

The events and their context are memory-mapped or read in blocks, so memory holds one block at most.
"""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from pipelines.dataset.arrays import CONTEXT, DTYPES, ArrayWriter, map_array, map_events
from pipelines.dataset.context import Context
from pipelines.dataset.dataset import Dataset
from pipelines.dataset.heldout import user_blocks
from towers.data.blocks import blocks
from towers.data.events import Events, Int64s
from towers.data.history import PositiveEvents, history_ends


def training_events(
    dataset: Dataset, splits: Sequence[str], directory: Path, *, impressions: bool
) -> tuple[Events, Context | None]:
    """Joins several splits in the layout of `train/`; each user's events keep the order of `splits`, then their own.

    Args:
        dataset: the data set.
        splits: split names in time order, for example ``("train", "valid")``.
        directory: an existing directory for the files; a single split is read in place if possible.
        impressions: keep events of weight 0, which the user did not act on. Histories never hold them.

    Returns:
        The events, and their own columns in the same order, or None if the data set has no such columns.

    Raises:
        OSError: the disk is full.
    """
    parts = [dataset.events(split) for split in splits]
    tables = [dataset.path / split / CONTEXT for split in splits] if dataset.manifest.event_columns else []
    if len(parts) == 1 and (impressions or _all_positive(parts)):
        events, files = parts[0], tables
    else:
        files = _write(parts, tables, directory, tuple(DTYPES), impressions=impressions)
        events = map_events(directory)
    return _with_past(events, parts, directory), Context(files) if tables else None


def _all_positive(parts: Sequence[Events]) -> bool:
    return all(part.weight is None or (part.weight[block] > 0).all() for part in parts for block in blocks(part.item))


def _write(
    parts: Sequence[Events], tables: Sequence[Path], directory: Path, names: Sequence[str], *, impressions: bool
) -> list[Path]:
    """Writes those arrays of `names` that every part has, joined; returns the files of the events' own columns."""
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(_counts(parts, impressions))])
    sources = {name: "time" if name == "history_end" else name for name in names if name != "offsets"}
    there = {name: of for name, of in sources.items() if all(getattr(part, of) is not None for part in parts)}
    files: list[Path] = []
    with ExitStack() as opened:

        def opened_for(name: str, size: int) -> ArrayWriter:
            return opened.enter_context(ArrayWriter(directory / f"{name}.npy", (size,), DTYPES[name]))

        opened_for("offsets", len(offsets)).append(offsets)
        out = {name: opened_for(name, int(offsets[-1])) for name in there}
        for low, high in user_blocks(parts):
            own = [part.between(low, high) for part in parts]
            order = _order(own, impressions)
            for name, file in out.items():
                values = _together(own, there[name])[order]
                if name == "history_end":
                    first = offsets[low]
                    values = first + history_ends(offsets[low : high + 1] - first, values)
                file.append(values)
            if tables:
                files.append(directory / f"context-{len(files):05}.parquet")
                _columns(parts, own, tables, low)[order].write_parquet(files[-1])
    return files


def _with_past(events: Events, parts: Sequence[Events], directory: Path) -> Events:
    """Adds the events that histories are made of, in separate files if the events include impressions."""
    if _all_positive([events]):
        return replace(events, stored_past=PositiveEvents(events.item, events.offsets, events.time, events.history_end))
    folder = directory / "positives"
    folder.mkdir()
    _write(parts, [], folder, ("item", "offsets", "time"), impressions=False)
    with ArrayWriter(folder / "place.npy", (len(events) + 1,), np.int64) as file:
        file.append(np.zeros(1, np.int64))
        before = 0
        for block in blocks(events.item):
            after = before + np.cumsum(np.asarray(events.weight)[block] > 0)
            file.append(after)
            before = after[-1]
    place = map_array(folder / "place.npy")
    if events.history_end is not None:
        with ArrayWriter(folder / "end.npy", (len(events),), np.int64) as file:
            for block in blocks(events.item):
                file.append(place[events.history_end[block]])
    paths = {name: folder / f"{name}.npy" for name in ("item", "offsets", "time", "end")}
    arrays: dict[str, Any] = {name: map_array(path) if path.is_file() else None for name, path in paths.items()}
    return replace(events, stored_past=PositiveEvents(**arrays, place=place))


def _columns(parts: Sequence[Events], own: Sequence[Events], tables: Sequence[Path], low: int) -> pl.DataFrame:
    """Reads the events' own columns of a block, one part after another."""
    first = [int(part.offsets[low]) for part in parts]
    return pl.concat(
        pl.scan_parquet(table).slice(begin, len(block)).collect()
        for table, begin, block in zip(tables, first, own, strict=True)
    )


def _counts(parts: Sequence[Events], impressions: bool) -> Int64s:
    """Counts the kept events of each user, [users]."""
    counts = np.zeros(len(parts[0].offsets) - 1, np.int64)
    for low, high in user_blocks(parts):
        own = [part.between(low, high) for part in parts]
        counts[low:high] = np.bincount(_together(own, "user")[_order(own, impressions)] - low, minlength=high - low)
    return counts


def _order(own: Sequence[Events], impressions: bool) -> Int64s:
    """Returns the kept events of a block, by user and then by part, as places in the concatenated parts."""
    # Stable, so a user's events keep the order of the splits and, within a split, of time.
    order: Int64s = np.argsort(_together(own, "user"), kind="stable")
    if impressions or any(part.weight is None for part in own):
        return order
    return order[_together(own, "weight")[order] > 0]


def _together(own: Sequence[Events], name: str) -> NDArray[Any]:
    return np.concatenate([getattr(part, name) for part in own])
