"""Catalogues with a conditional distribution P(item | user) that is known: what a loss learns has a right answer.

In: sizes and a seed. Out: a `World`: log P, and batches drawn from it without end.
"""

import functools
import itertools
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Doubles = NDArray[np.float64]
Singles = NDArray[np.float32]

# Of the Zipf law of popularity, log(rank + OFFSET): without an offset the first item alone would take a tenth of all.
OFFSET = 10.0
EXAMPLES = 10_000_000  # of a training set: counts are their expected values, at least 1


@dataclass(frozen=True)
class World:
    """A known distribution.

    Attributes:
        log_p: float64 [U, N] log P(item | user); users are equally frequent, items sorted by falling mean P.
    """

    log_p: Doubles

    @functools.cached_property
    def p(self) -> Doubles:
        """[U, N] P(item | user)."""
        return np.exp(self.log_p)

    @functools.cached_property
    def popularity(self) -> Doubles:
        """[N] mean over the users of P."""
        return np.asarray(self.p.mean(axis=0))

    @property
    def counts(self) -> NDArray[np.int64]:
        """[N] training examples of each item: what samplers take, falling."""
        return np.maximum(1, np.round(self.popularity * EXAMPLES)).astype(np.int64)

    def draw(self, count: int, seed: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """`count` independent examples: users and items, int64 [count] each."""
        rng = np.random.default_rng(seed)
        users = rng.integers(0, len(self.log_p), count)
        uniform = rng.random(count)
        items = np.empty(count, np.int64)
        order = np.argsort(users, kind="stable")
        ends = np.searchsorted(users[order], np.arange(len(self.log_p) + 1))
        for user, (begin, end) in enumerate(itertools.pairwise(ends)):
            places = order[begin:end]
            below = np.cumsum(self.p[user])
            items[places] = np.searchsorted(below, uniform[places] * below[-1], side="right")
        return users, items


def low_rank_world(users: int, items: int, *, rank: int, deviation: float, seed: int) -> World:
    """``log P(j | u) = b_j + x_u . y_j + const_u``: popularity by Zipf's law, taste of low rank.

    Args:
        users, items: U and N.
        rank: of the taste.
        deviation: of ``x_u . y_j`` over the items of one user; 0 makes all users alike.
        seed: of everything.
    """
    rng = np.random.default_rng(seed)
    taste = rng.standard_normal((users, rank)) @ rng.standard_normal((rank, items)) * deviation / rank**0.5
    logits = taste - np.log(np.arange(items) + OFFSET)
    logits -= logits.max(axis=1, keepdims=True)
    log_p = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    return World(log_p[:, np.argsort(-np.exp(log_p).mean(axis=0), kind="stable")])


def divergence(world: World, scores: Singles) -> float:
    """Mean over the users of KL(P | softmax of their scores [U, N]), in nats: 0 for scores that are log P + const."""
    return float((world.p * (world.log_p - log_softmax(scores))).sum(axis=1).mean())


def attained(world: World, scores: Singles, k: int) -> float:
    """P of the k items of highest score [U, N], as a share of that of the k most probable; mean over the users."""
    found = np.take_along_axis(world.p, np.argpartition(-scores, k - 1, axis=1)[:, :k], axis=1)
    best = np.partition(world.p, -k, axis=1)[:, -k:]
    return float((found.sum(axis=1) / best.sum(axis=1)).mean())


def log_likelihood(scores: Singles, users: NDArray[np.int64], items: NDArray[np.int64]) -> float:
    """Mean log-likelihood in nats of examples under the softmax of the scores [U, N]."""
    return float(log_softmax(scores)[users, items].mean())


def log_softmax(scores: Singles) -> Singles:
    """Of each row."""
    lower = scores - scores.max(axis=1, keepdims=True)
    return np.asarray(lower - np.log(np.exp(lower).sum(axis=1, keepdims=True)), np.float32)
