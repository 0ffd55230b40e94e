"""The teachers of a distillation: trained towers with the features of the model that learns from them."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from towers.model.two_tower import Encoded, TwoTower


class Factors(NamedTuple):
    """A model in closed form: its score is a product of a user's vector and an item's.

    Attributes:
        users: [all users, R].
        items: [N, R], by rank.
    """

    users: NDArray[np.float32]
    items: NDArray[np.float32]


class Teachers:
    """Several models as one: its vectors are theirs side by side, its score the mean of theirs plus that of factors.

    Not a `tf.Module`, so that a task neither trains nor saves them.

    Args:
        towers: their towers.
        share: weight a of their loss; the events' loss weighs 1 - a.
        factors: None: there are none.
    """

    def __init__(self, towers: Sequence[TwoTower], share: float, factors: Factors | None = None) -> None:
        # In a function: Keras tracks the lists of what a model holds.
        self.towers: Callable[[], Sequence[TwoTower]] = lambda: towers
        self.share = share
        self._tables = None if factors is None else [tf.Variable(each, trainable=False) for each in factors]

    @classmethod
    def read(
        cls, checkpoints: Sequence[Path], new: Callable[[], TwoTower], share: float, factors: Factors | None = None
    ) -> "Teachers":
        """Reads them; weights of hidden layers follow when they are created.

        Args:
            checkpoints: of the towers of each.
            new: builds the towers of one, untrained.
            share, factors: as above.
        """
        towers = [new() for _ in checkpoints]
        for each, checkpoint in zip(towers, checkpoints, strict=True):
            tf.train.Checkpoint(model=each).read(str(checkpoint))
        return cls(towers, share, factors)

    def create_weights(self, query: Encoded, item: Encoded) -> None:
        """Creates the weights of hidden layers, which a checkpoint then fills."""
        for each in self.towers():
            each.query_tower(query)
            each.candidate_tower(item)

    def queries(self, query: Encoded, user: tf.Tensor) -> tf.Tensor:
        """Vectors [B, W] of B queries, multiplied by the scale of the scores; no gradient flows.

        Args:
            query: their looked-up features.
            user: [B] user numbers.
        """
        towers = self.towers()
        parts = [each.query_tower(query) * each.scale() / len(towers) for each in towers]
        # Histories come in any number of rows, so a query of these alone has forgotten how many it has.
        return tf.ensure_shape(self._joined(parts, 0, user), [user.shape[0], None])

    def items(self, item: Encoded, rank: tf.Tensor) -> tf.Tensor:
        """Vectors [n, W] of items [n]; no gradient flows.

        Args:
            item: their looked-up features.
            rank: their ranks.
        """
        return self._joined([each.candidate_tower(item) for each in self.towers()], 1, rank)

    def _joined(self, parts: list[tf.Tensor], side: int, row: tf.Tensor) -> tf.Tensor:
        """The vectors of all towers side by side, with the rows of the factors of a side: 0 is of users, 1 of items."""
        if self._tables is not None:
            parts = [*parts, tf.gather(self._tables[side], row)]
        return tf.stop_gradient(tf.concat(parts, axis=1))
