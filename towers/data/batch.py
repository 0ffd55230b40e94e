"""One training batch, which `towers.data.examples` makes and a task takes."""

from collections.abc import Mapping
from typing import NamedTuple

import tensorflow as tf


class Batch(NamedTuple):
    """The examples of one step. Items are ranks of `towers.data.item_ranks`.

    Attributes:
        query: looked-up features by name, `[B]`, `[B, L]`, `[B, 2]` or a `Bag`.
        item: int64 [B, K] positives, the example's own first.
        present: bool [B, K]; False where an example has fewer than K.
        label: float32 [B, K] weights of their events; 1 in data without weights.
        known: int64 [B, L] other items of the same user, not among the positives; -1 where there is none.
        user: int64 [B] user numbers.
        weight: float32 [B] example weights.
        seed: int32 [2] of this step.
    """

    query: Mapping[str, tf.Tensor]
    item: tf.Tensor
    present: tf.Tensor
    label: tf.Tensor
    known: tf.Tensor
    user: tf.Tensor
    weight: tf.Tensor
    seed: tf.Tensor
