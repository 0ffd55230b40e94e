"""Which items are alike: those that share a class, or those of a listed pair. NumPy and sparse matrices, no TensorFlow.

A `Relation` compares any rows with any columns. What it returns for an item and itself is meaningless.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from towers.data.events import Int64s

Places = NDArray[np.integer[Any]]
Marks = NDArray[np.bool_]


@dataclass(frozen=True)
class ByClass:
    """Items that share at least one class are alike.

    Attributes:
        labels: [N, C] sparse, 1 where the item has the class.
    """

    labels: sp.csr_array

    @classmethod
    def of(cls, offsets: Int64s, classes: Places, count: int) -> "ByClass":
        """From the classes of item i, ``classes[offsets[i]:offsets[i + 1]]``, each below `count`."""
        ones = np.ones(len(classes), np.float32)
        return cls(sp.csr_array((ones, classes.astype(np.int64), offsets), shape=(len(offsets) - 1, count)))

    def between(self, rows: Places, columns: Places) -> Marks:
        """Whether `rows` [R] are like `columns` [S]: [R, S]."""
        marks: Marks = (self.labels[rows] @ self.labels[columns].T).toarray() > 0
        return marks

    def alike(self, first: Places, second: Places) -> Marks:
        """Whether each of `first` [B] is like its counterpart in `second` [B]: [B]."""
        marks: Marks = np.asarray(self.labels[first].multiply(self.labels[second]).sum(axis=1)).ravel() > 0
        return marks

    def only(self, places: Places) -> "ByClass":
        """The relation among `places` alone, renumbered from 0."""
        return ByClass(self.labels[places])

    @cached_property
    def of_class(self) -> tuple[Int64s, Int64s]:
        """The items of each class, in rising order: offsets [C + 1], items."""
        turned = sp.csr_array(self.labels.T)
        turned.sort_indices()
        return turned.indptr.astype(np.int64), turned.indices.astype(np.int64)

    def padded(self) -> Int64s:
        """The classes of every item, [N, most classes of one item], padded with -1."""
        counts = np.diff(self.labels.indptr)
        padded = np.full((len(counts), max(1, int(counts.max(initial=0)))), -1, np.int64)
        padded[np.arange(padded.shape[1]) < counts[:, np.newaxis]] = self.labels.indices
        return padded

    def examples(self) -> int:
        """Number of examples per epoch: every item is one."""
        return int(self.labels.shape[0])

    def partners(self, example: Places, generator: np.random.Generator) -> tuple[Int64s, Int64s]:
        """Two alike items [B] for each of `example` [B]; equal ones for an item that is like no other.

        The first is the example's item. The second is a random other item of a random class of the first.
        """
        item = example.astype(np.int64)
        ends = self.labels.indptr
        own = ends[item] + (generator.random(len(item)) * (ends[item + 1] - ends[item])).astype(np.int64)
        chosen = self.labels.indices[own]
        offsets, members = self.of_class
        start, others = offsets[chosen], offsets[chosen + 1] - offsets[chosen] - 1
        place = start + (generator.random(len(item)) * others).astype(np.int64)
        # The items of a class rise: from the example's own place on, the next one is taken instead.
        partner = members[place + ((members[place] >= item) & (others > 0))]
        return item, partner


@dataclass(frozen=True)
class ByPair:
    """Items of a listed pair are alike; likeness is not transitive.

    Attributes:
        pairs: [P, 2], each once, the lower number first.
        matrix: [N, N] sparse and symmetric, 1 where two items are a pair.
    """

    pairs: Int64s
    matrix: sp.csr_array

    @classmethod
    def of(cls, pairs: Int64s, count: int) -> "ByPair":
        """From pairs [P, 2] of different items below `count`, in any order, repeats allowed."""
        pairs = np.unique(np.sort(pairs, axis=1), axis=0).reshape(-1, 2)
        both = np.concatenate([pairs, pairs[:, ::-1]])
        ones = np.ones(len(both), np.float32)
        return cls(pairs, sp.csr_array((ones, (both[:, 0], both[:, 1])), shape=(count, count)))

    def between(self, rows: Places, columns: Places) -> Marks:
        """As `ByClass.between`."""
        marks: Marks = self.matrix[rows][:, columns].toarray() > 0
        return marks

    def alike(self, first: Places, second: Places) -> Marks:
        """As `ByClass.alike`."""
        marks: Marks = np.asarray(self.matrix[first, second]).ravel() > 0
        return marks

    def only(self, places: Places) -> "ByPair":
        """As `ByClass.only`."""
        inside = np.isin(self.pairs, places).all(axis=1)
        rank = np.zeros(self.matrix.shape[0], np.int64)
        rank[places] = np.arange(len(places))
        return ByPair.of(rank[self.pairs[inside]], len(places))

    def examples(self) -> int:
        """Number of examples per epoch: every pair is one."""
        return len(self.pairs)

    def partners(self, example: Places, generator: np.random.Generator) -> tuple[Int64s, Int64s]:
        """As `ByClass.partners`: both items of the example's pair, in either order."""
        turned = generator.random(len(example)) < 0.5
        first, second = self.pairs[example].T
        return np.where(turned, second, first), np.where(turned, first, second)


Relation = ByClass | ByPair  # over items that are numbered from 0


def counts(relation: Relation, rows: Places, columns: Places, *, block: int = 512) -> Int64s:
    """Number of `columns` [S] that each of `rows` [R] is like, itself left out: [R]."""
    found = [np.zeros(0, np.int64)]
    for begin in range(0, len(rows), block):
        part = rows[begin : begin + block]
        marks = relation.between(part, columns) & (part[:, np.newaxis] != columns[np.newaxis, :])
        found.append(marks.sum(axis=1).astype(np.int64))
    return np.concatenate(found)
