"""Training batches of `task = "similarity"`: a function of epoch and step alone, so that a resumed run sees the same.

`ClassBatch` compares items with the centres of classes, `RelatedBatch` with the other items of the batch. Items are
ranks of `towers.data.item_ranks`, which here are places among the training items.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from towers.data.batch import share
from towers.data.events import Int64s
from towers.data.item_relations import ByClass, Relation
from towers.data.shuffle import order_key, shuffled


class ClassBatch(NamedTuple):
    """Items and their classes.

    Attributes:
        item: int64 [B].
        classes: int64 [B, K], padded with -1.
        seed: int32 [2] of this step.
    """

    item: tf.Tensor
    classes: tf.Tensor
    seed: tf.Tensor


class RelatedBatch(NamedTuple):
    """Items, and which of a batch are like them. An item and its own copy are neither positive nor negative.

    Attributes:
        item: int64 [B]; of the whole batch, the second half are the partners of the first.
        positive: bool [B, M], M items in the whole batch.
        negative: bool [B, M].
        seed: int32 [2] of this step.
    """

    item: tf.Tensor
    positive: tf.Tensor
    negative: tf.Tensor
    seed: tf.Tensor


@dataclass(frozen=True)
class SimilarItems:
    """The batches of a recipe.

    Attributes:
        relation: among the training items.
        size: examples per batch, or all if there are fewer: items, or pairs of items that are alike.
        seed: of the order and the draws.
        classes: [N, K] of the items if the candidates are centres, padded with -1; None if the candidates are the
            batch's own items.
        worker, workers: of which part of each batch are made, of how many equal ones.
    """

    relation: Relation
    size: int
    seed: int
    classes: Int64s | None
    worker: int = 0
    workers: int = 1

    @property
    def count(self) -> int:
        """Examples per epoch."""
        return self.relation.examples() if self.classes is None else len(self.classes)

    @property
    def steps(self) -> int:
        """Steps per epoch. The last, partial batch is left out; each epoch's order leaves out another one."""
        return max(1, self.count // self.size)

    def batches(self, epoch: int, steps: range) -> list[ClassBatch | RelatedBatch]:
        """The batches of some steps."""
        return [self.batch(epoch, step) for step in steps]

    def batch(self, epoch: int, step: int) -> ClassBatch | RelatedBatch:
        """The batch of one step."""
        begin = step * self.size
        places = np.arange(begin, min(begin + self.size, self.count), dtype=np.int64)
        example = shuffled(places, self.count, order_key(self.seed, epoch))
        seed = np.array([self.seed, epoch * self.steps + step], np.int32)
        if self.classes is not None:
            own = share(example, self.worker, self.workers)
            return ClassBatch(own, self.classes[own], seed)
        generator = np.random.default_rng((self.seed, epoch, step))
        every = np.concatenate(self.relation.partners(example, generator))
        item = share(every, self.worker, self.workers)
        other = item[:, np.newaxis] != every[np.newaxis, :]
        alike = self.relation.between(item, every) & other
        return RelatedBatch(item, alike, other & ~alike, seed)


def batches(
    relation: Relation, against: str, batch_size: int, seed: int, worker: int = 0, workers: int = 1
) -> SimilarItems:
    """The batches of a recipe, at most `batch_size` items each, or one worker's part of each."""
    if against != "centres":
        return SimilarItems(relation, max(1, batch_size // 2), seed, None, worker, workers)
    if not isinstance(relation, ByClass):
        raise TypeError("pairs have no classes and so no centres")
    return SimilarItems(relation, batch_size, seed, relation.padded(), worker, workers)
