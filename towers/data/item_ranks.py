"""Ranks of the trained items by falling number of examples: the numbering of samplers and item tables.

Rank 0 is the most frequent item, which suits a log-uniform sampler. An item without a training event has no rank and
is never drawn, so it stays untrained. `ItemFeatures` turns ranks into features inside the graph: a drawn rank becomes
features without leaving the device.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from towers.data.bags import MISSING
from towers.data.blocks import blocks
from towers.data.events import Int32s, Int64s
from towers.data.feature_tables import Array


@dataclass(frozen=True)
class ItemRanks:
    """Ranks of the trained items.

    Attributes:
        items: [N] item number of each rank.
        ranks: [all items] rank of each item number; -1 without a training event.
        counts: [N] examples of each rank, in falling order; 0 for an item whose events are no examples.
    """

    items: Int32s
    ranks: Int64s
    counts: Int64s

    @classmethod
    def of(cls, item: NDArray[np.int32], size: int, examples: Int64s | None = None) -> "ItemRanks":
        """Ranks the items of training events, ties by item number.

        Args:
            item: [E] of the events.
            size: number of all items.
            examples: [size] examples of each item; None if each event is one. An item without an example is ranked
                last: it is served, so a loss that scores or draws from all items must see it.
        """
        events = counted(item, size)
        counts = events if examples is None else examples
        items = np.argsort(np.where(events > 0, -counts, 1), kind="stable")[: np.count_nonzero(events)].astype(np.int32)
        ranks = np.full(size, -1, np.int64)
        ranks[items] = np.arange(len(items))
        return cls(items, ranks, counts[items])

    def __len__(self) -> int:
        return len(self.items)


def counted(numbers: NDArray[np.int32], size: int) -> Int64s:
    """How often each of ``range(size)`` occurs in `numbers` [E]: [size]; E may be larger than memory."""
    counts = np.zeros(size, np.int64)
    for block in blocks(numbers):
        counts += np.bincount(numbers[block], minlength=size)
    return counts


class ItemFeatures:
    """Gathers looked-up features by rank. Not a `tf.Module`: it holds data, which stays out of checkpoints."""

    def __init__(self, tables: Mapping[str, Array], catalogue: ItemRanks) -> None:
        # int64, because int32 arithmetic has no GPU kernel; variables, because a graph's constants are limited to 2 GB.
        self._tables = {
            name: tf.Variable(
                _narrow(rows[catalogue.items]).astype(np.float32 if rows.dtype.kind == "f" else np.int64),
                trainable=False,
            )
            for name, rows in tables.items()
        }

    def __call__(self, rank: tf.Tensor) -> dict[str, tf.Tensor]:
        """Features of `rank` [n], by name: [n], [n, L] or [n, 2]."""
        return {name: tf.gather(table, rank) for name, table in self._tables.items()}


def _narrow(rows: Array) -> Array:
    """Lists [N, L] without the columns that no item fills: an empty one costs a step as much as a full one."""
    if rows.dtype.kind == "f" or rows.ndim != 2:
        return rows
    full = np.any(rows != MISSING, axis=0)
    return rows[:, full] if full.any() else rows[:, :1]
