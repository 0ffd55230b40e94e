"""The seeded order in which the examples of an epoch train: a function of the place alone, in O(1) memory.

In: places of an epoch. Out: examples. A large set trains one part after the other, so that what its batches read of
memory-mapped files is bounded: a part is drawn of short runs of neighbouring examples from all over the set.
"""

import math

import numpy as np
from numpy.typing import NDArray

from towers.events import Int64s

FEISTEL_ROUNDS = 4  # an even number, so that both halves end in their own range
DRAWN_WHOLE = 1 << 14  # places of a set whose permutation costs less than a batch
PART = 1 << 21  # examples of one part, about
RUNS = 1 << 5  # of a part: each of 65,536 neighbours, 256 KiB of int32; few, because Linux maps up to 2 MB at one fault


def order_key(seed: int, epoch: int) -> int:
    """The key of an epoch's own order."""
    return seed * 1_000_003 + epoch


def in_parts(places: Int64s, count: int, key: int, part: int) -> Int64s:
    """Where a pseudo-random permutation of ``range(count)`` sends `places`, in O(1) memory.

    A set of at most `part` examples is permuted whole. A larger one is cut into groups of as many runs of neighbours as
    there are parts. Each part gets one run of every group, so that it holds some of all the set, and is permuted whole.
    Which run, and where runs begin, differs with the key.
    """
    if count <= part:
        return shuffled(places, count, key)
    parts, run = _layout(count, part)
    size = RUNS * run
    out = places.copy()
    outside = np.arange(len(out))
    while len(outside):  # all runs hold a few examples more than there are: on, until it falls inside
        place = out[outside]
        of = place // size
        by_part = np.argsort(of, kind="stable")
        for own in np.split(by_part, 1 + np.flatnonzero(np.diff(of[by_part]))):
            each = int(of[own[0]])
            place[own] = shuffled(place[own] - each * size, size, _derived(key, each))
        group = place // run
        turn = _mixed(group.astype(np.uint64), key) % np.uint64(parts)
        out[outside] = (group * parts + (of + turn.astype(np.int64)) % parts) * run + place % run
        outside = outside[out[outside] >= count]
    return (out + _derived(key, -1) % count) % count


def part_of(place: int, count: int, part: int) -> int:
    """In which part of the order of ``range(count)`` a place stands."""
    return 0 if count <= part else place // (RUNS * _layout(count, part)[1])


def _layout(count: int, part: int) -> tuple[int, int]:
    """How many parts, alike large, and examples of one of their runs."""
    parts = -(-count // part)
    return parts, -(-count // (parts * RUNS))


def _derived(key: int, number: int) -> int:
    """A key of its own for each `number`."""
    return int(_mixed(np.array([number + 1], np.uint64), key)[0] >> np.uint64(1))


def shuffled(places: Int64s, count: int, key: int) -> Int64s:
    """Where a pseudo-random permutation of ``range(count)`` sends `places`, in O(1) memory.

    A small set gets a permutation drawn whole: four rounds over a handful of halves would leave a pattern.
    Otherwise a Feistel network permutes the pairs of ``range(a)`` and ``range(b)``, with
    a b just above `count`; what falls outside, one place in sqrt(count) at most, is sent on until it falls inside.

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
        for turn in range(FEISTEL_ROUNDS):
            # Half of its range, so that the sum stays below 2^64 and each round can be undone.
            moved = left + (_mixed(right, key * FEISTEL_ROUNDS + turn) >> np.uint64(1))
            left, right = right, moved % sizes[turn % 2]
        out[outside] = right * sizes[0] + left
        outside = outside[out[outside] >= count]
    return out.astype(np.int64)


def _mixed(value: NDArray[np.uint64], key: int) -> NDArray[np.uint64]:
    """The finaliser of splitmix64 (Steele, Lea & Flood, OOPSLA 2014), keyed."""
    with np.errstate(over="ignore"):
        value = value + np.uint64((key + 1) * 0x9E3779B97F4A7C15 & 0xFFFFFFFFFFFFFFFF)
        value = (value ^ value >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
        value = (value ^ value >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
        mixed: NDArray[np.uint64] = value ^ value >> np.uint64(31)
        return mixed
