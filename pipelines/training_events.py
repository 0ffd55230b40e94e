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
from towers.blocks import blocks
from towers.events import Events, Int64s, Past


def training_events(
    dataset: Dataset, splits: Sequence[str], directory: Path, *, impressions: bool
) -> tuple[Events, Context | None]:
    """Several splits as one, in the layout of `train/`; a user's events keep the order of `splits` and their own.

    Args:
        dataset: the data set.
        splits: split names in the order of time, for example ``("train", "valid")``.
        directory: exists and gets the files; none where one split can be read as it is.
        impressions: keep events of weight 0, which nobody took up. Histories hold none either way.

    Returns:
        The events, and their own columns in the same order; None where the data set has no such columns.

    Raises:
        OSError: no room for the files.
    """
    parts = [dataset.events(split) for split in splits]
    tables = [dataset.path / split / CONTEXT for split in splits] if dataset.manifest.event_columns else []
    if len(parts) == 1 and (impressions or _all_taken(parts)):
        events, files = parts[0], tables
    else:
        files = _write(parts, tables, directory, tuple(DTYPES), impressions=impressions)
        events = map_events(directory)
    return _with_past(events, parts, directory), Context(files) if tables else None


def _all_taken(parts: Sequence[Events]) -> bool:
    return all(part.weight is None or (part.weight[block] > 0).all() for part in parts for block in blocks(part.item))


def _write(
    parts: Sequence[Events], tables: Sequence[Path], directory: Path, names: Sequence[str], *, impressions: bool
) -> list[Path]:
    """Writes `names` of the arrays of all parts together, as far as they have them; the files of their own columns."""
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
    """The events, and what their histories are made of: files of their own where there are impressions among them."""
    if _all_taken([events]):
        return replace(events, taken_past=Past(events.item, events.offsets, events.time, events.history_end))
    folder = directory / "taken"
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
    return replace(events, taken_past=Past(**arrays, place=place))


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
