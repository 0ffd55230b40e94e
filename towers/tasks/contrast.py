"""Contrast of items: each item of a batch beside a companion of it, among the companions of the others.

An event tells of two items that they are alike only through the users that both have. The contrast says it at once, and
of rare items, too, whose events are few.
"""

from collections.abc import Callable
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
from towers.losses.scores import known
from towers.ops.replicas import Replicas
from towers.ops.stateless_random import fold, uniforms
from towers.tasks.candidates import COMPANIONS, NO_ITEM

MOST = 10  # companions of an item


class Beside(NamedTuple):
    """The companions of a batch's items.

    Attributes:
        vector: [B, D] of each item's own.
        weight: [B] of the loss; 0 for an item that has none.
        candidates: those of all items.
    """

    vector: tf.Tensor
    weight: tf.Tensor
    candidates: Candidates


class Contrast:
    """Draws a companion c of each item i with probability ``a_ic / sum_j a_ij``, and scores i with all companions.

    The loss is ``-s_ic + log sum_j exp s_ij``, j over c and what the batch's other items drew, but for i itself and its
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
            raise ConfigError("contrast.weight: no user took two items, so no item has a companion; set it to 0")
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

    def draw(self, inputs: Batch, encoded: Callable[[tf.Tensor, tf.Tensor], tf.Tensor], replicas: Replicas) -> Beside:
        """Draws a companion of each example's own item.

        Args:
            inputs: the batch, of several workers this one's part.
            encoded: gives the vectors [n, D] of items [n] for a seed [2].
            replicas: the workers that share the batch.
        """
        item = replicas.gather(inputs.item[:, 0])
        until = tf.gather(self._until, item)
        has = until[:, -1] > 0
        draws = uniforms(tf.shape(item)[0], fold(tf.cast(inputs.seed, tf.int64), "companions", 0))
        passed = tf.reduce_sum(tf.cast(draws[:, tf.newaxis] >= until, tf.int64), axis=1)
        place = tf.minimum(passed, until.shape[1] - 1)  # an item without companions passes all
        every = tf.maximum(tf.gather(tf.gather(self._rank, item), place, batch_dims=1), 0)
        vector = encoded(replicas.own(every), replicas.seed(inputs.seed) + COMPANIONS)
        near = tf.concat([tf.gather(self._rank, inputs.item[:, 0]), inputs.item[:, :1]], axis=1)
        hidden = known(near, every, self._count)
        offset = tf.zeros_like(has, tf.float32)
        weight = self._weight * inputs.weight * tf.cast(replicas.own(has), tf.float32)
        return Beside(vector, weight, Candidates(replicas.gather(vector), offset, has, every, None, hidden))

    def loss(
        self, beside: Beside, item: tf.Tensor, cut: Callable[[tf.Tensor], tf.Tensor], scale: tf.Tensor, *, half: bool
    ) -> tf.Tensor:
        """The weighted sum of the losses of a batch's items, a scalar.

        Args:
            beside: their companions.
            item: [B, D] vectors of the items.
            cut: cuts vectors [n, D] to the width that is trained.
            scale: scalar, of the scores.
            half: multiply in bfloat16.
        """
        asked = cut(item) * scale
        own = tf.reduce_sum(asked * cut(beside.vector), axis=1)
        candidates = beside.candidates._replace(vector=cut(beside.candidates.vector))
        return softmax_losses(asked, own, beside.weight, candidates, half=half)
