"""Softmax over the whole catalogue for all items of a user at once, none of them a negative of another.

An epoch scores the catalogue once a user, not once an event: where users have many events, as in MovieLens, that is a
small part of the work.
"""

from collections.abc import Callable
from typing import NamedTuple

import tensorflow as tf

from towers.losses.blockwise_softmax import Block, softmax, summed
from towers.losses.scores import LOWEST, NO_PLACE, KnownPositives, product


class Teacher(NamedTuple):
    """What a user's choice among the items that they did not take is compared with.

    Attributes:
        query: [B, W], multiplied by the scale of its scores; W may differ from D.
        vector: [N, W] of the whole catalogue.
        share: a, the weight of its part of the loss.
    """

    query: tf.Tensor
    vector: tf.Tensor
    share: float


def user_softmax(
    query: tf.Tensor,
    vector: tf.Tensor,
    item: tf.Tensor,
    present: tf.Tensor,
    weight: tf.Tensor,
    teacher: Teacher | None = None,
    *,
    half: bool = False,
) -> tf.Tensor:
    """``sum_i w_i mean_{y in P_i} (-s_iy + log(exp s_iy + sum_{j not in P_i} exp s_ij))``, a scalar.

    P_i is the set of query i's items, s the scores of all N items. Gradients flow to queries and vectors. With a
    teacher the result is (1 - a) times that, plus a times ``sum_i w_i sum_{j not in P_i} t_ij (log t_ij - log p_ij)``,
    p and t the softmax of the model's and the teacher's scores over what the user did not take.

    Args:
        query: [B, D], multiplied by the scale of the scores; B is known while tracing.
        vector: [N, D] of the whole catalogue.
        item: int64 [B, L], below N; one that stands twice counts once.
        present: bool [B, L]; at least one of each query.
        weight: [B].
        teacher: None: there is none.
        half: multiply in bfloat16.

    Source: the multinomial likelihood of Liang et al., Variational autoencoders for collaborative filtering, WWW 2018,
    without a user's other items in the sum; the teacher's part: `towers.losses.distillation`.
    """

    places = tf.range(tf.shape(vector, out_type=tf.int64)[0])
    own = KnownPositives(tf.where(present, item, NO_PLACE), places)

    @tf.custom_gradient
    def total(
        query: tf.Tensor, vector: tf.Tensor
    ) -> tuple[tf.Tensor, Callable[[tf.Tensor], tuple[tf.Tensor, tf.Tensor]]]:
        found = summed(_Parts(query, vector, own, weight, teacher, half).block, query, vector)
        return found.loss, lambda upstream: (upstream * found.of_query, upstream * found.of_vector)

    return total(query, vector)


class _Parts(NamedTuple):
    query: tf.Tensor
    vector: tf.Tensor
    own: KnownPositives  # among all items
    weight: tf.Tensor
    teacher: Teacher | None
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
        loss = tf.reduce_sum(of_each * tf.nn.softplus(above))
        if self.teacher is not None:
            asked = tf.slice(self.teacher.query, tf.stack([first, 0]), [count, self.teacher.query.shape[1]])
            wanted = product(asked, self.teacher.vector, half=self.half, transpose_b=True)
            goals, goal_log_sum = softmax(tf.where(own, LOWEST, wanted))
            # Who took everything has equal shares of nothing.
            goals, shares = (tf.where(own, 0.0, each) for each in (goals, shares))
            entropy = tf.reduce_sum(goals * (wanted - scores), axis=1) + log_sum - goal_log_sum
            a = self.teacher.share
            loss = (1 - a) * loss + a * tf.reduce_sum(weight * entropy)
            slope = (1 - a) * slope + a * weight[:, tf.newaxis] * (shares - goals)
        return Block(
            loss,
            product(slope, self.vector, half=self.half),
            tf.zeros([count]),
            product(slope, query, half=self.half, transpose_a=True),
        )
