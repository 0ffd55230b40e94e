"""Learned unigram noise: items by how often they have been positives so far in training.

In: each batch's positives. Out: a `Noise` whose state is three variables, so that a checkpoint restores its draws.
"""

import numpy as np
import tensorflow as tf

from towers.samplers.noise import Noise
from towers.streams import uniforms


class LearnedCounts(tf.Module):
    """``count_c / (N + T)``: counts start at 1 and grow by 1 for each of the T positives seen.

    int64: a float32 count would stop at 2^24.

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
        """Counts each of `item` [B] once more."""
        self.counts.scatter_add(tf.IndexedSlices(tf.ones_like(item), item))
        self.total.assign_add(_length(item))

    def replace(self, item: tf.Tensor, old: tf.Tensor, was_there: tf.Tensor) -> None:
        """Counts each of `item` [B] once more, and each of `old` [B] once less where it `was_there` (bool [B])."""
        less = -tf.cast(was_there, tf.int64)
        change = tf.concat([tf.ones_like(item), less], axis=0)
        self.counts.scatter_add(tf.IndexedSlices(change, tf.concat([item, old], axis=0)))
        self.total.assign_add(_length(item) + tf.reduce_sum(less))


class LearnedUnigramNoise(Noise):
    """Draws by `LearnedCounts` exactly, in O(1): r uniform below N + T is item r, or the (r - N)-th positive seen.

    The distribution is that of TensorFlow's learned_unigram_candidate_sampler. Its list of positives holds `capacity`
    of them; where more come it wraps round, the oldest leave list and counts, and P is that of the last `capacity`.

    Args:
        size: N, below 2^32.
        capacity: positives the list holds; at least a batch.
    """

    def __init__(self, size: int, capacity: int) -> None:
        super().__init__(name="learned_unigram_noise")
        self.size, self.capacity = size, capacity
        self.learned = LearnedCounts(size)
        # uint32: half of int64's memory, and int32 has no gather on a GPU.
        self.seen = tf.Variable(tf.zeros([capacity], tf.uint32), trainable=False, name="seen")
        self.position = tf.Variable(0, trainable=False, dtype=tf.int64, name="position")

    def draw(self, count: int, seed: tf.Tensor) -> tf.Tensor:
        """N of the N + T numbers are the items' own first count, the others the positives seen."""
        number = tf.cast(uniforms(count, seed) * tf.cast(self.learned.total, tf.float64), tf.int64)
        place = tf.maximum(number - self.size, 0)
        return tf.where(number < self.size, number, tf.cast(tf.gather(self.seen, place), tf.int64))

    def probability(self, item: tf.Tensor) -> tf.Tensor:
        """count / (N + T)."""
        return self.learned.probability(item)

    def learn(self, item: tf.Tensor) -> None:
        """Appends the positives `item` [B] to the list, in place of the oldest ones where it is full."""
        if item.shape[0] is not None and item.shape[0] > self.capacity:
            raise ValueError(f"a batch of {item.shape[0]} positives does not fit a list of {self.capacity}")
        number = self.position + _numbers(item)
        # One modulo, not B of them: a batch passes the list's end once at most.
        place = number - self.position // self.capacity * self.capacity
        place = tf.where(place < self.capacity, place, place - self.capacity)
        self.learned.replace(item, tf.cast(tf.gather(self.seen, place), tf.int64), number >= self.capacity)
        self.seen.scatter_update(tf.IndexedSlices(tf.cast(item, tf.uint32), place))
        self.position.assign_add(_length(item))


def _length(item: tf.Tensor) -> tf.Tensor:
    if item.shape[0] is not None:
        return tf.constant(item.shape[0], tf.int64)
    return tf.shape(item, out_type=tf.int64)[0]


def _numbers(item: tf.Tensor) -> tf.Tensor:
    if item.shape[0] is not None:
        return tf.constant(np.arange(item.shape[0]), tf.int64)
    return tf.range(_length(item))
