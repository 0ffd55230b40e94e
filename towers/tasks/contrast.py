"""Contrast of items: each item of a batch beside a companion of it, among the companions of the others.

Events say that two items are alike only through the users that both have, and rare items have few. The contrast trains
it directly.
"""

from typing import NamedTuple

import numpy as np
import tensorflow as tf

from towers.config.section import Window
from towers.data.batch import Batch
from towers.data.events import Events
from towers.data.item_ranks import ItemRanks
from towers.errors import ConfigError
from towers.features.cooccurrence import Companions, companions
from towers.losses.blockwise_softmax import Candidates, softmax_losses
from towers.losses.scores import KnownPositives, known
from towers.ops.replicas import Replicas
from towers.ops.stateless_random import fold, uniforms
from towers.tasks.candidates import NO_ITEM

MOST = 10  # companions of an item


class BatchCompanions(NamedTuple):
    """The companions of a batch's items.

    Attributes:
        rank: int64 [B] of each item's own; any item's for an item that has none.
        weight: [B] of the loss; 0 for an item that has none.
        every: int64 [M] the companions of the items of all workers.
        has: bool [M] whether these items have one.
        hidden: of `every`, the own item and its companions, which are no negatives.
    """

    rank: tf.Tensor
    weight: tf.Tensor
    every: tf.Tensor
    has: tf.Tensor
    hidden: KnownPositives


class Contrast:
    """Draws a companion c of each item i with probability ``a_ic / sum_j a_ij``, and scores i with all companions.

    The loss is ``-s_ic + log sum_j exp s_ij``, j over c and what the batch's other items drew, except i itself and its
    own companions. Sources: the neighbours of NESCL, Sun et al., arXiv:2402.11523, there of users and items in
    two views of a graph; the softmax over a batch: van den Oord et al., Contrastive predictive coding, 2018.

    Not a `tf.Module`, so that a task does not save what is data.

    Args:
        found: the companions of every item, and their closeness a_ij.
        catalogue: the ranks of the items.
        weight: of the loss.

    Raises:
        ConfigError: no item has a companion.
    """

    def __init__(self, found: Companions, catalogue: ItemRanks, weight: float) -> None:
        item, closeness = found.item[catalogue.items], found.closeness[catalogue.items].astype(np.float64)
        if not closeness.any():
            raise ConfigError(
                "contrast.weight: no user took two items, so no item has a companion; leave the section out"
            )
        until = np.cumsum(closeness, axis=1)
        until /= np.maximum(until[:, -1:], np.finfo(np.float64).tiny)
        # The last companion's share ends at exactly 1, so that none of the padding is drawn.
        self._until = tf.Variable(until, trainable=False)
        self._rank = tf.Variable(np.where(item < 0, NO_ITEM, catalogue.ranks[item]), trainable=False)
        self._count, self._weight = len(catalogue), weight

    @classmethod
    def of(cls, events: Events, catalogue: ItemRanks, weight: float, window: Window) -> "Contrast":
        """Counts the companions in the training events.

        Raises:
            ConfigError: no item has a companion, or there are too many pairs of items.
        """
        user, item = np.asarray(events.past.user), np.asarray(events.past.item)
        found = companions(user, item, catalogue.ranks >= 0, window, MOST, "contrast.window")
        return cls(found, catalogue, weight)

    def draw(self, inputs: Batch, replicas: Replicas) -> BatchCompanions:
        """Draws a companion of each example's own item.

        Args:
            inputs: the batch, of several workers this one's part.
            replicas: the workers that share the batch, and draw the same for it.
        """
        item = replicas.gather(inputs.item[:, 0])
        until = tf.gather(self._until, item)
        draws = uniforms(tf.shape(item)[0], fold(tf.cast(inputs.seed, tf.int64), "companions", 0))
        passed = tf.reduce_sum(tf.cast(draws[:, tf.newaxis] >= until, tf.int64), axis=1)
        place = tf.minimum(passed, until.shape[1] - 1)  # an item without companions passes all
        every = tf.maximum(tf.gather(tf.gather(self._rank, item), place, batch_dims=1), 0)
        has = until[:, -1] > 0
        hidden = tf.concat([tf.gather(self._rank, inputs.item[:, 0]), inputs.item[:, :1]], axis=1)
        weight = self._weight * inputs.weight * tf.cast(replicas.own(has), tf.float32)
        return BatchCompanions(replicas.own(every), weight, every, has, known(hidden, every, self._count))

    def loss(
        self, near: BatchCompanions, item: tf.Tensor, companion: tf.Tensor, replicas: Replicas, *, half: bool
    ) -> tf.Tensor:
        """The weighted sum of the losses of a batch's items, a scalar.

        Args:
            near: what `draw` returned for the batch.
            item: [B, D] vectors of the examples' own items, multiplied by the scale of the scores.
            companion: [B, D] those of `near.rank`.
            replicas: as in `draw`.
            half: multiply in bfloat16.
        """
        offset = tf.zeros_like(near.has, tf.float32)
        others = Candidates(replicas.gather(companion), offset, near.has, near.every, None, near.hidden)
        return softmax_losses(item, tf.reduce_sum(item * companion, axis=1), near.weight, others, half=half)
