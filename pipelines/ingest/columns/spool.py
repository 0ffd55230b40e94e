"""Keeps a column of all events on disk while it is read, so that memory holds it once, when it is complete."""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray


class Spool:
    """Arrays one after another in a nameless file, which goes with the process.

    Args:
        folder: a folder with room for them; None takes that of temporary files.
    """

    def __init__(self, folder: Path | None) -> None:
        self._file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 - open as long as the spool
        self._parts: list[tuple[np.dtype[Any], int]] = []

    def append(self, values: NDArray[Any]) -> None:
        """Adds the next rows.

        Raises:
            OSError: the disk is full.
        """
        self._file.write(np.ascontiguousarray(values).data)
        self._parts.append((values.dtype, len(values)))

    def __len__(self) -> int:
        return sum(count for _, count in self._parts)

    @property
    def dtypes(self) -> set[np.dtype[Any]]:
        """The types of the parts."""
        return {dtype for dtype, _ in self._parts}

    def __iter__(self) -> Iterator[NDArray[Any]]:
        self._file.seek(0)
        for dtype, count in self._parts:
            part: NDArray[Any] = np.frombuffer(self._file.read(count * dtype.itemsize), dtype)
            yield part

    def joined(self, dtype: DTypeLike | None = None, scale: int | None = None) -> Any:
        """Returns all rows as one array, with a scale multiplied by it and rounded, and gives the file back.

        Whole numbers are multiplied exactly.

        Args:
            dtype: of the array; None takes that of the first part.
            scale: None leaves the rows as they are.
        """
        out, end = np.empty(len(self), dtype or self._parts[0][0]), 0
        for part in self:
            if scale is not None:
                part = np.rint(part * scale) if part.dtype.kind == "f" else part * scale
            out[end : end + len(part)] = part
            end += len(part)
        self._file.close()
        return out
