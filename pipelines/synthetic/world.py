"""A world whose truth is known: users with tastes over topics, items that are popular within topics, and time.

In: sizes and a seed. Out: the probability that a user takes an item, exactly, and events drawn from it.

The model: P(item | user) = sum_z theta[user, z] phi[z, item]. phi is a Zipf law over the items of each topic; an item
belongs to one, two or three topics. Before an item's birth its probability is 0 and the topic's others share it; after
the last birth the dot product of the truth vectors is the probability, given that the user has not taken the item yet
(nobody takes one twice). `pipelines.synthetic.fashion` lets phi change over time.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipelines.synthetic.words import AGE_GROUPS, COUNTRIES, DEVICES

Ints = NDArray[np.int64]
Doubles = NDArray[np.float64]

START_S = 1_704_067_200
"""2024-01-01 00:00 UTC, the first moment of every world."""
LENGTH_S = 180 * 86_400

MEMBERSHIP = (0.6, 0.3, 0.1)
"""Shares of items in one, two and three topics."""
ZIPF_EXPONENT = 1.0
LATE_SHARE = 0.1
"""Share of items born after the start: half of them so late that training by global time never sees them."""
LATE_BIRTHS = (0.3, 0.85, 0.92)
"""Late items are born in the first or second of these parts of the time; the test part of a default split is later."""
LATE_USERS = 0.2
LAST_JOIN = 0.95
FAVOURITES = 4
"""A user has one to so many favourite topics."""
FAVOURITE_SHARE = 0.92
GROUP_STRENGTH = 1.2
ACTIVITY_SIGMA = 1.0
MAIN_DEVICE_SHARE = 0.8
REDRAWS = 40


def topics_for(items: int) -> int:
    """How many topics a world of so many items has: enough for tastes to differ, few enough to be learnt."""
    return 16 if items < 2_000 else 32 if items < 200_000 else 64


@dataclass(frozen=True)
class Catalogue:
    """The items.

    Attributes:
        topics: [N, 3] topic numbers, the main one first; -1 where there is none.
        share: [N, 3] phi of the item in each of its topics after the last birth; 0 where there is none.
        birth: [N] seconds after the start.
        entry_item: [M] items by topic, then birth: one entry for each topic of an item.
        entry_key: [M] ``topic * (LENGTH_S + 1) + birth``, rising.
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
        """An item of each topic among those born at each time, by inverse CDF.

        Args:
            topic: [E].
            time: [E] seconds after the start.
            u: [E] uniform in [0, 1).

        Returns:
            [E] item numbers.
        """
        return self.draw_by(self.entry_end, topic, time, u)

    def draw_by(self, ends: Doubles, topic: Ints, time: Ints, u: Doubles) -> NDArray[np.int32]:
        """As `draw`, by a law whose running sum over the entries is `ends` [M]."""
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


@dataclass(frozen=True)
class UserBlock:
    """A range of users and all their events.

    Attributes:
        first: number of the first user.
        age_group: [U] numbers into `AGE_GROUPS`.
        country: [U] numbers into `COUNTRIES`.
        theta: [U, Z] tastes; rows sum to 1.
        user: [E] user numbers, rising.
        item: [E] item numbers, no pair twice.
        time: [E] seconds since 1970, rising within a user.
        device: [E] numbers into `DEVICES`.
    """

    first: int
    age_group: Ints
    country: Ints
    theta: NDArray[np.float32]
    user: Ints
    item: NDArray[np.int32]
    time: Ints
    device: Ints


class Population:
    """The users, made block by block, each block from a seed of its own.

    Args:
        users: how many.
        events: about how many in all.
        catalogue: what they choose from.
        seed: the world's.
    """

    BLOCK_USERS = 8_192

    def __init__(self, users: int, events: int, catalogue: Catalogue, seed: np.random.SeedSequence) -> None:
        self.users, self.catalogue = users, catalogue
        Z = len(catalogue.topic_start) - 1
        shared, activity, *self._seeds = seed.spawn(2 + -(-users // self.BLOCK_USERS))
        rng = np.random.default_rng(shared)
        self.age_effect = rng.normal(0, GROUP_STRENGTH, (len(AGE_GROUPS), Z))
        self.country_effect = rng.normal(0, GROUP_STRENGTH, (len(COUNTRIES), Z))
        raw = np.random.default_rng(activity).lognormal(0, ACTIVITY_SIGMA, users)
        limit = max(len(catalogue.birth) // 10, 1)
        self.activity = _scaled(raw, events, limit)

    def blocks(self) -> Iterator[UserBlock]:
        """Yields all users, `BLOCK_USERS` at a time."""
        for number, seed in enumerate(self._seeds):
            yield self._block(number * self.BLOCK_USERS, np.random.default_rng(seed))

    def _block(self, first: int, rng: np.random.Generator) -> UserBlock:
        size = min(self.BLOCK_USERS, self.users - first)
        age = rng.integers(0, len(AGE_GROUPS), size)
        country = (len(COUNTRIES) * rng.random(size) ** 1.5).astype(np.int64)
        theta = _tastes(self.age_effect[age] + self.country_effect[country], rng)
        user = np.repeat(np.arange(size), self.activity[first : first + size])
        join = np.where(rng.random(size) < LATE_USERS, rng.uniform(0, LAST_JOIN, size), 0.0)
        time = ((join[user] + (1 - join[user]) * rng.random(len(user))) * LENGTH_S).astype(np.int64)
        time = time[np.lexsort((time, user))]
        item, kept = self._take(user, time, np.cumsum(theta, axis=1), rng)
        user, time = user[kept], time[kept]
        main = rng.choice(len(DEVICES), size, p=(0.6, 0.25, 0.1, 0.05))
        other = rng.integers(0, len(DEVICES), len(user))
        device = np.where(rng.random(len(user)) < MAIN_DEVICE_SHARE, main[user], other)
        return UserBlock(first, age, country, theta.astype(np.float32), first + user, item, START_S + time, device)

    def _take(
        self, user: Ints, time: Ints, ends: Doubles, rng: np.random.Generator
    ) -> tuple[NDArray[np.int32], NDArray[np.bool_]]:
        """Draws an item for each event; one that the user has taken before is drawn again, which conditions on it."""
        item = np.zeros(len(user), np.int32)
        open_places = np.arange(len(user))
        flat = (ends / ends[:, -1:] + np.arange(len(ends))[:, None]).ravel()
        Z = ends.shape[1]
        for _ in range(REDRAWS):
            who = user[open_places]
            place = np.searchsorted(flat, who + rng.random(len(who)), side="right")
            topic = np.minimum(place - who * Z, Z - 1)
            item[open_places] = self.catalogue.draw(topic, time[open_places], rng.random(len(who)))
            pair = user * len(self.catalogue.birth) + item
            _, firsts = np.unique(pair, return_index=True)
            again = np.ones(len(user), bool)
            again[firsts] = False
            open_places = np.flatnonzero(again)
            if not len(open_places):
                break
        kept = np.ones(len(user), bool)
        kept[open_places] = False
        return item[kept], kept


def _distinct_topics(items: int, Z: int, rng: np.random.Generator) -> NDArray[np.int8]:
    first = rng.integers(0, Z, items)
    step = rng.integers(1, Z, items)
    other = rng.integers(1, Z - 1, items)
    other += other >= step
    topics = np.stack([first, (first + step) % Z, (first + other) % Z], axis=1).astype(np.int8)
    count = rng.choice(3, items, p=MEMBERSHIP) + 1
    topics[np.arange(3) >= count[:, None]] = -1
    return topics


def _scaled(raw: Doubles, total: int, limit: int) -> Ints:
    """Whole numbers from 1 to `limit` in proportion to `raw`, which sum to about `total`."""
    scale = total / raw.sum()
    for _ in range(50):
        # What the limit cuts off is spread over the others.
        scale *= total / np.clip(raw * scale, 1, limit).sum()
    counts: Ints = np.clip(np.rint(raw * scale), 1, limit).astype(np.int64)
    return counts


def _tastes(effect: Doubles, rng: np.random.Generator) -> Doubles:
    """[U, Z] tastes: a few favourites drawn from what the user's group likes, and a little of all that it likes."""
    size, Z = effect.shape
    group = np.exp(effect - effect.max(axis=1, keepdims=True))
    group /= group.sum(axis=1, keepdims=True)
    # Gumbel noise on the logits orders topics as drawing without replacement from `group` would.
    order: Ints = np.argsort(-(effect + rng.gumbel(size=effect.shape)), axis=1)
    order = order[:, :FAVOURITES]
    count: Ints = rng.integers(1, FAVOURITES + 1, (size,))
    weight = np.where(np.arange(FAVOURITES) < count[:, None], rng.exponential(size=order.shape), 0.0)
    favourites = np.zeros((size, Z))
    np.put_along_axis(favourites, order, weight / weight.sum(axis=1, keepdims=True), axis=1)
    taste: Doubles = FAVOURITE_SHARE * favourites + (1 - FAVOURITE_SHARE) * group
    return taste
