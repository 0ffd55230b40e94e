"""Reads table rows in any precision and sums their gradients without sorting and without a table-sized copy.

Rows and their gradients are float32, and the norm of the summed gradients is right. Updates of a half-precision table
are rounded at random, so that many updates, each too small to register, add up in expectation.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from towers.ops.replicas import Replicas
from towers.ops.unpublished import compiled_by_xla

Gradient = Any  # tf.Tensor or tf.IndexedSlices
# For a number 2^e (1 + m): the bits of m that are kept, and the smallest e at which the last bit still counts: for
# float16 the smallest normal one, for bfloat16 one whose last bit float32 does not flush to zero.
_MANTISSA = {tf.bfloat16: 7, tf.float16: 10}
_LEAST = {tf.bfloat16: -119, tf.float16: -14}
_EXPONENT_BITS = 0x7F800000


class RowGradient(NamedTuple):
    """A float32 gradient that holds the total for each row it touches.

    Attributes:
        values: [n, D], or the shape of the whole variable.
        rows: int64 [n] table rows; None for all of them in order. Repeats have equal values.
        winner: int64 [n], one index into `rows` for all repeats of a row; None for all rows.
    """

    values: tf.Tensor
    rows: tf.Tensor | None = None
    winner: tf.Tensor | None = None

    def agreed(self, noise: tf.Tensor) -> tf.Tensor:
        """`noise`, in the shape of `values`, with repeats of a row made equal to their first.

        On a GPU any of them may be the winner, and another one on each of several.
        """
        if self.winner is None:
            return noise
        place = tf.cast(tf.range(tf.size(self.winner, tf.int64)), tf.float64)
        first = tf.math.unsorted_segment_min(place, self.winner, tf.size(self.winner))
        return tf.gather(noise, tf.cast(tf.gather(first, self.winner), tf.int64))

    def square_norm(self) -> tf.Tensor:
        """Sum of squares of the gradient, each row counted once."""
        if self.winner is None:
            return tf.reduce_sum(tf.square(self.values))
        squares = tf.reduce_sum(tf.square(self.values), axis=range(1, self.values.shape.rank))
        once = self.winner == tf.range(tf.size(self.winner, out_type=tf.int64))
        return tf.reduce_sum(tf.where(once, squares, 0.0))


def sum_rows(gradient: Gradient, variable: tf.Variable, place: tf.Variable) -> RowGradient:
    """Sums a gradient per row.

    Args:
        gradient: of the variable.
        variable: a table or any other variable.
        place: int64, as long as the variable; see `summed_rows`.
    """
    if not isinstance(gradient, tf.IndexedSlices):
        return RowGradient(tf.cast(gradient, tf.float32))
    total, others = dense_part(gradient, variable.shape[0])
    if total is not None:
        total = tf.cast(total, tf.float32)
        for other in others:
            total = added_rows(total, tf.IndexedSlices(tf.cast(other.values, tf.float32), other.indices))
        return RowGradient(total)
    rows = tf.cast(gradient.indices, tf.int64)
    return RowGradient(*summed_rows(tf.cast(gradient.values, tf.float32), rows, place))


def sum_workers(
    parts: Sequence[RowGradient | None], places: Sequence[tf.Variable], replicas: Replicas
) -> list[RowGradient | None]:
    """Sums the gradients of all workers. Of a table only the rows that a batch touched are exchanged, each once.

    Args:
        parts: one worker's gradient for each variable; None for an unused one.
        places: see `summed_rows`.
        replicas: the workers.
    """
    if replicas.count == 1:
        return list(parts)
    dense = {number: part.values for number, part in enumerate(parts) if part is not None and part.rows is None}
    sums = dict(zip(dense, replicas.sum(list(dense.values())) if dense else [], strict=True))
    totals: list[RowGradient | None] = []
    for number, (part, place) in enumerate(zip(parts, places, strict=True)):
        if part is None:
            totals.append(None)
        elif part.rows is None:
            totals.append(RowGradient(sums[number]))
        else:
            once = part.winner == tf.range(tf.size(part.rows, out_type=tf.int64))
            # A last row that no table has: TensorFlow crashes if every worker's part of an exchange is empty.
            own = tf.concat([tf.boolean_mask(part.rows, once), tf.constant([place.shape[0]], tf.int64)], 0)
            values = tf.pad(tf.boolean_mask(part.values, once), [[0, 1], [0, 0]])
            # One exchange for both: a row number takes the place of two numbers beside its values.
            both = replicas.gather_uneven(tf.concat([values, tf.bitcast(own, tf.float32)], 1))
            rows = tf.bitcast(both[:, -2:], tf.int64)
            of_table = rows < place.shape[0]
            both, rows = tf.boolean_mask(both, of_table), tf.boolean_mask(rows, of_table)
            totals.append(RowGradient(*summed_rows(both[:, :-2], rows, place)))
    return totals


def clipped(gradients: Sequence[RowGradient | None], norm: float) -> list[RowGradient | None]:
    """Scales all gradients by one factor so that their joint norm is at most `norm`.

    ``g min(1, norm / |g|)``, ``|g|^2`` the sum over all variables. `tf.clip_by_global_norm` counts a repeated row as
    several rows, and so gets the norm of a table's gradient wrong.

    Source: Pascanu, Mikolov & Bengio, On the difficulty of training recurrent neural networks, ICML 2013.
    """
    length = tf.sqrt(tf.add_n([one.square_norm() for one in gradients if one is not None]))
    factor = norm / tf.maximum(length, norm)
    return [None if one is None else one._replace(values=one.values * factor) for one in gradients]


def summed_rows(values: tf.Tensor, rows: tf.Tensor, place: tf.Variable) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Sums the gradients of equal rows, without sorting and without `tf.unique`, whose size depends on the data.

    Each slice writes its number into `place` at its row. Of equal rows one wins, no matter which: reading `place` back
    gives all of them the winner's number.

    Args:
        values: [n, D].
        rows: int64 [n].
        place: int64, as long as the table; its previous values do not matter.

    Returns:
        [n, D] the total gradient of each slice's row, `rows`, and int64 [n] the slice that won the row. Repeats hold
        equal totals, so they produce equal rows, and writing a row twice changes nothing.
    """
    place.scatter_update(tf.IndexedSlices(tf.range(tf.size(rows, out_type=tf.int64)), rows))
    winner = tf.gather(place, rows)
    return tf.gather(tf.math.unsorted_segment_sum(values, winner, tf.size(rows)), winner), rows, winner


def added_rows(total: tf.Tensor, slices: tf.IndexedSlices) -> tf.Tensor:
    """`total` [rows, D] plus the slices, in place if nothing else uses `total`.

    `tf.tensor_scatter_nd_add` copies `total` on a CPU. XLA does not, and it supports no other operation.
    """
    rows, values = tf.cast(slices.indices, tf.int64)[:, tf.newaxis], tf.cast(slices.values, total.dtype)
    if compiled_by_xla():
        return tf.tensor_scatter_nd_add(total, rows, values)
    return tf.raw_ops.ScatterNdNonAliasingAdd(input=total, indices=rows, updates=values)


def every_row(total: tf.Tensor) -> tf.IndexedSlices:
    """A dense gradient [rows, D] as slices.

    TensorFlow adds a dense gradient and slices of the same table by making all of them dense. It concatenates slices,
    and `dense_part` splits them again.
    """
    rows, *rest = total.shape.as_list()
    return tf.IndexedSlices(total, tf.range(rows, dtype=tf.int64), tf.constant([rows, *rest], tf.int64))


def dense_part(slices: tf.IndexedSlices, rows: int) -> tuple[tf.Tensor | None, list[tf.IndexedSlices]]:
    """Splits slices that TensorFlow concatenated, and finds the part that `every_row` made.

    A table that is gathered in several places gets a gradient from each, concatenated. That copies them all, and the
    gradient of all rows is as large as the table. If nothing uses the copy, it is not made.

    Args:
        slices: of a table.
        rows: length of the table.

    Returns:
        The gradient [rows, D] of all rows in order, or None if there is none; and the other parts.
    """
    parts = [tf.IndexedSlices(*part) for part in _parts(slices.values, slices.indices)]
    for part in parts:
        if part.indices.shape[0] == rows and _is_range(part.indices):
            return part.values, [other for other in parts if other is not part]
    return None, [slices]


def _parts(values: tf.Tensor, indices: tf.Tensor) -> list[tuple[tf.Tensor, tf.Tensor]]:
    """Values and indices of each part, if both are concatenations; otherwise the pair itself."""
    if tf.executing_eagerly() or values.op.type != "ConcatV2" or indices.op.type != "ConcatV2":
        return [(values, indices)]
    pairs = zip(values.op.inputs[:-1], indices.op.inputs[:-1], strict=True)
    return [part for pair in pairs for part in _parts(*pair)]


def _is_range(indices: tf.Tensor) -> bool:
    known = tf.get_static_value(indices)
    return known is not None and bool(np.array_equal(known, np.arange(len(known))))


def gathered(table: tf.Variable, rows: tf.Tensor) -> tf.Tensor:
    """Rows of a table, float32, in the shape of `rows` plus one axis."""
    return _widened(tf.gather(table, rows))


def whole(table: tf.Variable) -> tf.Tensor:
    """A whole table, float32."""
    return _widened(tf.convert_to_tensor(table))


def _widened(values: tf.Tensor) -> tf.Tensor:
    return values if values.dtype == tf.float32 else _in_float32(values)


@tf.custom_gradient
def _in_float32(values: tf.Tensor) -> tuple[tf.Tensor, Callable[[tf.Tensor], tf.Tensor]]:
    # The gradient stays float32: in float16, that of a mean over a batch would vanish.
    return tf.cast(values, tf.float32), lambda gradient: gradient


def stochastic_round(values: tf.Tensor, noise: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    """Rounds a value at random to one of its two neighbours, so that the expectation is the value.

    A value that the type can hold, such as zero, stays as it is.

    Args:
        values: float32.
        noise: float32 in [0, 1), of the same shape.
        dtype: bfloat16 or float16.

    Source: Gupta et al., Deep learning with limited numerical precision, ICML 2015.
    """
    exponent = tf.bitwise.bitwise_and(tf.bitcast(values, tf.uint32), tf.constant(_EXPONENT_BITS, tf.uint32))
    unit = tf.maximum(tf.bitcast(exponent, tf.float32), 2.0 ** _LEAST[dtype]) * 2.0 ** -_MANTISSA[dtype]
    # Dividing by a power of two is exact, and the quotient is below 2^11: the noise loses less than 2^-12.
    return tf.cast(tf.floor(values / unit + noise) * unit, dtype)
