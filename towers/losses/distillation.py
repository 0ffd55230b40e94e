"""Distillation: a student learns from the whole order in which teachers place a batch's candidates.

An event says of one item that it was taken. Teachers say of every candidate how likely it was, and the mean of several
models knows that better than each of them.
"""

from collections.abc import Callable
from typing import NamedTuple

import tensorflow as tf

from towers.losses.blockwise_softmax import Block, Candidates, softmax, summed
from towers.losses.scores import LOWEST, product

HIDDEN = LOWEST / 2  # a score below is masked


class Side(NamedTuple):
    """What one model, student or teachers, has to say of a batch.

    Attributes:
        query: [B, D], multiplied by the scale of the scores.
        own: [B] logit of each query's positive, corrected.
        vector: [M, D] of the candidates.
    """

    query: tf.Tensor
    own: tf.Tensor
    vector: tf.Tensor


def distillation(
    student: Side, teacher: Side, weight: tf.Tensor, candidates: Candidates, *, half: bool = False
) -> tf.Tensor:
    """``sum_i w_i sum_j t_ij (log t_ij - log p_ij)``, a scalar; j over query i's positive and the candidates.

    ``p_i = softmax_j(s_ij - c log Q_j)`` of the student, t the same of the teacher: the relative entropy of the
    student's choice among the candidates. It is 0 where both agree. Gradients flow to the student alone.

    Args:
        student: the model that learns; B and M are known while tracing.
        teacher: the model that it learns from; its width may differ.
        weight: [B].
        candidates: their offsets ``-c log Q`` and masks hold for both; their vectors are not read.
        half: multiply in bfloat16.

    Source: Hinton et al., Distilling the knowledge in a neural network, 2015, arXiv:1503.02531; over items: Tang &
    Wang, Ranking distillation, KDD 2018.
    """
    offset = tf.where(candidates.mask, candidates.offset, LOWEST)

    @tf.custom_gradient
    def total(
        query: tf.Tensor, own: tf.Tensor, vector: tf.Tensor
    ) -> tuple[tf.Tensor, Callable[[tf.Tensor], list[tf.Tensor]]]:
        pair = _Pair(Side(query, own, vector), teacher, weight, candidates._replace(offset=offset), half)
        loss, *gradients = summed(pair.block, query, vector)
        return loss, lambda upstream: [upstream * each for each in gradients]

    return total(*student)


class _Pair(NamedTuple):
    student: Side
    teacher: Side
    weight: tf.Tensor
    candidates: Candidates
    half: bool

    def block(self, first: tf.Tensor, count: int) -> Block:
        weight = tf.slice(self.weight, [first], [count])
        query, own, scores = self._scores(self.student, first, count)
        scores = self.candidates.masked(scores, first)
        _, teacher_own, teacher_scores = self._scores(self.teacher, first, count)
        teacher_scores = tf.where(scores > HIDDEN, teacher_scores, LOWEST)
        shares, share, log_sum = _with_own(scores, own)
        goals, goal, teacher_log_sum = _with_own(teacher_scores, teacher_own)
        # Masked scores are equal, and their goals 0.
        apart = tf.reduce_sum(goals * (teacher_scores - scores), axis=1) + goal * (teacher_own - own)
        loss = tf.reduce_sum(weight * (apart + log_sum - teacher_log_sum))
        slope = weight[:, tf.newaxis] * (shares - goals)
        vector = self.student.vector
        of_query = product(slope, vector, half=self.half)
        of_vector = product(slope, query, half=self.half, transpose_a=True)
        return Block(loss, of_query, weight * (share - goal), of_vector)

    def _scores(self, side: Side, first: tf.Tensor, count: int) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        query = tf.slice(side.query, tf.stack([first, 0]), [count, side.query.shape[1]])
        scores = product(query, side.vector, half=self.half, transpose_b=True) + self.candidates.offset
        return query, tf.slice(side.own, [first], [count]), scores


def _with_own(scores: tf.Tensor, own: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Shares [b, M] and [b] of candidates and own item, and the log-sum-exp [b] of both."""
    shares, of_others = softmax(scores)
    share = tf.sigmoid(own - of_others)
    log_sum = tf.maximum(own, of_others) + tf.nn.softplus(-tf.abs(own - of_others))
    return shares * (1 - share)[:, tf.newaxis], share, log_sum
