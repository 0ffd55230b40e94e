"""The items of the synthetic world: topics, popularity, births."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Doubles = NDArray[np.float64]
LENGTH_S = 180 * 86_400

MEMBERSHIP = (0.6, 0.3, 0.1)  # shares of items in one, two and three topics
ZIPF_EXPONENT = 1.0
# Share of items born after the start: half of them so late that training by global time never sees them. They are born
# in the first or the second of these parts of the time; the test part of a default split is later.
LATE_SHARE = 0.1
LATE_BIRTHS = (0.3, 0.85, 0.92)


def topics_for(items: int) -> int:
    """Returns the number of topics for this many items: enough for tastes to differ, few enough to be learnt."""
    return 16 if items < 2_000 else 32 if items < 200_000 else 64


@dataclass(frozen=True)
class Catalogue:
    """The items.

    Attributes:
        topics: [N, 3] topic numbers, the main one first, padded with -1.
        share: [N, 3] phi of the item in each of its topics after the last birth, padded with 0.
        birth: [N] seconds after the start.
        entry_item: [M] items by topic, then birth: one entry per topic of an item.
        entry_key: [M] ``topic * (LENGTH_S + 1) + birth``, ascending.
        entry_end: [M] running sum of `share` over the entries.
        topic_start: [Z + 1] where each topic's entries begin.
    """

    topics: NDArray[np.int8]
    share: Doubles
    birth: Ints
    entry_item: NDArray[np.int32]
    entry_key: Ints
    entry_end: Doubles
    topic_start: Ints

    @classmethod
    def make(cls, items: int, rng: np.random.Generator) -> "Catalogue":
        """Draws memberships, ranks within topics and births."""
        Z = topics_for(items)
        topics = _distinct_topics(items, Z, rng)
        birth = np.zeros(items, np.int64)
        late = np.flatnonzero(rng.random(items) < LATE_SHARE)
        edges = np.asarray(LATE_BIRTHS) * LENGTH_S
        part = rng.integers(0, 2, len(late))
        birth[late] = rng.uniform(edges[part], edges[part + 1]).astype(np.int64)

        item, slot = np.nonzero(topics >= 0)
        topic = topics[item, slot].astype(np.int64)
        order = np.lexsort((rng.random(len(item)), topic))
        start = np.searchsorted(topic[order], np.arange(Z + 1))
        rank = np.arange(len(item)) - start[topic[order]]
        # The head of each topic is there from the start, so that no topic is ever empty.
        birth[item[order[rank == 0]]] = 0
        weight = (rank + 1.0) ** -ZIPF_EXPONENT
        share = np.zeros(topics.shape)
        norm = np.bincount(topic[order], weight, minlength=Z)
        share[item[order], slot[order]] = weight / norm[topic[order]]

        key = topic * (LENGTH_S + 1) + birth[item]
        order = np.argsort(key, kind="stable")
        ends = np.cumsum(share[item[order], slot[order]])
        return cls(topics, share, birth, item[order].astype(np.int32), key[order], ends, start)

    def draw(self, topic: Ints, time: Ints, u: Doubles) -> NDArray[np.int32]:
        """Draws an item of each topic among those born by each time, by inverse CDF.

        Args:
            topic: [E].
            time: [E] seconds after the start.
            u: [E] uniform in [0, 1).

        Returns:
            [E] item numbers.
        """
        return self.draw_by(self.entry_end, topic, time, u)

    def draw_by(self, ends: Doubles, topic: Ints, time: Ints, u: Doubles) -> NDArray[np.int32]:
        """Does the work of `draw` with a law whose running sum over the entries is `ends` [M]."""
        begin = self.topic_start[topic]
        born = np.searchsorted(self.entry_key, topic * (LENGTH_S + 1) + time, side="right")
        low = np.where(begin > 0, ends[begin - 1], 0.0)
        high = ends[born - 1]
        place = np.searchsorted(ends, low + u * (high - low), side="right")
        return self.entry_item[np.clip(place, begin, born - 1)]

    def vectors(self, first: int, last: int) -> NDArray[np.float32]:
        """[last - first, Z] truth vectors of a range of items: phi[:, item]."""
        out = np.zeros((last - first, len(self.topic_start) - 1), np.float32)
        row, slot = np.nonzero(self.topics[first:last] >= 0)
        out[row, self.topics[first:last][row, slot]] = self.share[first:last][row, slot]
        return out


def _distinct_topics(items: int, Z: int, rng: np.random.Generator) -> NDArray[np.int8]:
    first = rng.integers(0, Z, items)
    step = rng.integers(1, Z, items)
    other = rng.integers(1, Z - 1, items)
    other += other >= step
    topics = np.stack([first, (first + step) % Z, (first + other) % Z], axis=1).astype(np.int8)
    count = rng.choice(3, items, p=MEMBERSHIP) + 1
    topics[np.arange(3) >= count[:, None]] = -1
    return topics
