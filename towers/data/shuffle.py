"""The seeded order of an epoch's examples: a function of the place alone, in O(1) memory."""

import math

import numpy as np
from numpy.typing import NDArray

from towers.data.events import Int64s

FEISTEL_ROUNDS = 4  # even, so that both halves end in their own range
DRAWN_WHOLE = 1 << 14  # a set of up to this many places is permuted whole, which costs less than a batch


def order_key(seed: int, epoch: int) -> int:
    """The key of an epoch's order."""
    return seed * 1_000_003 + epoch


def shuffled(places: Int64s, count: int, key: int) -> Int64s:
    """The images of `places` under a pseudo-random permutation of ``range(count)``, in O(1) memory.

    A small set gets a permutation drawn whole: four rounds over a handful of halves would leave a pattern.
    Otherwise a Feistel network permutes the pairs of ``range(a)`` and ``range(b)``, with a b just above `count`. A
    result outside, at most one place in sqrt(count), is permuted again until it falls inside.

    Source: Black & Rogaway, Ciphers with arbitrary finite domains, CT-RSA 2002 (generalised Feistel, cycle walking).
    """
    if count <= DRAWN_WHOLE:
        order: Int64s = np.random.default_rng(key).permutation(count)
        return order[places]
    a = math.isqrt(max(count - 1, 0)) + 1
    sizes = np.uint64(a), np.uint64(-(-count // a))
    out = places.astype(np.uint64)
    outside = np.arange(len(out))
    while len(outside):
        right, left = np.divmod(out[outside], sizes[0])
        for step in range(FEISTEL_ROUNDS):
            # Shifted to half the range, so that the sum stays below 2^64 and each round can be undone.
            moved = left + (mixed(right, key * FEISTEL_ROUNDS + step) >> np.uint64(1))
            left, right = right, moved % sizes[step % 2]
        out[outside] = right * sizes[0] + left
        outside = outside[out[outside] >= count]
    return out.astype(np.int64)


def mixed(value: NDArray[np.uint64], key: int) -> NDArray[np.uint64]:
    """The finaliser of splitmix64 (Steele, Lea & Flood, OOPSLA 2014), keyed."""
    with np.errstate(over="ignore"):
        value = value + np.uint64((key + 1) * 0x9E3779B97F4A7C15 & 0xFFFFFFFFFFFFFFFF)
        value = (value ^ value >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
        value = (value ^ value >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
        mixed: NDArray[np.uint64] = value ^ value >> np.uint64(31)
        return mixed
