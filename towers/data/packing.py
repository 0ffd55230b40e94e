"""Packs histories of different lengths into full rows, so that a batch computes little padding.

A window is one user's history, oldest first. Windows that share a row do not see each other
(`towers.features.self_attention`).
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from towers.data.events import Int32s, Int64s

NO_PLACE = -1
FIELDS = 2  # per item of a history: its table row and the bucket of the time since the item before it
UNKNOWN_GAP = 0
# Bucket 1 + n is a gap of 2^n - 1 to 2^(n + 1) - 2 seconds; the last one also holds all longer gaps.
GAP_BOUNDS: NDArray[np.int64] = 1 << np.arange(40, dtype=np.int64)


class Sequences(NamedTuple):
    """Packed windows, and the place of each example in them.

    Attributes:
        items: int64 [R, L, 2] table row and time gap of each item; zero where a row is not full.
        segment: int64 [R, L] number of the window in its row, 1 to L; 0 where a row is not full.
        position: int64 [R, L] position of an item in its window, from 0.
        place: int64 [B] place of each example's newest item among the R * L; -1 without a history.
    """

    items: Any
    segment: Any
    position: Any
    place: Any


def packed(histories: Int32s) -> Sequences:
    """Packs one window per example.

    Args:
        histories: [B, L, 2], newest last; a table row of 0 is no item, at any position.
    """
    present = histories[:, :, 0] != 0
    lengths = present.sum(axis=1, dtype=np.int64)
    windows, begins = packed_windows(histories[present], lengths, histories.shape[1])
    return windows._replace(place=np.where(lengths > 0, begins + lengths - 1, NO_PLACE))


def packed_windows(items: Int32s, lengths: Int64s, width: int) -> tuple[Sequences, Int64s]:
    """Packs windows into rows.

    Args:
        items: [sum of lengths, 2], one window after another.
        lengths: [S], each at most `width`.
        width: L.

    Returns:
        `Sequences` without examples, and [S] first place of each window among the R * L.
    """
    begins, rows = _begins(lengths, width)
    step = np.arange(len(items)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    place = np.repeat(begins, lengths) + step
    fields = np.zeros((rows * width, FIELDS), np.int64)
    segment, position = np.zeros(rows * width, np.int64), np.zeros(rows * width, np.int64)
    fields[place], position[place] = items, step
    # The windows of a row are numbered from left to right. An empty one has no place, and so no number: many may begin
    # where a full one does, whose number would then exceed `width`.
    order = np.argsort(begins, kind="stable")
    order = order[lengths[order] > 0]
    row = begins[order] // width
    number = np.zeros(len(lengths), np.int64)
    number[order] = 1 + np.arange(len(order)) - np.searchsorted(row, row)
    segment[place] = np.repeat(number, lengths)
    shape = (rows, width)
    windows = Sequences(
        fields.reshape(*shape, FIELDS), segment.reshape(shape), position.reshape(shape), np.empty(0, np.int64)
    )
    return windows, begins


def gap_buckets(seconds: Int64s) -> Int32s:
    """The buckets of the seconds between each item and the one before; `UNKNOWN_GAP` for seconds below 0."""
    bucket = np.searchsorted(GAP_BOUNDS, seconds + 1, side="right")
    return np.where(seconds < 0, UNKNOWN_GAP, bucket).astype(np.int32)


def _begins(lengths: Int64s, width: int) -> tuple[Int64s, int]:
    """[S] first place of each window, and the number of rows. The longest go first, then the shortest that fit."""
    order = np.argsort(-lengths, kind="stable").tolist()
    sizes = lengths.tolist()
    begins = [0] * len(sizes)
    longest, shortest, row, filled = 0, len(order) - 1, 0, 0
    while longest <= shortest:
        window = order[longest]
        if filled + sizes[window] <= width:
            longest += 1
        elif filled + sizes[order[shortest]] <= width:
            window = order[shortest]
            shortest -= 1
        else:
            row, filled = row + 1, 0
            continue
        begins[window] = row * width + filled
        filled += sizes[window]
    return np.array(begins, np.int64), row + 1
