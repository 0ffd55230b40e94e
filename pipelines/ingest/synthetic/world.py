"""A world whose truth is known: users with tastes over topics, items that are popular within topics, and time.

It gives the exact probability that a user takes an item, and events drawn from it.

The model: P(item | user) = sum_z theta[user, z] phi[z, item]. phi is a Zipf law over the items of each topic; an item
belongs to one, two or three topics. Before an item's birth its probability is 0 and the topic's other items share it;
after the last birth the dot product of the truth vectors is the probability, given that the user has not taken the item
yet (no user takes one twice). `pipelines.ingest.synthetic.fashion` lets phi change over time.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipelines.ingest.synthetic.catalogue import LENGTH_S, Catalogue, Doubles, Ints
from pipelines.ingest.synthetic.words import AGE_GROUPS, COUNTRIES, DEVICES

START_S = 1_704_067_200
"""2024-01-01 00:00 UTC, the first moment of every world."""

LATE_USERS = 0.2
LAST_JOIN = 0.95
FAVOURITES = 4  # a user has one to this many favourite topics
FAVOURITE_SHARE = 0.92
GROUP_STRENGTH = 1.2
ACTIVITY_SIGMA = 1.0
MAIN_DEVICE_SHARE = 0.8
REDRAWS = 40


@dataclass(frozen=True)
class UserBlock:
    """A range of users and all their events.

    Attributes:
        first: number of the first user.
        age_group: [U] numbers into `AGE_GROUPS`.
        country: [U] numbers into `COUNTRIES`.
        theta: [U, Z] tastes; rows sum to 1.
        user: [E] user numbers, ascending.
        item: [E] item numbers, without repeated pairs.
        time: [E] seconds since 1970, ascending within a user.
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
    """The users, generated in blocks, each from its own seed.

    Args:
        users: number of users.
        events: approximate number of events.
        catalogue: the items they take.
        seed: the users' seed.
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
        """Draws an item for each event; repeated pairs are redrawn, which conditions on items not taken before."""
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


def _scaled(raw: Doubles, total: int, limit: int) -> Ints:
    """Returns integers from 1 to `limit` in proportion to `raw` that sum to about `total`."""
    scale = total / raw.sum()
    for _ in range(50):
        # What the limit cuts off is spread over the others.
        scale *= total / np.clip(raw * scale, 1, limit).sum()
    counts: Ints = np.clip(np.rint(raw * scale), 1, limit).astype(np.int64)
    return counts


def _tastes(effect: Doubles, rng: np.random.Generator) -> Doubles:
    """[U, Z] tastes: a few favourites drawn from the preferences of the user's group, and a little of all of them."""
    size, Z = effect.shape
    group = np.exp(effect - effect.max(axis=1, keepdims=True))
    group /= group.sum(axis=1, keepdims=True)
    # Gumbel noise on the logits orders topics like drawing without replacement from `group`.
    order: Ints = np.argsort(-(effect + rng.gumbel(size=effect.shape)), axis=1)
    order = order[:, :FAVOURITES]
    count: Ints = rng.integers(1, FAVOURITES + 1, (size,))
    weight = np.where(np.arange(FAVOURITES) < count[:, None], rng.exponential(size=order.shape), 0.0)
    favourites = np.zeros((size, Z))
    np.put_along_axis(favourites, order, weight / weight.sum(axis=1, keepdims=True), axis=1)
    taste: Doubles = FAVOURITE_SHARE * favourites + (1 - FAVOURITE_SHARE) * group
    return taste
