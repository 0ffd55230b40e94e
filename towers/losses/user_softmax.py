"""Softmax over the whole catalogue for all items of a user at once, none of them a negative of another.

An epoch scores the catalogue once a user, not once an event: where users have many events, as in MovieLens, that is a
small part of the work.
"""

from collections.abc import Callable
from typing import NamedTuple

import tensorflow as tf

from towers.losses.blockwise_softmax import Block, softmax, summed
from towers.losses.scores import LOWEST, NO_PLACE, KnownPositives, product


def user_softmax(
    query: tf.Tensor, vector: tf.Tensor, item: tf.Tensor, present: tf.Tensor, weight: tf.Tensor, *, half: bool = False
) -> tf.Tensor:
    """``sum_i w_i mean_{y in P_i} (-s_iy + log(exp s_iy + sum_{j not in P_i} exp s_ij))``, a scalar.

    P_i is the set of query i's items, s the scores of all N items. Gradients flow to queries and vectors.

    Args:
        query: [B, D], multiplied by the scale of the scores; B is known while tracing.
        vector: [N, D] of the whole catalogue.
        item: int64 [B, L], below N; one that stands twice counts once.
        present: bool [B, L]; at least one of each query.
        weight: [B].
        half: multiply in bfloat16.

    Source: the multinomial likelihood of Liang et al., Variational autoencoders for collaborative filtering, WWW 2018,
    without a user's other items in the sum.
    """

    places = tf.range(tf.shape(vector, out_type=tf.int64)[0])
    own = KnownPositives(tf.where(present, item, NO_PLACE), places)

    @tf.custom_gradient
    def total(
        query: tf.Tensor, vector: tf.Tensor
    ) -> tuple[tf.Tensor, Callable[[tf.Tensor], tuple[tf.Tensor, tf.Tensor]]]:
        found = summed(_Parts(query, vector, own, weight, half).block, query, vector)
        return found.loss, lambda upstream: (upstream * found.of_query, upstream * found.of_vector)

    return total(query, vector)


class _Parts(NamedTuple):
    query: tf.Tensor
    vector: tf.Tensor
    own: KnownPositives  # among all items
    weight: tf.Tensor
    half: bool

    def block(self, first: tf.Tensor, count: int) -> Block:
        query = tf.slice(self.query, tf.stack([first, 0]), [count, self.query.shape[1]])
        weight = tf.slice(self.weight, [first], [count])
        scores = product(query, self.vector, half=self.half, transpose_b=True)
        own = self.own.rows(first, count).hits()
        shares, log_sum = softmax(tf.where(own, LOWEST, scores))  # of what the user did not take
        above = log_sum[:, tf.newaxis] - scores
        positive = tf.cast(own, scores.dtype)
        of_each = positive * (weight / tf.reduce_sum(positive, axis=1))[:, tf.newaxis]
        pull = of_each * tf.sigmoid(above)
        slope = shares * tf.reduce_sum(pull, axis=1, keepdims=True) - pull
        return Block(
            tf.reduce_sum(of_each * tf.nn.softplus(above)),
            product(slope, self.vector, half=self.half),
            tf.zeros([count]),
            product(slope, query, half=self.half, transpose_a=True),
        )
