"""Chooses the impressions of a training example: items that its user was shown and did not take.

They serve as negatives. There is no state: the choice is a function of the example and the epoch.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from towers.data.events import Int32s, Int64s
from towers.data.shuffle import mixed

NEVER, AT_ONCE = np.iinfo(np.int64).max, np.iinfo(np.int64).min
NO_ITEM = -1
LOOKED_AT = 4  # impressions that are looked at for each one that is wanted


@dataclass(frozen=True)
class Impressions:
    """The impressions of training events. The arrays may be memory-mapped.

    Attributes:
        item: [I] item numbers.
        taken: [I] when the user of the impression first took its item, in ticks, 0 in untimed data; `NEVER`; `AT_ONCE`
            if they took it of the same request.
        begin, end: [E] the impressions that training event e may have are ``item[begin[e]:end[e]]``.
        nearest: whether an example has the last ones of them; else they follow a random one, and wrap round.
        number: n, how many an example has at most.
    """

    item: Int32s
    taken: Int64s
    begin: Int64s
    end: Int64s
    nearest: bool
    number: int

    def of_examples(self, example: Int64s, time: Int64s, ranks: Int64s, barred: Int64s, key: int) -> Int64s:
        """Distinct items [B, n] of the examples by rank, nearest first; -1 where there is none.

        Of the 4 n impressions that it looks at, an example leaves out those of items that its user had taken by then,
        that have no rank or that are barred.

        Args:
            example: [B] training events.
            time: [B] of these, in ticks; 0 in untimed data.
            ranks: [all items] rank of each item; -1 for none.
            barred: [B, L] ranks.
            key: of the random order.
        """
        begin, count = self.begin[example], self.end[example] - self.begin[example]
        some = np.maximum(count, 1)
        first = some - 1 if self.nearest else _at_random(example, some, key)
        step = np.arange(LOOKED_AT * self.number)
        there = step < count[:, None]
        place = np.where(there, begin[:, None] + (first[:, None] - step) % some[:, None], 0)
        rank = np.where(there & (self.taken[place] > time[:, None]), ranks[self.item[place]], NO_ITEM)
        for own in barred.T:
            rank[rank == own[:, None]] = NO_ITEM
        chosen = np.full((len(example), self.number), NO_ITEM, np.int64)
        row = np.arange(len(example))
        for column in chosen.T:
            column[:] = rank[row, (rank >= 0).argmax(axis=1)]
            rank[rank == column[:, None]] = NO_ITEM
        return chosen


def _at_random(example: Int64s, count: Int64s, key: int) -> Int64s:
    number: NDArray[np.uint64] = mixed(example.astype(np.uint64), key) % count.astype(np.uint64)
    return number.astype(np.int64)
