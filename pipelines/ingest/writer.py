"""Numbers users and items by descending count of training events, sorts each split and writes the data set's files.

`dataset.json` is written elsewhere.
"""

from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from pipelines.console import progress
from pipelines.dataset.arrays import CONTEXT, SPLITS, new_array, offsets_of, write_events
from pipelines.errors import DataError
from pipelines.ingest.columns.event_table import EventTable
from pipelines.ingest.splits import TRAIN, Split
from towers.data.events import Events, Int32s
from towers.data.history import history_ends

COPY_ROWS = 1 << 18


def number_entities(
    codes: Int32s, train: NDArray[np.bool_], ids: pl.Series, attributes: pl.DataFrame | None, name: str
) -> tuple[pl.DataFrame, Int32s]:
    """Orders users or items by descending number of training events, then id.

    Args:
        codes: [E] code of each event.
        train: [E] whether the event trains.
        ids: the id of each code; ids without events stay only if `attributes` has them.
        attributes: rows by id, or None.
        name: ``user_id`` or ``item_id``, the first column of `attributes`.

    Returns:
        The rows in final order (`name`, ``train_count``, the attributes) and the number of each code.
    """
    size = len(ids)
    frame = pl.DataFrame(
        {
            name: ids.alias(name),
            "code": pl.int_range(size, dtype=pl.Int32, eager=True),
            "train_count": np.bincount(codes[train], minlength=size).astype(np.uint32),
            "used": np.bincount(codes, minlength=size) > 0,
        }
    )
    if attributes is None:
        frame = frame.filter("used")
    else:
        listed = attributes.select(name, listed=pl.lit(True))
        frame = frame.join(listed, on=name, how="full", coalesce=True).filter(pl.col("listed") | pl.col("used"))
        frame = frame.with_columns(pl.col("train_count").fill_null(0))
    frame = frame.sort("train_count", name, descending=[True, False])
    number = np.full(size, -1, np.int32)
    with_code = frame.with_row_index("number").filter(pl.col("code").is_not_null())
    number[with_code["code"].to_numpy()] = with_code["number"].to_numpy()
    frame = frame.select(name, "train_count")
    if attributes is not None:
        frame = frame.join(attributes, on=name, how="left", maintain_order="left")
    return frame, number


def write_splits(directory: Path, events: EventTable, split: Split, users: int) -> dict[str, int]:
    """Writes `train/`, `valid/` and `test/`; `events.user` and `events.item` hold final numbers.

    Returns:
        The number of events of each split.
    """
    counts = {}
    with progress("sort and write", total=len(events), unit="events") as advance:
        for number, name in enumerate(SPLITS):
            places = np.flatnonzero(split.label == number)
            keys: tuple[NDArray[np.generic], ...] = (events.user[places],)
            if split.timed and events.time is not None:
                keys = (events.time[places], *keys)
            places = places[np.lexsort(keys)]
            counts[name] = len(places)
            _write_split(directory / name, events, places, users, timed=split.timed, train=number == TRAIN)
            advance(len(places), note=name)
    return counts


def _write_split(
    directory: Path, events: EventTable, places: NDArray[np.int64], users: int, *, timed: bool, train: bool
) -> None:
    user = events.user[places]
    offsets = offsets_of(user, users)
    time = events.time[places] if timed and events.time is not None else None
    ends = history_ends(offsets, time) if train and time is not None else None
    weight = None if events.weight is None else events.weight[places]
    write_events(directory, Events(user, events.item[places], offsets, time, ends, weight))
    if events.context is not None:
        texts = pl.selectors.categorical().cast(pl.String)
        events.context[places].lazy().with_columns(texts).sink_parquet(directory / CONTEXT)


def write_truth(directory: Path, source: Path, ids: dict[str, tuple[pl.Series, pl.DataFrame | None]]) -> None:
    """Copies a synthetic world's truth, its rows in the order of the data set.

    Args:
        directory: the output directory.
        source: the world's `truth/` folder, its rows in the order of the world's users and items files.
        ids: for ``query`` and ``item``, the ids in the data set's order and the attributes in file order.

    Raises:
        DataError: the truth does not fit the users or items files.
    """
    directory.mkdir()
    for side, (final, attributes) in ids.items():
        path = source / f"{side}_vectors.npy"
        if not path.is_file():
            raise DataError(f"{path}: missing beside the other truth file")
        vectors = np.load(path, mmap_mode="r", allow_pickle=False)
        if attributes is None or len(vectors) != attributes.height:
            rows = 0 if attributes is None else attributes.height
            raise DataError(f"{path}: {len(vectors):,} vectors, but the file of their ids has {rows:,} good rows")
        order = pl.DataFrame({"id": final}).join(
            pl.DataFrame({"id": attributes.to_series(0)}).with_row_index("row"),
            on="id",
            how="left",
            maintain_order="left",
        )["row"]
        if order.null_count():
            raise DataError(f"{path}: no vector for {final.filter(order.is_null())[0]!r}")
        rows_of = order.to_numpy()
        out = new_array(directory / f"{side}_vectors.npy", (len(final), vectors.shape[1]), np.float32)
        for start in range(0, len(final), COPY_ROWS):
            out[start : start + COPY_ROWS] = vectors[rows_of[start : start + COPY_ROWS]]
        out.flush()
