"""Numbers users and items by descending count of training events, sorts each split and writes the data set's files.

`dataset.json` is written elsewhere.
"""

from contextlib import ExitStack
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from pipelines.console import progress
from pipelines.dataset.arrays import CONTEXT, DTYPES, IMPRESSIONS, SPLITS, ArrayWriter, new_array
from pipelines.errors import DataError
from pipelines.ingest.columns.event_table import EventTable, counts_of, user_ranges
from pipelines.ingest.impressions import impressions_of
from pipelines.ingest.splits import Split
from towers.data.events import Int32s, Int64s
from towers.data.history import history_ends

PHASE = "sort and write"
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
            "train_count": counts_of(codes, size, train).astype(np.uint32),
            "used": counts_of(codes, size) > 0,
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
    """Writes `train/`, `valid/` and `test/`, events of weight 0 to splits of their own if there are any.

    `events.user` and `events.item` hold final numbers; afterwards the columns that were written are empty.

    Returns:
        The number of events of each split.
    """
    time = events.time if split.timed else None
    names: tuple[str, ...] = SPLITS
    group = split.label
    if (shown := impressions_of(events)) is not None:
        names, group = (*SPLITS, *(name + IMPRESSIONS for name in SPLITS)), group + np.uint8(len(SPLITS)) * shown
    sizes = [counts_of(events.user, users, group == number) for number in range(len(names))]
    with ExitStack() as opened, progress(PHASE, total=len(events), unit="events") as advance:
        files = [
            _SplitFiles(directory / name, counts, events, opened, timed=time is not None)
            for name, counts in zip(names, sizes, strict=True)
        ]
        for places in user_ranges(events.user, users):
            user = events.user[places]
            places = places[np.lexsort((user,) if time is None else (time[places], user))]
            for number, file in enumerate(files):
                mine = places[split.label[places] == number % len(SPLITS)]
                file.append(events, mine, group[mine] == number)
            advance(len(places))
    # The context is gathered as a whole, and beside it would lie all that is on the disk by now.
    events.release("user", "item", "time", "weight", "type")
    for file in files:
        file.write_context(events)
    return {name: sum(file.size for file in files[n :: len(SPLITS)]) for n, name in enumerate(SPLITS)}


class _SplitFiles:
    """The files of one split, written range by range of users.

    Args:
        directory: the split's folder.
        counts: [users] events of each user.
        events: all events.
        opened: closes the files.
        timed: keep the times, and in `train/` where histories end.
    """

    def __init__(self, directory: Path, counts: Int64s, events: EventTable, opened: ExitStack, *, timed: bool) -> None:
        self.directory, self.size = directory, int(counts.sum())
        self._offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
        self._order: list[NDArray[np.uint32]] = []
        directory.mkdir()
        there = {"user": True, "item": True, "time": timed, "weight": events.weight is not None}
        there["type"] = events.type is not None
        there["history_end"] = timed and directory.name == "train"
        there["place"] = directory.name.endswith(IMPRESSIONS)
        self._files = {
            name: opened.enter_context(ArrayWriter(directory / f"{name}.npy", (self.size,), DTYPES[name]))
            for name in there
            if there[name]
        }
        with ArrayWriter(directory / "offsets.npy", self._offsets.shape, np.int64) as file:
            file.append(self._offsets)

    def append(self, events: EventTable, split: Int64s, chosen: NDArray[np.bool_]) -> None:
        """Writes the chosen events among those at `split`, sorted and of consecutive users that follow those before."""
        places = split[chosen]
        for name, file in self._files.items():
            if name == "history_end":
                file.append(self._history_ends(events, places))
            elif name == "place":
                user = events.user[split]
                before: Int64s = np.cumsum(~chosen) - ~chosen
                file.append(before[chosen] - before[np.searchsorted(user, user[chosen])])
            else:
                file.append(getattr(events, name)[places])
        if events.context is not None:
            self._order.append(places.astype(np.uint32))

    def _history_ends(self, events: EventTable, places: Int64s) -> Int64s:
        if not len(places) or events.time is None:
            return np.zeros(0, np.int64)
        low, high = (int(events.user[place]) for place in places[[0, -1]])
        offsets = self._offsets[low : high + 2]
        ends: Int64s = offsets[0] + history_ends(offsets - offsets[0], events.time[places])
        return ends

    def write_context(self, events: EventTable) -> None:
        """Writes the events' own columns, if there are any."""
        if events.context is not None:
            texts = pl.selectors.categorical().cast(pl.String)
            frame = events.context[np.concatenate(self._order)].lazy().with_columns(texts)
            frame.sink_parquet(self.directory / CONTEXT)


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
        vectors = np.load(path, mmap_mode="r", allow_pickle=False)
        rows = 0 if attributes is None else attributes.height
        if attributes is None or vectors.ndim != 2 or len(vectors) != rows:
            raise DataError(f"{path}: its shape is {vectors.shape}; it must be [{rows}, D], a row for each good id")
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
