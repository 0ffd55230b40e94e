"""Training batches: a seeded order of the examples and what each batch holds, both a function of the step alone.

In: events and tables. Out: `Batch` of NumPy arrays for (epoch, step). No state: a resumed run sees the same batches.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from towers.events import Events, Int64s
from towers.model import Batch
from towers.samplers import InBatchSampler
from towers.tables import Tables, bagged

FEISTEL_ROUNDS = 4
AHEAD = 2  # batches that are made while one trains


@dataclass(frozen=True)
class Examples:
    """The batches of a training set.

    Attributes:
        events: the training events, each an example.
        tables: looked-up features.
        sampler: gives log Q of the batch's items.
        batch_size: examples a batch; one batch of all where there are fewer.
        seed: of the order and of what is masked.
        weighted: weigh examples by their events' weights.
    """

    events: Events
    tables: Tables
    sampler: InBatchSampler
    batch_size: int
    seed: int
    weighted: bool = False

    @property
    def steps(self) -> int:
        """Steps of one epoch; the last, partial batch is left out, another one in each epoch's order."""
        return max(1, len(self.events) // self.batch_size)

    def batch(self, epoch: int, step: int) -> Batch:
        """The batch of one step."""
        begin = step * self.batch_size
        places = np.arange(begin, min(begin + self.batch_size, len(self.events)), dtype=np.int64)
        example = np.sort(shuffled(places, len(self.events), key=self.seed * 1_000_003 + epoch))
        item = np.asarray(self.events.item[example])
        weight = self.events.weight if self.weighted else None
        return Batch(
            query=bagged(self.tables.of_examples(self.events, example)),
            candidate=bagged(self.tables.of_items(item)),
            item=item,
            log_expected_counts=self.sampler.log_expected_counts(item),
            weight=np.ones(len(item), np.float32) if weight is None else np.asarray(weight[example]),
            seed=np.array([self.seed, epoch * self.steps + step], np.int32),
        )

    def epoch(self, epoch: int, first_step: int = 0) -> Iterator[tuple[int, Batch]]:
        """The steps of one epoch from `first_step` on, made ahead by a thread of their own."""
        with ThreadPoolExecutor(1) as pool:
            ahead = [pool.submit(self.batch, epoch, s) for s in range(first_step, min(first_step + AHEAD, self.steps))]
            for step in range(first_step, self.steps):
                batch = ahead.pop(0).result()
                if step + AHEAD < self.steps:
                    ahead.append(pool.submit(self.batch, epoch, step + AHEAD))
                yield step, batch


def shuffled(places: Int64s, count: int, key: int) -> Int64s:
    """Where a pseudo-random permutation of ``range(count)`` sends `places`, in O(1) memory.

    A Feistel network permutes the next power of four; what falls outside is sent on until it falls inside.

    Source: Black & Rogaway, Ciphers with arbitrary finite domains, CT-RSA 2002 (cycle walking).
    """
    half = np.uint64(max(1, (int(count - 1).bit_length() + 1) // 2))
    low = np.uint64((1 << int(half)) - 1)
    out = places.astype(np.uint64)
    outside = np.ones(len(out), np.bool_)
    while outside.any():
        left, right = out[outside] >> half, out[outside] & low
        for turn in range(FEISTEL_ROUNDS):
            left, right = right, left ^ (_mixed(right, key * FEISTEL_ROUNDS + turn) & low)
        out[outside] = left << half | right
        outside = out >= count
    return out.astype(np.int64)


def _mixed(value: NDArray[np.uint64], key: int) -> NDArray[np.uint64]:
    """The finaliser of splitmix64 (Steele, Lea & Flood, OOPSLA 2014), keyed."""
    with np.errstate(over="ignore"):
        value = value + np.uint64((key + 1) * 0x9E3779B97F4A7C15 & 0xFFFFFFFFFFFFFFFF)
        value = (value ^ value >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
        value = (value ^ value >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
        mixed: NDArray[np.uint64] = value ^ value >> np.uint64(31)
        return mixed
