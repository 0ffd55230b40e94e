"""Defines the arrays of a split on disk: names, types, writing and mapping.

docs/project/design.md lists the files.
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from towers.data.events import Events, Int64s

SPLITS = ("train", "valid", "test")
IMPRESSIONS = "-impressions"  # after the name of a split: its events of weight 0, if the data set has any
DTYPES: Mapping[str, type[np.generic]] = {
    "user": np.int32,
    "item": np.int32,
    "offsets": np.int64,
    "time": np.int64,
    "history_end": np.int64,
    "weight": np.float32,
    "type": np.int16,
    "place": np.int32,
}
CONTEXT = "context.parquet"
PIECE_BYTES = 1 << 16


def offsets_of(user: NDArray[np.integer[Any]], users: int) -> Int64s:
    """[users + 1] where each user's events begin; `user` [E] are user numbers in any order."""
    offsets = np.zeros(users + 1, np.int64)
    np.cumsum(np.bincount(user, minlength=users), out=offsets[1:])
    return offsets


def sum_of_offsets(parts: Sequence[Events]) -> Int64s:
    """[users + 1] where each user's events begin when all parts are joined."""
    total: Int64s = np.sum([part.offsets for part in parts], axis=0, dtype=np.int64)
    return total


def select_events(events: Events, keep: NDArray[np.bool_]) -> Events:
    """The events where `keep` [E] holds, as copies; histories lie among the same events, and `place` stays."""
    before = np.concatenate([np.zeros(1, np.int64), np.cumsum(keep)])
    ends = None if events.history_end is None else before[events.history_end[keep]]
    values = {name: getattr(events, name) for name in ("user", "item", "time", "weight", "type", "place")}
    kept = {name: value[keep] for name, value in values.items() if value is not None}
    return Events(**kept, offsets=before[events.offsets], history_end=ends)


def map_events(directory: Path) -> Events:
    """Memory-maps the arrays of a split; missing ones are None."""
    files = {name: directory / f"{name}.npy" for name in DTYPES}
    arrays: dict[str, Any] = {name: map_array(file) for name, file in files.items() if file.is_file()}
    return Events(**arrays)


class ArrayWriter:
    """Writes a `.npy` file from start to end, as `numpy.save` does, but in small pieces.

    Linux caches a file in the pieces in which it was written, and an access maps a whole piece, up to 2 MB. So small
    pieces keep the memory of a process with random access small.
    """

    def __init__(self, path: Path, shape: tuple[int, ...], dtype: Any) -> None:
        self.dtype = np.dtype(dtype)
        header = {"descr": np.lib.format.dtype_to_descr(self.dtype), "fortran_order": False, "shape": shape}
        self._file = path.open("wb", buffering=PIECE_BYTES)
        np.lib.format.write_array_header_1_0(self._file, header)

    def append(self, values: NDArray[Any]) -> None:
        """Writes the next rows.

        Raises:
            OSError: the disk is full.
        """
        raw = np.ascontiguousarray(values, self.dtype).reshape(-1).view(np.uint8).data
        for begin in range(0, len(raw), PIECE_BYTES):
            self._file.write(raw[begin : begin + PIECE_BYTES])

    def __enter__(self) -> "ArrayWriter":
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()


def new_array(path: Path, shape: tuple[int, ...], dtype: Any) -> Any:
    """Creates a memory-mapped `.npy` file of zeros, with its disk space allocated.

    Raises:
        OSError: the disk is full. If a page found no space later, the process would die without a message.
    """
    array = np.lib.format.open_memmap(path, mode="w+", dtype=dtype, shape=shape)
    if hasattr(os, "posix_fallocate"):  # macOS has none
        with path.open("r+b") as file:
            os.posix_fallocate(file.fileno(), 0, path.stat().st_size)
    return array


def map_array(path: Path) -> NDArray[Any]:
    """Memory-maps a `.npy` file, read-only."""
    plain: NDArray[Any] = np.asarray(np.load(path, mmap_mode="r", allow_pickle=False))
    return plain  # the same mapping; indexing `np.memmap` itself is slow
