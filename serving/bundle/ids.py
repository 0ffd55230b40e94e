"""Memory-mapped ids: row to id and id to row without a Python object for each, shared by all workers.

The files, prefixed with the column: `_bytes` (all ids in UTF-8, concatenated), `_offsets` (where each begins, and the
end) and `_slots` (rows by hash: linear probing from ``crc32(id) % S``, S the greatest power of two below its length; -1
in empty slots, and at its end).
"""

import mmap
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import overload
from zlib import crc32

import numpy as np
import polars as pl
from numpy.typing import NDArray

from serving.bundle import arrays as files
from serving.errors import BundleError
from serving.search.index import Rows, RowSet

Bytes = mmap.mmap | bytes

BLOCK = 65_536
# Bytes that JSON escapes.
ESCAPED = re.compile(rb'["\\\x00-\x1f]')
# Limit for the array of JSON strings, where every id takes the space of the longest.
LONGEST = 64


class Ids(Sequence[str]):
    """Row to id.

    Args:
        text: all ids in UTF-8, concatenated, from `start` on.
        start: where the first begins.
        offsets: [N + 1] where each begins after `start`, and the end.
        slots: the hash table; see above.
    """

    def __init__(self, text: Bytes, start: int, offsets: NDArray[np.int64], slots: NDArray[np.int32]) -> None:
        self.text, self.start, self.offsets, self.slots = text, start, offsets, slots
        # Several times faster than the array for single numbers.
        self._numbers = offsets.data

    @property
    def rows(self) -> "RowOf":
        """Id to row. Not kept here: a cycle would hold the files of a bundle that nobody needs any more."""
        return RowOf(self)

    @classmethod
    def of(cls, ids: pl.Series) -> "Ids":
        """Builds the tables of distinct ids in memory."""
        text, lengths, sums = bytearray(), np.empty(len(ids), np.int64), np.empty(len(ids), np.int64)
        for first in range(0, len(ids), BLOCK):
            part = [each.encode() for each in ids.slice(first, BLOCK).to_list()]
            text += b"".join(part)
            lengths[first : first + BLOCK] = [len(each) for each in part]
            sums[first : first + BLOCK] = [crc32(each) for each in part]
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        return cls(bytes(text), 0, offsets, _slots(sums))

    @classmethod
    def open(cls, bundle: Path, column: str, count: int) -> "Ids | None":
        """Maps the files of a column; None if the bundle is older than these files.

        Raises:
            BundleError: a file is missing, truncated, of another type, or not a table of `count` ids.
        """
        paths = [bundle / f"{column}_{part}.npy" for part in files.ID_PARTS]
        if not any(path.exists() for path in paths):
            return None
        text = files.open_array(bundle, paths[0].name, np.uint8, (None,))
        offsets = files.open_array(bundle, paths[1].name, np.int64, (count + 1,))
        slots = files.open_array(bundle, paths[2].name, np.int32, (None,))
        if offsets[0] != 0 or offsets[-1] != len(text) or (np.diff(offsets) < 0).any():
            raise BundleError(f"{paths[1]}: must rise from 0 to the {len(text)} bytes of the ids")
        taken = slots[slots >= 0]
        if len(slots) < 3 or slots[-1] != -1 or len(taken) != count or (np.bincount(taken, minlength=count) != 1).any():
            raise BundleError(f"{paths[2]}: must hold each of the rows 0..{count - 1} once, and -1 at its end")
        with paths[0].open("rb") as file:
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        return cls(mapped, len(mapped) - len(text), offsets, slots)

    def save(self, directory: Path, column: str) -> None:
        """Writes the files of a column."""
        text = np.frombuffer(self.text, np.uint8, offset=self.start)
        arrays: tuple[NDArray[np.generic], ...] = (text, self.offsets, self.slots)
        for part, array in zip(files.ID_PARTS, arrays, strict=True):
            np.save(directory / f"{column}_{part}.npy", array)

    def refuse_other(self, ids: pl.Series, path: Path) -> None:
        """Raises BundleError unless these are the ids of a column, in order, each in its slot."""
        wanted = Ids.of(ids)
        same = self.text[self.start :] == wanted.text and np.array_equal(self.offsets, wanted.offsets)
        if not same or not np.array_equal(self.slots, wanted.slots):
            raise BundleError(f"{path}: not the ids that lie beside it in {'_*.npy, '.join(files.ID_PARTS)}_*.npy")

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @overload
    def __getitem__(self, row: int) -> str: ...
    @overload
    def __getitem__(self, row: slice) -> list[str]: ...
    def __getitem__(self, row: int | slice) -> str | list[str]:
        if isinstance(row, slice):
            return self.at(np.arange(len(self))[row])
        row = range(len(self))[row]
        return self.text[self._numbers[row] + self.start : self._numbers[row + 1] + self.start].decode()

    def __iter__(self) -> Iterator[str]:
        for first in range(0, len(self), BLOCK):
            yield from self[first : first + BLOCK]

    def at(self, rows: RowSet) -> list[str]:
        """The ids of rows, each in 0..N - 1."""
        return [each.decode() for each in self.raw(rows)]

    def raw(self, rows: RowSet) -> list[bytes]:
        """The ids of rows in UTF-8, each in 0..N - 1."""
        text, begins, ends = self.text, self.offsets[rows] + self.start, self.offsets[rows + 1] + self.start
        return [text[begin:end] for begin, end in zip(begins.tolist(), ends.tolist(), strict=True)]

    def starting(self, prefix: str, most: int) -> Rows:
        """The first rows, at most `most`, whose ids begin with a text."""
        text, begins = np.frombuffer(self.text, np.uint8)[self.start :], self.offsets[:-1]
        wanted = prefix.encode(errors="surrogatepass")  # no id holds one
        rows = np.flatnonzero(np.diff(self.offsets) >= len(wanted)).astype(np.int64)
        for place, byte in enumerate(wanted):
            rows = rows[text[begins[rows] + place] == byte]
        return rows[:most]

    def plain(self) -> NDArray[np.bytes_] | None:
        """The ids as JSON strings without quotes, [N]; None if one is too long or needs escapes.

        Python's strings are scattered over memory, and each access may miss the cache; these are in one array. So an
        answer of a hundred ids is built without a hundred objects.
        """
        longest = int(np.diff(self.offsets).max(initial=0))
        if not 0 < longest <= LONGEST or ESCAPED.search(self.text, self.start):
            return None
        plain = np.empty(len(self), f"S{longest}")
        for first in range(0, len(self), BLOCK):
            rows = np.arange(first, min(first + BLOCK, len(self)))
            plain[rows] = self.raw(rows)
        return plain


class RowOf(Mapping[str, int]):
    """Id to row."""

    def __init__(self, ids: Ids) -> None:
        self._ids = ids
        self._text, self._start = ids.text, ids.start
        self._offsets, self._slots = ids.offsets.data, ids.slots.data
        self._mask = (1 << (len(ids.slots) - 1).bit_length() - 1) - 1

    def find(self, name: object) -> int:
        """The row of an id, or -1."""
        if not isinstance(name, str):
            return -1
        # A lone surrogate has no UTF-8: its bytes here match no id.
        wanted = name.encode("utf-8", "surrogatepass")
        slots, offsets, start = self._slots, self._offsets, self._start
        place = crc32(wanted) & self._mask
        while (row := slots[place]) >= 0:
            if self._text[offsets[row] + start : offsets[row + 1] + start] == wanted:
                return row
            place += 1
        return -1

    def known(self, names: Iterable[str]) -> list[int]:
        """The rows of the ids that exist, in order: `find` without a call for each."""
        text, slots, offsets, start, mask = self._text, self._slots, self._offsets, self._start, self._mask
        rows = []
        for name in names:
            wanted = name.encode("utf-8", "surrogatepass")
            place = crc32(wanted) & mask
            while (row := slots[place]) >= 0:
                if text[offsets[row] + start : offsets[row + 1] + start] == wanted:
                    rows.append(row)
                    break
                place += 1
        return rows

    def __getitem__(self, name: str) -> int:
        if (row := self.find(name)) < 0:
            raise KeyError(name)
        return row

    def get(self, name: object, default: int | None = None) -> int | None:  # type: ignore[override]
        """The row of an id, or `default`."""
        return default if (row := self.find(name)) < 0 else row

    def __contains__(self, name: object) -> bool:
        return self.find(name) >= 0

    def __iter__(self) -> Iterator[str]:
        return iter(self._ids)

    def __len__(self) -> int:
        return len(self._ids)


def _slots(sums: NDArray[np.int64]) -> NDArray[np.int32]:
    """The hash table of ids with these CRC-32s, [N]."""
    size = 1 << max(1, (2 * len(sums) - 1).bit_length())
    homes = sums & (size - 1)
    order = np.argsort(homes, kind="stable")
    # Each takes the first free slot from its home on: linear probing, vectorised.
    steps = np.arange(len(sums))
    places = np.maximum.accumulate(homes[order] - steps) + steps if len(sums) else steps
    slots = np.full(max(size, int(places.max(initial=0)) + 1) + 1, -1, np.int32)
    slots[places] = order
    return slots
