"""The input of every loss on candidates (scores, masks, log Q) and the steps that losses are built from.

The steps are masked sums, means and log-sum-exps; products of queries and candidates; distances; and masks of
candidates that are positives or known to the user.
"""

from typing import NamedTuple

import tensorflow as tf

# Stands for -inf: far below any score, yet float32 can still scale it, add to it and subtract from it.
LOWEST = -1e30
# Added under the root to keep its slope finite: at cos = 1 the distance is 0.001 instead of 0 and the slope -500; at
# d = 0.1 it is 0.000005 too long. In the angle t, where cos = cos t, the slope is at most 0.71, as without it.
# The triangle inequality survives: sqrt(a^2 + e) + sqrt(b^2 + e) >= sqrt((a + b)^2 + e).
EPSILON = 1e-6
# A table of all items is three times as fast as a binary search while it fits the processor's cache.
MOST_IN_TABLE = 1 << 21
NO_PLACE = -1


class Scores(NamedTuple):
    """Scores of one batch: logits for a loss with a temperature, unscaled similarities for one with its own scale.

    Attributes:
        positive: [B, K] of each query's positives; of a user the example's own first.
        negative: [B, M].
        positive_mask: bool [B, K]; False where a query has fewer than K positives. Of a user the first always exists.
        negative_mask: bool [B, M]; False where a candidate is masked for a query: it gets probability 0.
        log_q_positive: [B, K] log Q of the positives; Q is how often an item is expected among the candidates.
        log_q_negative: [M] or [B, M] log Q of the candidates.
        log_weight: [M] log of the factor of each candidate's term in the sum over them; None: all are 1.
    """

    positive: tf.Tensor
    negative: tf.Tensor
    positive_mask: tf.Tensor
    negative_mask: tf.Tensor
    log_q_positive: tf.Tensor
    log_q_negative: tf.Tensor
    log_weight: tf.Tensor | None = None

    def in_float32(self) -> "Scores":
        """The same in float32: exponentials of half-precision scores overflow at 11."""
        return self._replace(
            positive=tf.cast(self.positive, tf.float32),
            negative=tf.cast(self.negative, tf.float32),
            log_q_positive=tf.cast(self.log_q_positive, tf.float32),
            log_q_negative=tf.cast(self.log_q_negative, tf.float32),
        )


def without_negatives(positive: tf.Tensor, present: tf.Tensor) -> Scores:
    """Scores [B, K] for a loss that learns from labels; M is 0."""
    none = tf.zeros([tf.shape(positive)[0], 0])
    return Scores(positive, none, present, tf.cast(none, tf.bool), tf.zeros_like(positive), tf.zeros([0]))


def without_hits(mask: tf.Tensor, positives: tf.Tensor, present: tf.Tensor, candidates: tf.Tensor) -> tf.Tensor:
    """Masks the candidates that equal one of the query's positives.

    The remaining candidates are not an exact sample of the other items: the sampled loss gets a relative bias of about
    the positive's Q, which vanishes as the catalogue grows.

    Args:
        mask: bool [B, M] or [1, M].
        positives: int64 [B, K] items.
        present: bool [B, K].
        candidates: int64 [M] items.

    Returns:
        bool [B, M].
    """
    for k in range(positives.shape[1]):  # K is small; a [B, K, M] tensor would not be
        same = (positives[:, k : k + 1] == candidates[tf.newaxis, :]) & present[:, k : k + 1]
        mask = mask & ~same
    return mask


def hardest(scores: Scores, count: int, strength: float) -> Scores:
    """Keeps each query's `count` negatives with the highest corrected scores.

    Args:
        scores: of all candidates.
        count: at most M.
        strength: c / g, the correction in the unit of the scores.
    """
    # In float32: in half precision, distinct candidates would round to the same score.
    _, negative = corrected(scores.in_float32(), strength)
    ranked = tf.where(scores.negative_mask, negative, negative.dtype.min)
    _, column = tf.math.top_k(tf.stop_gradient(ranked), count)
    column = tf.cast(column, tf.int64)  # the gradient of a gather does arithmetic on its indices
    log_q = tf.broadcast_to(scores.log_q_negative, tf.shape(scores.negative))
    return scores._replace(
        negative=tf.gather(scores.negative, column, batch_dims=1),
        negative_mask=tf.gather(scores.negative_mask, column, batch_dims=1),
        log_q_negative=tf.gather(log_q, column, batch_dims=1),
    )


def total(values: tf.Tensor, mask: tf.Tensor) -> tf.Tensor:
    """Sum of the unmasked entries over the last axis; 0 if there is none."""
    return tf.reduce_sum(tf.where(mask, values, 0.0), axis=-1)


def count(mask: tf.Tensor) -> tf.Tensor:
    """Number of unmasked entries along the last axis, float32."""
    return tf.reduce_sum(tf.cast(mask, tf.float32), axis=-1)


def mean(values: tf.Tensor, mask: tf.Tensor) -> tf.Tensor:
    """Mean of the unmasked entries over the last axis; 0 if there is none."""
    return total(values, mask) / tf.maximum(count(mask), 1.0)


def log_sum_exp(values: tf.Tensor, mask: tf.Tensor) -> tf.Tensor:
    """Log-sum-exp of the unmasked entries over the last axis; `LOWEST` if there is none."""
    return tf.reduce_logsumexp(tf.where(mask, values, LOWEST), axis=-1)


def corrected(scores: Scores, correction: float, scale: float = 1.0) -> tuple[tf.Tensor, tf.Tensor]:
    """Logits minus the correction, ``g s - c log Q``, of weighted candidates ``g s - c log Q + log w``.

    Args:
        scores: float32.
        correction: c.
        scale: g, which turns scores into logits.

    Returns:
        Logits [B, K] of the positives, and [B, M] of the candidates.
    """
    positive, negative = scale * scores.positive, scale * scores.negative
    if correction:
        positive -= correction * scores.log_q_positive
        negative -= correction * scores.log_q_negative
    return positive, weighted(negative, scores)


def weighted(negative: tf.Tensor, scores: Scores) -> tf.Tensor:
    """Adds log w to the exponents [B, M] of the candidates, so that w multiplies their terms."""
    return negative if scores.log_weight is None else negative + scores.log_weight


def product(
    left: tf.Tensor, right: tf.Tensor, *, half: bool, transpose_a: bool = False, transpose_b: bool = False
) -> tf.Tensor:
    """``left right``, with `half` from bfloat16 copies: 8 bits of each factor, their products summed in float32.

    The result is rounded to bfloat16 too, a relative error of at most 2^-8. The gradients are products of this kind.

    Args:
        left, right: matrices, not yet transposed.
        half: use bfloat16.
    """
    if not half:
        return tf.matmul(left, right, transpose_a=transpose_a, transpose_b=transpose_b)
    left, right = tf.cast(left, tf.bfloat16), tf.cast(right, tf.bfloat16)
    return tf.cast(tf.matmul(left, right, transpose_a=transpose_a, transpose_b=transpose_b), tf.float32)


def sqrt_1_minus_cos(cosine: tf.Tensor) -> tf.Tensor:
    """``sqrt(1 - cos)``, of any shape; 1 - cos is half the squared Euclidean distance.

    A cosine that rounding brings above 1 has the distance of 1 and gradient 0.
    """
    return tf.sqrt(tf.maximum(1.0 - cosine, 0.0) + EPSILON)


def euclidean(cosine: tf.Tensor) -> tf.Tensor:
    """``|u - v| = sqrt(2 - 2 cos)`` of vectors of length one, of any shape."""
    return 2.0**0.5 * sqrt_1_minus_cos(cosine)


class KnownPositives(NamedTuple):
    """Known items as places among the candidates; equal candidates share one place.

    Attributes:
        place: int64 [B, L]; `NO_PLACE` for an item that is no candidate.
        of: int64 [M], each candidate's place.
    """

    place: tf.Tensor
    of: tf.Tensor

    def rows(self, first: tf.Tensor, count: int) -> "KnownPositives":
        """The `count` queries from `first` on."""
        return self._replace(place=tf.slice(self.place, tf.stack([first, 0]), [count, self.place.shape[1]]))

    def hits(self) -> tf.Tensor:
        """Whether each candidate is known: bool [B, M]."""
        batch, size = tf.shape(self.place, out_type=tf.int64)[0], tf.size(self.of, out_type=tf.int64)
        # One column per query: the lookup then reads whole rows, five times as fast as single numbers.
        mark = self.place * batch + tf.range(batch)[:, tf.newaxis]
        # Sums skip negative indices, which `NO_PLACE` always gives; they take a third of the time of a scatter.
        marks = tf.math.unsorted_segment_sum(tf.ones_like(mark, tf.float32), mark, size * batch)
        return tf.transpose(tf.gather(tf.reshape(marks, tf.stack([size, batch])) > 0, self.of))


def known(items: tf.Tensor, candidates: tf.Tensor, count: int) -> KnownPositives:
    """Looks up the known items among the candidates.

    Args:
        items: int64 [B, L], below `count`; -1 for none.
        candidates: int64 [M], at least 0 and below `count`.
        count: items of the catalogue.
    """
    found = _in_table(items, candidates, count) if count <= MOST_IN_TABLE else _searched(items, candidates)
    return found._replace(place=tf.ensure_shape(found.place, items.shape))


def _in_table(items: tf.Tensor, candidates: tf.Tensor, count: int) -> KnownPositives:
    size = tf.size(candidates, out_type=tf.int64)
    # GPUs have no kernel for int64 minima, and run the other int32 operations here on the host: hence the casts.
    first = tf.math.unsorted_segment_min(tf.cast(tf.range(size), tf.int32), candidates, count)
    found = tf.cast(tf.gather(first, tf.maximum(items, 0)), tf.int64)
    hit = (items >= 0) & (found < size)  # an empty minimum is the largest int32
    return KnownPositives(tf.where(hit, found, NO_PLACE), tf.cast(tf.gather(first, candidates), tf.int64))


def _searched(items: tf.Tensor, candidates: tf.Tensor) -> KnownPositives:
    size = tf.size(candidates, out_type=tf.int64)
    in_order = tf.sort(candidates)
    flat = tf.reshape(items, [-1])
    found = tf.searchsorted(in_order, flat, out_type=tf.int64)
    hit = tf.gather(in_order, tf.minimum(found, size - 1)) == flat
    place = tf.reshape(tf.where(hit, found, NO_PLACE), tf.shape(items))
    return KnownPositives(place, tf.searchsorted(in_order, candidates, out_type=tf.int64))
