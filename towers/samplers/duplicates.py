"""Finds the first occurrence of each value in a series, without a sort and without a table of all N items."""

import numpy as np
import tensorflow as tf

_MOST_SLOTS = 1 << 17
_ROW = 128
_EXACT = 1 << 24  # float32 holds every integer up to here
# Odd and below 2^29: its product with an item below 2^34 fits into 63 bits.
_FACTOR = 0x9E3779B1 >> 3 | 1


def first_copies(item: tf.Tensor, size: int) -> tf.Tensor:
    """True where an element is the first with its value.

    Every element goes to a slot of a hash table, and the earliest in each slot wins. The winner is the first of its
    item; the item's copies share the slot, so they are resolved too. Elements of other items in the slot go on to
    another table, until none are left. Every round resolves at least one item; two resolve nearly all.

    Args:
        item: int64 [L], at least 0 and below `size`.
        size: N; at most 2^34.

    Returns:
        bool [L].
    """
    length = item.shape[0]
    if length is None:
        place, slots = tf.cast(tf.range(tf.size(item, tf.int64)), tf.float64), _MOST_SLOTS
    else:
        place, slots = places(length), min(_MOST_SLOTS, 1 << (8 * length - 1).bit_length())
    if size <= slots:
        earliest = tf.math.unsorted_segment_min(place, item, size)
        return tf.gather(earliest, item) == place
    # Items are ranks: the low bits keep frequent items apart.
    first, open_ = _winners(item, place, tf.bitwise.bitwise_and(item, tf.constant(slots - 1, tf.int64)), slots)

    def next_round(factor: tf.Tensor, first: tf.Tensor, open_: tf.Tensor) -> tuple[tf.Tensor, ...]:
        mixed = tf.bitwise.right_shift(item * factor, tf.constant(12, tf.int64))
        slot = tf.bitwise.bitwise_and(mixed, tf.constant(slots - 1, tf.int64))
        # Resolved elements wait in an extra slot. It is never empty, as element 0 wins in the first round.
        won, other = _winners(item, place, tf.where(open_, slot, tf.constant(slots, tf.int64)), slots + 1)
        return _next(factor), first | (open_ & won), open_ & other

    _, first, _ = tf.while_loop(
        lambda factor, first, open_: tf.reduce_any(open_),
        next_round,
        (tf.constant(_FACTOR, tf.int64), first, open_),
        parallel_iterations=1,
    )
    return first


def places(length: int) -> tf.Tensor:
    """0, 1, ... below `length`, as floats that hold them exactly: GPUs have no segment minimum of int64."""
    return tf.constant(np.arange(length), tf.float32 if length < _EXACT else tf.float64)


def running_count(mask: tf.Tensor) -> tf.Tensor:
    """Number of True elements of `mask` [L] up to and including each position: floats [L].

    Sums within rows of 128 by a matrix of ones, then over the rows: a fraction of the time of one tf.cumsum.
    """
    length = mask.shape[0]
    rows = -(-length // _ROW)
    dtype = places(length).dtype
    marks = tf.pad(tf.cast(mask, dtype), [[0, rows * _ROW - length]])
    within = tf.reshape(marks, [rows, _ROW]) @ tf.constant(np.triu(np.ones((_ROW, _ROW))), dtype)
    before = tf.cumsum(within[:, -1:], exclusive=True)
    return tf.reshape(within + before, [-1])[:length]


def _winners(item: tf.Tensor, place: tf.Tensor, slot: tf.Tensor, slots: int) -> tuple[tf.Tensor, tf.Tensor]:
    """Which elements win their slot, and which share it with a winner of another item."""
    winner = tf.gather(tf.math.unsorted_segment_min(place, slot, slots), slot)
    return winner == place, tf.gather(item, tf.cast(winner, tf.int64)) != item


def _next(factor: tf.Tensor) -> tf.Tensor:
    """The next odd factor, below 2^29."""
    mixed = tf.bitwise.bitwise_and(factor * 1_103_515_245 + 12_346, tf.constant((1 << 29) - 1, tf.int64))
    return tf.bitwise.bitwise_or(mixed, tf.constant(1, tf.int64))
