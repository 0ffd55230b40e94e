"""Random numbers that depend on a seed alone, with a separate stream for every use.

A seed, int64 [2], gives the same int64 bits and float64 uniforms compiled or not, on a CPU or a GPU.
"""

import math
import zlib

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

PHILOX = 1
MANTISSA = 53
DROPOUT = 1  # stream of a step's seed for dropout
WORDS = 2**32
# Bit positions in the seed's two words, above the caller's 32 bits, so that no two uses share a stream.
_LOW = 32
_ROUND = 40


def fold(seed: tf.Tensor, name: str, part: int) -> tf.Tensor:
    """The seed of one part of a sampler: other parts and other names get other streams.

    Args:
        seed: int64 [2] whose elements fit into 32 bits.
        name: the sampler's name; its checksum is used.
        part: index in the mixture, below 2^8.
    """
    high = zlib.crc32(name.encode())
    signed = high - (1 << 32) if high >= 1 << 31 else high
    return seed + tf.constant([signed << _LOW, part << _LOW], tf.int64)


def round_seed(seed: tf.Tensor, number: tf.Tensor | int) -> tf.Tensor:
    """The seed of one round of a folded seed. Round 0 is the seed itself; rounds stay below 2^23."""
    return seed + tf.constant([0, 1 << _ROUND], tf.int64) * tf.cast(number, tf.int64)


def bits(count: int | tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
    """64 random bits per number: int64 [count].

    Philox (Salmon et al., SC 2011) with the seed's first word as its key and both words as its initial 128-bit counter:
    another first word is another key, another second word is 2^64 numbers away. The seed is passed unhashed: the op
    that TensorFlow hashes seeds with keeps them in host memory.
    """
    words = tf.cast(seed, tf.uint64)
    return tf.raw_ops.StatelessRandomUniformFullIntV2(
        shape=[count],
        key=words[:1],
        counter=words,
        alg=PHILOX,
        dtype=tf.int64,
    )


def uniforms(count: int | tf.Tensor, seed: tf.Tensor, end: float = 1.0) -> tf.Tensor:
    """Uniform in [0, end), float64 [count], multiples of end / 2^53.

    TensorFlow's float64 uniforms differ between compiled and uncompiled code, and have 52 bits.
    """
    low = tf.bitwise.bitwise_and(bits(count, seed), tf.constant((1 << MANTISSA) - 1, tf.int64))
    return tf.cast(low, tf.float64) * (end * 2.0**-MANTISSA)


def normals(count: int | tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
    """Standard normal, float32 [count]. Source: Box & Muller, Annals of Mathematical Statistics 1958."""
    radius = tf.sqrt(-2 * tf.math.log(1 - uniforms(count, round_seed(seed, 0))))
    angle = (2 * math.pi) * uniforms(count, round_seed(seed, 1))
    return tf.cast(radius * tf.cos(angle), tf.float32)


def own_seed(seed: tf.Tensor, name: str) -> tf.Tensor:
    """The step's seed [2], int32, for one name: other names get other numbers."""
    return seed + tf.constant([_number(name), 0])


def first_weights(name: str, shape: list[int], limit: float | NDArray[np.float32], seed: int) -> tf.Tensor:
    """Initial weights of the variable with this name, uniform in [-limit, limit); limits must broadcast to `shape`."""
    return _uniform(tf.constant(shape), tf.constant([seed, _number(name)], tf.int64), tf.constant(limit, tf.float32))


# Shapes are arguments, so that no trace computes the numbers as constants.
@tf.function(
    input_signature=[tf.TensorSpec([None], tf.int32), tf.TensorSpec([2], tf.int64), tf.TensorSpec(None, tf.float32)],
    autograph=False,
)
def _uniform(shape: tf.Tensor, seed: tf.Tensor, limit: tf.Tensor) -> tf.Tensor:
    """A graph works in place; op by op the numbers of a table were in memory three times."""
    return tf.random.stateless_uniform(shape, seed, -limit, limit)


def _number(name: str) -> int:
    # crc32, because Python's hash() differs between processes.
    return zlib.crc32(name.encode()) >> 1


def dropped(x: tf.Tensor, share: float, seed: tf.Tensor | None, name: str) -> tf.Tensor:
    """Dropout: in training, sets a seeded share of the numbers to zero and scales the rest to the same expectation.

    Args:
        x: any shape.
        share: 0 to below 1, exact to 2^-32.
        seed: the step's, [2]; None outside training, where `x` stays as it is.
        name: of the dropout layer; each name drops different numbers.
    """
    if seed is None or not share:
        return x
    size = tf.size(x)
    # Half a 64-bit draw is enough for one number. int64, because int32 would stay in host memory beside a GPU.
    drawn = bits((size + 1) // 2, fold(tf.cast(seed, tf.int64), name, DROPOUT))
    low = tf.constant(WORDS - 1, tf.int64)
    halves = tf.bitwise.bitwise_and([drawn, tf.bitwise.right_shift(drawn, tf.constant(32, tf.int64))], low)
    words = tf.reshape(tf.reshape(halves, [-1])[:size], tf.shape(x))
    return tf.where(words >= round(share * WORDS), x / (1 - share), tf.zeros([], x.dtype))
