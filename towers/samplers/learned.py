"""Distributions that count the positives that pass in training."""

from typing import Any, ClassVar

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from towers.data.events import Int64s
from towers.ops.stateless_random import uniforms
from towers.samplers.noises import Earlier, Noise


class LearnedCounts(tf.Module):
    """``count_c / (N + T)``: counts start at 1, and each of the T positives seen adds 1.

    int64, because a float32 count would stop at 2^24.

    Args:
        size: N.
    """

    def __init__(self, size: int) -> None:
        super().__init__(name="learned_counts")
        self.size = size
        self.counts = tf.Variable(tf.ones([size], tf.int64), trainable=False, name="counts")
        self.total = tf.Variable(size, trainable=False, dtype=tf.int64, name="total")

    def probability(self, item: tf.Tensor) -> tf.Tensor:
        """P of items of any shape: float32."""
        return tf.cast(tf.gather(self.counts, item), tf.float32) / tf.cast(self.total, tf.float32)

    def add(self, item: tf.Tensor) -> None:
        """Adds 1 to the count of each of `item` [B]."""
        self.counts.scatter_add(tf.IndexedSlices(tf.ones_like(item), item))
        self.total.assign_add(tf.size(item, tf.int64))

    def warm_start(self, value_of: Earlier, ranks: Int64s, share: float) -> None:
        """Starts from `share` of what an earlier run counted of each item, rounded down."""
        counts = value_of(self.counts)
        if counts is not None:
            known = np.where(ranks < 0, 1, counts[ranks])
            kept = 1 + np.floor(share * (known - 1)).astype(np.int64)
            self.counts.assign(kept)
            self.total.assign(kept.sum())

    def replace(self, item: tf.Tensor, old: tf.Tensor, was_there: tf.Tensor) -> None:
        """Adds 1 for each of `item` [B] and subtracts 1 for each of `old` [B] where `was_there` (bool [B])."""
        less = -tf.cast(was_there, tf.int64)
        change = tf.concat([tf.ones_like(item), less], axis=0)
        self.counts.scatter_add(tf.IndexedSlices(change, tf.concat([item, old], axis=0)))
        self.total.assign_add(tf.size(item, tf.int64) + tf.reduce_sum(less))


class LearnedUnigramNoise(Noise):
    """Draws by `LearnedCounts` exactly, in O(1): r uniform below N + T is item r, or the (r - N)-th positive seen.

    The distribution is that of TensorFlow's learned_unigram_candidate_sampler. The list of positives holds `capacity`;
    then it wraps round, the oldest leave the list and the counts, and P is that of the last `capacity`.

    Args:
        size: N, below 2^32.
        capacity: positives that the list holds; at least a batch.
    """

    learns: ClassVar[bool] = True

    def __init__(self, size: int, capacity: int) -> None:
        super().__init__(name="learned_unigram_noise")
        self.size, self.capacity = size, capacity
        self.learned = LearnedCounts(size)
        # uint32: half of int64's memory, and int32 has no gather on a GPU.
        self.seen = tf.Variable(tf.zeros([capacity], tf.uint32), trainable=False, name="seen")
        self.position = tf.Variable(0, trainable=False, dtype=tf.int64, name="position")

    def draw(self, count: int, seed: tf.Tensor) -> tf.Tensor:
        """Of the N + T numbers, N are the items' initial counts and the rest are the positives seen."""
        number = tf.cast(uniforms(count, seed) * tf.cast(self.learned.total, tf.float64), tf.int64)
        place = tf.maximum(number - self.size, 0)
        return tf.where(number < self.size, number, tf.cast(tf.gather(self.seen, place), tf.int64))

    def probability(self, item: tf.Tensor) -> tf.Tensor:
        """count / (N + T)."""
        return self.learned.probability(item)

    def learn(self, item: tf.Tensor) -> None:
        """Appends the positives `item` [B] to the list; in a full list they replace the oldest."""
        if item.shape[0] is not None and item.shape[0] > self.capacity:
            raise ValueError(f"a batch of {item.shape[0]} positives does not fit a list of {self.capacity}")
        number = self.position + tf.range(tf.size(item, tf.int64))
        # One modulo instead of B: a batch passes the end of the list at most once.
        place = number - self.position // self.capacity * self.capacity
        place = tf.where(place < self.capacity, place, place - self.capacity)
        self.learned.replace(item, tf.cast(tf.gather(self.seen, place), tf.int64), number >= self.capacity)
        self.seen.scatter_update(tf.IndexedSlices(tf.cast(item, tf.uint32), place))
        self.position.assign_add(tf.size(item, tf.int64))

    def warm_start(self, value_of: Earlier, ranks: Int64s, share: float) -> None:
        """Starts from the newest `share` of the positives that an earlier run saw."""
        seen, position = value_of(self.seen), value_of(self.position)
        if seen is None or position is None:
            return
        newest = _in_order(seen, int(position))
        positives = _renumbered(newest[len(newest) - round(share * len(newest)) :], ranks)
        kept = positives[-self.capacity :]
        self.seen.assign(np.pad(kept, (0, self.capacity - len(kept))).astype(np.uint32))
        self.position.assign(len(kept))
        self.learned.counts.assign(1 + np.bincount(kept, minlength=self.size))
        self.learned.total.assign(self.size + len(kept))


def _in_order(seen: NDArray[Any], position: int) -> Int64s:
    """The positives of a list that wraps round, oldest first."""
    first = position % len(seen) if position >= len(seen) else 0
    return np.roll(seen[: min(position, len(seen))].astype(np.int64), -first)


def _renumbered(seen: Int64s, ranks: Int64s) -> Int64s:
    """Earlier ranks as those of this run; positives of items that are gone are left out."""
    here = np.full(max(int(seen.max(initial=-1)), int(ranks.max(initial=-1))) + 1, -1)
    known = np.flatnonzero(ranks >= 0)
    here[ranks[known]] = known
    renumbered = here[seen]
    kept: Int64s = renumbered[renumbered >= 0]
    return kept
