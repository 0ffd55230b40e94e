"""Sampled softmax without the score matrix [B, M]: blocks of queries whose scores stay in the processor's cache.

The exponentials that the loss sums also make up its gradient, so one pass computes both: three matrix products, and
no second pass over the scores. The gradient needs the weights of the losses in advance, so the result is their
weighted sum. `towers.losses.distillation` compares two models in the same blocks.
"""

from collections.abc import Callable
from typing import NamedTuple

import tensorflow as tf

from towers.losses.scores import LOWEST, KnownPositives, product

SCORES = 1 << 22  # per block: 16 MB, less than a server's last-level cache; smaller blocks leave its cores idle
FEWEST = 64  # queries per block


class Candidates(NamedTuple):
    """The candidates that a batch's queries are scored against.

    Attributes:
        vector: [M, D].
        offset: [M], added to the scores: ``-c log Q``.
        mask: bool [M]; False for a masked candidate.
        name: int64 [M], compared with `excluded`.
        excluded: int64 [B, K], names masked for each query; None: none.
        known: candidates that a query's user is known to like, masked for that query; None: not checked.
        own: the first of the candidates that are the queries' own items, in order, each masked for its query; None:
            none are.
    """

    vector: tf.Tensor
    offset: tf.Tensor
    mask: tf.Tensor
    name: tf.Tensor
    excluded: tf.Tensor | None
    known: KnownPositives | None = None
    own: int | None = None

    def masked(self, scores: tf.Tensor, first: tf.Tensor) -> tf.Tensor:
        """Scores [b, M] of the queries from `first` on, b known while tracing; `LOWEST` for what each must not see."""
        count = scores.shape[0]
        if self.excluded is not None:
            for k in range(self.excluded.shape[1]):
                name = tf.slice(self.excluded, tf.stack([first, k]), [count, 1])
                scores = tf.where(name == self.name, LOWEST, scores)
        if self.own is not None:
            # One number per query; comparing names would need a pass over the scores.
            row = tf.range(count)
            column = first + row
            place = tf.stack([row, column + self.own if self.own else column], axis=1)
            scores = tf.tensor_scatter_nd_update(scores, place, tf.fill([count], LOWEST))
        if self.known is not None:
            scores = tf.where(self.known.rows(first, count).hits(), LOWEST, scores)
        return scores


class Block(NamedTuple):
    """A loss of some queries, and its gradients.

    Attributes:
        loss: a scalar.
        of_query: [b, D].
        of_own: [b], for the queries' own logits.
        of_vector: [M, D], for all candidates.
    """

    loss: tf.Tensor
    of_query: tf.Tensor
    of_own: tf.Tensor
    of_vector: tf.Tensor


def summed(block: Callable[[tf.Tensor, int], Block], query: tf.Tensor, vector: tf.Tensor) -> Block:
    """The loss of all queries [B, D] against the candidates [M, D], block by block.

    Args:
        block: the loss of as many queries as the second argument says, from the one that the first names.
        query: B is known while tracing.
        vector: the candidates.
    """
    rows, columns = query.shape[0], vector.shape[0]
    size = min(rows, max(FEWEST, SCORES // (columns or rows)))
    blocks, rest = divmod(rows, size)

    def step(i: tf.Tensor, loss: tf.Tensor, back: tf.Tensor, *lists: tf.TensorArray) -> tuple[tf.Tensor, ...]:
        part = block(i * size, size)
        own = part.of_query, part.of_own
        return i + 1, loss + part.loss, back + part.of_vector, *(a.write(i, b) for a, b in zip(lists, own, strict=True))

    # The block index is int32 on purpose: it stays in host memory, where loops and slices need it.
    shapes = ([size, query.shape[1]], [size])
    start = (tf.constant(0), tf.zeros([]), tf.zeros_like(vector))
    lists = (tf.TensorArray(tf.float32, blocks, element_shape=shape) for shape in shapes)
    _, loss, back, *lists = tf.while_loop(
        lambda i, *_: i < blocks, step, (*start, *lists), parallel_iterations=1, maximum_iterations=blocks
    )
    of_query, of_own = (each.concat() for each in lists)
    if not rest:
        return Block(loss, of_query, of_own, back)
    last = block(tf.constant(rows - rest), rest)
    return Block(
        loss + last.loss,
        tf.concat([of_query, last.of_query], 0),
        tf.concat([of_own, last.of_own], 0),
        back + last.of_vector,
    )


def softmax(scores: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """The shares [b, M] of scores [b, M], and the log-sum-exp [b].

    One kernel for maximum, exponential, sum and quotient takes half the time of four. Any share gives the log-sum-exp;
    the largest is never 0.
    """
    shares = tf.nn.softmax(scores)
    return shares, tf.reduce_max(scores, axis=1) - tf.math.log(tf.reduce_max(shares, axis=1))


def softmax_losses(
    query: tf.Tensor, own: tf.Tensor, weight: tf.Tensor, candidates: Candidates, *, half: bool = False
) -> tf.Tensor:
    """``sum_i w_i log(1 + sum_j exp(s_ij + offset_j - own_i))``, a scalar.

    Gradients flow to the queries, own logits and candidate vectors; offsets and weights are constants.

    Args:
        query: [B, D], multiplied by the scale of the scores; B is known while tracing.
        own: [B] log-sum-exp of each query's positives, corrected.
        weight: [B].
        candidates: shared by all queries.
        half: multiply in bfloat16.
    """
    offset = tf.where(candidates.mask, candidates.offset, LOWEST)

    @tf.custom_gradient
    def total(
        query: tf.Tensor, own: tf.Tensor, vector: tf.Tensor
    ) -> tuple[tf.Tensor, Callable[[tf.Tensor], list[tf.Tensor]]]:
        # As an extra dimension, the offset costs no pass over the scores.
        longer = tf.concat([vector, offset[:, tf.newaxis]], 1)
        parts = _Parts(query, own, weight, candidates._replace(vector=vector, offset=offset), half, longer)
        loss, *gradients = summed(parts.block, query, vector)
        return loss, lambda upstream: [upstream * each for each in gradients]

    return total(query, own, candidates.vector)


class _Parts(NamedTuple):
    query: tf.Tensor
    own: tf.Tensor
    weight: tf.Tensor
    candidates: Candidates
    half: bool
    longer: tf.Tensor

    def block(self, first: tf.Tensor, count: int) -> Block:
        query = tf.slice(self.query, tf.stack([first, 0]), [count, self.query.shape[1]])
        own, weight = (tf.slice(each, [first], [count]) for each in (self.own, self.weight))
        vector = self.candidates.vector
        if self.half:
            # bfloat16 would lose the offset's last digits.
            scores = product(query, vector, half=True, transpose_b=True) + self.candidates.offset
        else:
            scores = tf.matmul(tf.concat([query, tf.ones([count, 1])], 1), self.longer, transpose_b=True)
        scores = self.candidates.masked(scores, first)
        shares, log_sum = softmax(scores)
        above = log_sum - own  # negatives' log-sum-exp over the positives'
        of_own = weight * tf.sigmoid(above)
        of_query = product(shares, vector, half=self.half) * of_own[:, tf.newaxis]
        of_vector = product(shares, query * of_own[:, tf.newaxis], half=self.half, transpose_a=True)
        return Block(tf.reduce_sum(weight * tf.nn.softplus(above)), of_query, -of_own, of_vector)
