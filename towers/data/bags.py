"""Bags: several table rows for one example, with each distinct row stored once per batch."""

from typing import Any, NamedTuple

import numpy as np

from towers.data.events import Int32s, Int64s

MISSING = 0  # row 0 of every table: no value, or an id that training never saw
SCATTERED = 4  # a table of up to this many times a batch's rows fits the processor's cache: scattering beats sorting


class Bag(NamedTuple):
    """Several rows per example, in a form that pools and learns fast.

    Each distinct row is gathered, and gets a gradient, once per batch, however many histories hold it. Lists of rows
    `[B, L]` pool to the same vectors.

    Attributes:
        rows: [M] table rows.
        place: [n] index into `rows`, one for each value present.
        example: [n] example of each value, in rising order.
        size: B.
    """

    rows: Any
    place: Any
    example: Any
    size: Any


def distinct_bag(rows: Int32s) -> Bag:
    """A `Bag` of looked-up rows [B, L], each distinct row once, without missing values."""
    flat = rows.ravel()
    present = np.flatnonzero(flat != MISSING)
    return bag_of(flat[present], present // rows.shape[1], len(rows))


def bag_of(rows: Int32s, example: Int64s, size: int) -> Bag:
    """A `Bag` of `size` examples from table rows [n]; `example` [n] is the example of each row, in rising order."""
    distinct, place = _distinct(rows)
    return Bag(distinct.astype(np.int64), place.astype(np.int64), example, np.int32(size))


def _distinct(rows: Int32s) -> tuple[Int32s, Int32s | Int64s]:
    """Each distinct row once, in any order, and the index of each of `rows` [n] among them: [n]."""
    table = int(rows.max(initial=0)) + 1
    if table > SCATTERED * len(rows):
        return np.unique(rows, return_inverse=True)
    # Without sorting: of equal rows, the last one to write its number stands for all.
    last, number = np.empty(table, np.int32), np.arange(len(rows), dtype=np.int32)
    last[rows] = number
    distinct = rows[last.take(rows) == number]
    last[distinct] = number[: len(distinct)]
    return distinct, last.take(rows)
