"""Memory-mapped arrays: what was read is given back, so that a process holds what it reads now.

In: arrays, mapped or not. Out: ranges of their rows to read one after the other; their values stay the same.
"""

import mmap
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

BLOCK_ROWS = 1 << 20  # of one pass: 8 MB of int64


def let_go(*arrays: NDArray[Any] | None) -> None:
    """Unmaps the pages of every array that a file backs; the next look at them maps them again.

    The system's file cache keeps the pages while there is room, written ones until they are on the disk. A private
    copy of a file (mode "c") has nowhere else to keep what was written to it, and stays. So does all on a system
    that knows no `madvise`.
    """
    if not hasattr(mmap, "MADV_DONTNEED"):
        return
    for array in arrays:
        owner: Any = array
        private = False
        while isinstance(owner, np.ndarray):
            private |= isinstance(owner, np.memmap) and owner.mode == "c"
            owner = owner.base
        if isinstance(owner, mmap.mmap) and not private:
            owner.madvise(mmap.MADV_DONTNEED)


def blocks(*arrays: NDArray[Any] | None) -> Iterator[slice]:
    """Ranges of the rows of `arrays`, alike long, from first to last; what was read is given back after each.

    For one pass over what may be larger than memory; copies of a block are small.
    """
    size = max((len(array) for array in arrays if array is not None), default=0)
    for begin in range(0, size, BLOCK_ROWS):
        yield slice(begin, min(begin + BLOCK_ROWS, size))
        let_go(*arrays)
