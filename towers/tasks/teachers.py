"""The teachers of a distillation: trained towers with the features of the model that learns from them."""

from collections.abc import Callable, Sequence
from pathlib import Path

import tensorflow as tf

from towers.losses.distillation import Side
from towers.model.two_tower import Encoded, TwoTower


class Teachers:
    """Several models as one: its vectors are theirs side by side, its score the mean of theirs.

    Not a `tf.Module`, so that a task neither trains nor saves them.

    Args:
        towers: their towers.
        share: weight a of their loss; the events' loss weighs 1 - a.
    """

    def __init__(self, towers: Sequence[TwoTower], share: float) -> None:
        # In a function: Keras tracks the lists of what a model holds.
        self.towers: Callable[[], Sequence[TwoTower]] = lambda: towers
        self.share = share

    @classmethod
    def read(cls, checkpoints: Sequence[Path], new: Callable[[], TwoTower], share: float) -> "Teachers":
        """Reads them; weights of hidden layers follow when they are created.

        Args:
            checkpoints: of the towers of each.
            new: builds the towers of one, untrained.
            share: as above.
        """
        towers = [new() for _ in checkpoints]
        for each, checkpoint in zip(towers, checkpoints, strict=True):
            tf.train.Checkpoint(model=each).read(str(checkpoint))
        return cls(towers, share)

    def create_weights(self, query: Encoded, item: Encoded) -> None:
        """Creates the weights of hidden layers, which a checkpoint then fills."""
        for each in self.towers():
            each.query_tower(query)
            each.candidate_tower(item)

    def side(self, query: Encoded, item: Encoded, candidates: Encoded, offset: tf.Tensor, batch: int) -> Side:
        """What they say of a batch; no gradient flows.

        Args:
            query: looked-up features of B queries.
            item: of each query's item.
            candidates: of M candidates.
            offset: [B] subtracted from the logits of the queries' own items.
            batch: B.
        """
        towers = self.towers()
        queries = [each.query_tower(query) * each.scale() / len(towers) for each in towers]
        items, vectors = ([each.candidate_tower(encoded) for each in towers] for encoded in (item, candidates))
        asked, own, found = (tf.stop_gradient(tf.concat(parts, axis=1)) for parts in (queries, items, vectors))
        return Side(tf.ensure_shape(asked, [batch, None]), tf.reduce_sum(asked * own, axis=1) - offset, found)
