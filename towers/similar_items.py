"""Training batches of `task = "similarity"`: a function of epoch and step alone, so that a resumed run sees the same.

In: the training items' classes or pairs. Out: `ClassBatch` against the classes' centres, `RelatedBatch` against the
other items of the batch. Items are ranks of `towers.catalogue`, which here are places among the training items.
"""

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from towers.events import Int64s
from towers.order import order_key, shuffled
from towers.relations import ByClass, Relation


class ClassBatch(NamedTuple):
    """Items and their classes.

    Attributes:
        item: int64 [B].
        classes: int64 [B, K]; -1 where an item has fewer than K.
        seed: int32 [2], of this step.
    """

    item: tf.Tensor
    classes: tf.Tensor
    seed: tf.Tensor


class RelatedBatch(NamedTuple):
    """Items, and who among them is like whom. An item beside its own copy is neither positive nor negative.

    Attributes:
        item: int64 [B]; the second half are the partners of the first.
        positive: bool [B, B].
        negative: bool [B, B].
        seed: int32 [2], of this step.
    """

    item: tf.Tensor
    positive: tf.Tensor
    negative: tf.Tensor
    seed: tf.Tensor


@dataclass(frozen=True)
class _Steps:
    """Attributes: `size`, examples a batch, or all where there are fewer; `seed`, of the order and what is drawn."""

    size: int
    seed: int

    @property
    @abstractmethod
    def count(self) -> int:
        """Examples of one epoch."""

    @abstractmethod
    def batch(self, epoch: int, step: int) -> Any:
        """The batch of one step."""

    @property
    def steps(self) -> int:
        """Steps of one epoch; the last, partial batch is left out, another one in each epoch's order."""
        return max(1, self.count // self.size)

    def epoch(self, epoch: int, first_step: int = 0) -> Iterator[tuple[int, Any]]:
        """The steps of one epoch from `first_step` on."""
        for step in range(first_step, self.steps):
            yield step, self.batch(epoch, step)

    def _examples(self, epoch: int, step: int) -> Int64s:
        begin = step * self.size
        places = np.arange(begin, min(begin + self.size, self.count), dtype=np.int64)
        return shuffled(places, self.count, order_key(self.seed, epoch))

    def _seed(self, epoch: int, step: int) -> Any:
        return np.array([self.seed, epoch * self.steps + step], np.int32)


@dataclass(frozen=True)
class ClassItems(_Steps):
    """Batches of items with their classes: an item is an example.

    Attributes:
        classes: [N, K], -1 where an item has fewer than K.
    """

    classes: Int64s

    @property
    def count(self) -> int:
        """Examples of one epoch."""
        return len(self.classes)

    def batch(self, epoch: int, step: int) -> ClassBatch:
        """The batch of one step."""
        item = self._examples(epoch, step)
        return ClassBatch(item, self.classes[item], self._seed(epoch, step))


@dataclass(frozen=True)
class RelatedItems(_Steps):
    """Batches of items of which each has one that is like it: an example is two items.

    Attributes:
        relation: among the training items.
    """

    relation: Relation

    @property
    def count(self) -> int:
        """Examples of one epoch."""
        return self.relation.examples()

    def batch(self, epoch: int, step: int) -> RelatedBatch:
        """The batch of one step."""
        generator = np.random.default_rng((self.seed, epoch, step))
        item = np.concatenate(self.relation.partners(self._examples(epoch, step), generator))
        other = item[:, np.newaxis] != item[np.newaxis, :]
        alike = self.relation.between(item, item) & other
        return RelatedBatch(item, alike, other & ~alike, self._seed(epoch, step))


def batches(relation: Relation, against: str, batch_size: int, seed: int) -> ClassItems | RelatedItems:
    """The batches of a recipe, at most `batch_size` items each."""
    if against == "centres":
        if not isinstance(relation, ByClass):
            raise TypeError("pairs have no classes and so no centres")
        return ClassItems(batch_size, seed, relation.padded())
    return RelatedItems(max(1, batch_size // 2), seed, relation)
