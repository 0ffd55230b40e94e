"""Splits an array that may be larger than memory into blocks."""

from collections.abc import Iterator
from typing import Any

from numpy.typing import NDArray

BLOCK_ROWS = 1 << 20  # 8 MB of int64


def blocks(array: NDArray[Any]) -> Iterator[slice]:
    """Ranges of the rows of `array`, from first to last; a copy of one is small."""
    for begin in range(0, len(array), BLOCK_ROWS):
        yield slice(begin, min(begin + BLOCK_ROWS, len(array)))
