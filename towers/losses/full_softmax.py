"""Softmax over the whole catalogue in blocks: neither the scores [B, N] nor the item vectors [N, D] exist in full.

The gradients are exact for the queries, the scale and every variable that the encoder reads.

The value needs one pass over the items. The gradient needs a second pass, which encodes and scores each block again
instead of storing it: that costs the time of another forward pass and the memory of one block.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import tensorflow as tf

from towers.losses.scores import product
from towers.ops.row_gradients import added_rows, every_row
from towers.ops.unpublished import recorded

Encode = Callable[[tf.Tensor], tf.Tensor]  # int64 [n] item numbers to vectors [n, D]


def full_softmax(
    query: tf.Tensor,
    encode: Encode,
    *,
    count: int,
    scale: tf.Tensor | float,
    positive: tf.Tensor,
    block: int = 8_192,
    label_smoothing: float = 0.0,
    half: bool = False,
) -> tf.Tensor:
    """``-(1 - e) mean_k s_k - e mean_{j<=N} s_j + log sum_{j<=N} exp s_j``, e the label smoothing.

    Source: Bridle, Neurocomputing 1990; several positives share the label equally, as in `tf.nn.sampled_softmax_loss`.

    In a training loop of your own with `jit_compile`, the tape belongs inside the compiled function: TensorFlow would
    differentiate the blocks otherwise, and XLA cannot compile that.

    Args:
        query: [B, D].
        encode: maps item numbers int64 [n], each below `count`, to vectors [n, D]. Only called in tracing, on blocks.
            A tensor that it takes from outside gets no gradient: compute in it, from variables, all that trains.
        count: N.
        scale: scalar, 1 / temperature.
        positive: [B, K] scaled scores of the positives; their gradient flows as usual.
        block: items scored at once.
        label_smoothing: share of the label that is spread evenly over all items.
        half: multiply in bfloat16 (see `towers.losses.scores.product`).

    Returns:
        [B] losses, float32 (float64 for a float64 query).
    """
    exact = tf.float64 if query.dtype == tf.float64 else tf.float32
    blocks = _Blocks(encode, count, min(block, count), label_smoothing, half)
    scaled = tf.cast(query, exact) * tf.cast(scale, exact)
    log_sum, linear = recorded(partial(blocks.forward, scaled), [scaled], partial(blocks.backward, scaled))
    return log_sum - linear - (1 - label_smoothing) * tf.reduce_mean(tf.cast(positive, exact), axis=1)


@dataclass(frozen=True)
class _Blocks:
    """The items, in blocks.

    All blocks have one size, so every shape is static. The last block starts early enough to be full; the items that
    it shares with the block before are masked.

    Attributes:
        encode: maps item numbers to vectors.
        count: N.
        size: n, items per block, at most N.
        spread: the label of each item times N.
        half: multiply in bfloat16.
    """

    encode: Encode
    count: int
    size: int
    spread: float
    half: bool

    def forward(self, scaled: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """[B] ``log sum_j exp s_j`` and [B] ``spread mean_j s_j`` of scaled queries [B, D]."""
        nothing = tf.zeros_like(scaled[:, 0])

        def step(i: tf.Tensor, largest: tf.Tensor, total: tf.Tensor, linear: tf.Tensor) -> tuple[tf.Tensor, ...]:
            first, counts = self._window(i)
            vectors = tf.cast(self.encode(self._items(first)), scaled.dtype)
            scores = product(scaled, vectors, half=self.half, transpose_b=True)
            if self.spread:
                linear += tf.matmul(scores, self._labels(counts, scaled.dtype), transpose_b=True)[:, 0]
            # Added, because `tf.where` on the scores would need a second [B, n].
            scores += tf.where(counts, tf.zeros([], scores.dtype), scores.dtype.min)
            higher = tf.maximum(largest, tf.reduce_max(scores, axis=1))
            new = tf.reduce_sum(tf.exp(scores - higher[:, tf.newaxis]), axis=1)
            return i + 1, higher, total * tf.exp(largest - higher) + new, linear

        start = (tf.constant(0), nothing + scaled.dtype.min, nothing, nothing)
        _, largest, total, linear = tf.while_loop(self._more, step, start, parallel_iterations=1)
        return largest + tf.math.log(total), linear

    def backward(
        self,
        scaled: tf.Tensor,
        results: Sequence[tf.Tensor],
        upstream: Sequence[tf.Tensor],
        variables: Sequence[tf.Variable],
    ) -> list[Any]:
        """Gradients of the scaled queries and the variables, given the gradients of `forward`'s two results.

        ``d s_j = (d log_sum) exp(s_j - log_sum) + (d linear) spread / N``. The gradients of a table's rows are summed
        in one [rows, D], which is passed on as slices of all rows (see `every_row`).
        """
        log_sum, (of_log_sum, of_linear) = results[0], upstream
        kinds: list[type] = []

        def step(i: tf.Tensor, back: tf.Tensor, *sums: tf.Tensor) -> tuple[tf.Tensor, ...]:
            first, counts = self._window(i)
            with tf.GradientTape(watch_accessed_variables=False) as watching:
                watching.watch(variables)
                vectors = self.encode(self._items(first))
            exact = tf.cast(vectors, scaled.dtype)
            scores = product(scaled, exact, half=self.half, transpose_b=True)
            share = tf.exp(scores - log_sum[:, tf.newaxis]) * of_log_sum[:, tf.newaxis] * tf.cast(counts, scores.dtype)
            if self.spread:
                share += of_linear[:, tf.newaxis] * self._labels(counts, scaled.dtype)
            of_vectors = tf.cast(product(share, scaled, half=self.half, transpose_a=True), vectors.dtype)
            own = watching.gradient(vectors, variables, output_gradients=of_vectors)
            kinds[:] = map(type, own)
            return i + 1, back + product(share, exact, half=self.half), *map(_added, sums, own)

        # A zero that TensorFlow cannot fold: it would turn `tf.zeros` into a constant as large as the table, keep it
        # for good, and copy it in each step.
        seen = tf.reduce_sum(log_sum)
        zero = tf.math.is_nan(seen) & tf.math.is_inf(seen)
        start = (
            tf.constant(0),
            tf.zeros_like(scaled),
            # The gradient of a table in half precision is float32; see `towers.ops.row_gradients.gathered`.
            *(tf.fill(one.shape, tf.cast(zero, tf.float32 if one.dtype.size < 4 else one.dtype)) for one in variables),
        )
        _, back, *sums = tf.while_loop(self._more, step, start, parallel_iterations=1)
        return [back, *map(_as_kind, sums, kinds)]

    def _more(self, i: tf.Tensor, *_: tf.Tensor) -> tf.Tensor:
        # The block index and a block's start are int32 on purpose: they stay in host memory, where loops and slices
        # need them. Neither depends on the data.
        return i < -(-self.count // self.size)

    def _window(self, i: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """The first item of block `i`, int32, and its mask, bool [1, n]; False for items of the block before."""
        first = tf.minimum(i * self.size, self.count - self.size)
        return first, self._items(first)[tf.newaxis, :] >= tf.cast(i * self.size, tf.int64)

    def _items(self, first: tf.Tensor) -> tf.Tensor:
        return tf.cast(first, tf.int64) + tf.range(self.size, dtype=tf.int64)

    def _labels(self, counts: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
        """[1, n]; 0 for a masked item."""
        return tf.cast(counts, dtype) * (self.spread / self.count)


def _added(total: tf.Tensor, gradient: Any) -> tf.Tensor:
    if isinstance(gradient, tf.IndexedSlices):
        return added_rows(total, gradient)
    return total if gradient is None else total + tf.cast(gradient, total.dtype)


def _as_kind(total: tf.Tensor, kind: type) -> Any:
    """A variable's gradient in the form that TensorFlow gave it in one block; None for an unused variable."""
    if kind is type(None):
        return None
    return every_row(total) if kind is tf.IndexedSlices else total
