"""One training batch, which `towers.data.examples` makes and a task takes."""

from collections.abc import Mapping
from typing import NamedTuple

import tensorflow as tf

from towers.data.events import Int64s
from towers.errors import ConfigError


class Batch(NamedTuple):
    """The examples of one step. Items are ranks of `towers.data.item_ranks`.

    Attributes:
        query: looked-up features by name: `[B]`, float `[B, 2]`, float `[B, L + 1]` of vectors, a `Bag` or `Sequences`.
        item: int64 [B, K] positives, the example's own first.
        present: bool [B, K]; False where an example has fewer than K.
        label: float32 [B, K] weights of their events; 1 in data without weights.
        known: int64 [B, L] other items of the same user, not among the positives; -1 where there is none.
        shown: int64 [B, n] items that the user was shown and had not taken, none in `item` or `known`; -1 where there
            is none.
        user: int64 [B] user numbers.
        weight: float32 [B] example weights.
        seed: int32 [2] of this step.
    """

    query: Mapping[str, tf.Tensor]
    item: tf.Tensor
    present: tf.Tensor
    label: tf.Tensor
    known: tf.Tensor
    shown: tf.Tensor
    user: tf.Tensor
    weight: tf.Tensor
    seed: tf.Tensor

    def label_shares(self, *, by_weight: bool) -> tf.Tensor:
        """The label distribution over each example's positives, [B, K]: equal, or in proportion to their weights."""
        label = tf.cast(self.present, tf.float32)
        if by_weight:
            label *= self.label
        return label / tf.reduce_sum(label, axis=1, keepdims=True)


def share(example: Int64s, worker: int, workers: int) -> Int64s:
    """One worker's or device's part of the examples of each step; all parts have the same size.

    Args:
        example: [..., B].
        worker, workers: the number of the part, from 0, and how many there are.

    Raises:
        ConfigError: B is no multiple of `workers`.
    """
    size, rest = divmod(example.shape[-1], workers)
    if rest:
        raise ConfigError(
            f"train.batch_size: {workers} workers or devices cannot share the {example.shape[-1]} examples of a step "
            f"equally; take a multiple of {workers} that is no more than the examples that there are, or fewer workers "
            "or devices"
        )
    return example[..., worker * size : (worker + 1) * size]
