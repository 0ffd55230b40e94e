"""Fits a prior: the weights under which held-out events are most likely.

The norm exponent is fitted with it, see `towers.model.prior`. A likelihood is smooth in the weights, while a ranking
metric of a few hundred users is noise. This one is a conditional logit: McFadden, in Frontiers in Econometrics, 1974.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import scipy.optimize
from numpy.typing import NDArray

from towers.data.events import Floats, Int32s, Int64s
from towers.model.prior import Doubles, Prior, Shares, deviation
from towers.model.two_tower import SHORTEST

# A likelihood needs a score for each pair: at most PAIRS, of evenly spaced users and sampled items.
PAIRS, HEAD, SAMPLE = 4_194_304, 4_096, 12_288
BLOCK = 262_144  # of the pairs, 1 MB: what is computed of a block stays in the processor's cache
# With 100,000 items, such a sample gave every weight within 0.002 of that from all items.
RIDGE = 1e-4  # on the weights, per user: it only decides what the data leave open
# The length of the history is kept if it raises the log-likelihood by more than this, about two standard errors.
WORTH = 2.0
LOG_SCALE = (-5.0, 5.0)  # of the model's own scores, in units of their standard deviation
MOST_WEIGHT = 10.0


@dataclass(frozen=True)
class HeldOut:
    """Held-out users for `fit`; item numbers are rows of the item vectors.

    Attributes:
        queries: [Q, D]; a zero vector is a query about which nothing is known, and is ignored.
        seen_offsets, seen_items: what each user has seen and is not to be ranked; a negative item is none.
        target_offsets, target_items: what each user took next; a negative item is none.
        histories: [Q] lengths of their histories.
    """

    queries: Floats
    seen_offsets: Int64s
    seen_items: Int32s
    target_offsets: Int64s
    target_items: Int32s
    histories: Int64s


def fit(held: HeldOut, vectors: Floats, shares: Shares, exponents: tuple[float, float]) -> tuple[Prior, float]:
    """The prior and the norm exponent x under which the held-out events are most likely.

    Maximises the mean over users of ``mean over targets of log P(target | u)``, P the softmax over the items that the
    user has not seen of ``a s_x + (now + length log(1 + h)) log q_now - past log q_train``; a then divides all weights.
    With more than 16,384 items, the likelihood uses the 4,096 most popular now and a sample of the others.

    Args:
        held: the users.
        vectors: [N, D] item vectors before division by a power of their length.
        shares: of the same items.
        exponents: lowest and highest x; equal values fix it.

    Returns:
        The prior and x. If no user has a target, these are ``Prior(0, 0)`` and the highest x.
    """
    problem = _Problem.of(held, vectors, shares)
    if problem is None:
        return Prior(0.0, 0.0), exponents[1]
    fixed = problem.best(exponents, length=False)
    free = problem.best(exponents, length=True, start=fixed.x)
    chosen = free if (fixed.fun - free.fun) * len(problem.users) > WORTH else fixed
    log_scale, exponent, past, now, length = chosen.x
    norms = np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), SHORTEST)
    served = deviation(held.queries, vectors / norms**exponent)
    unit = problem.deviation / np.exp(log_scale) / served
    base = now - length * problem.middle
    return Prior(float(base * unit), float(past * unit), float(length * unit)), float(exponent)


@dataclass(frozen=True)
class _Problem:
    """The likelihood as a function of ``(log a, x, past, now, length)``.

    Attributes:
        users: [B] the users in the likelihood.
        base: [B, M] scores at x = 0 over the standard deviation of those at x = 1; -inf for a seen item.
        target: the same score, log length, past and now of the targets' items, flat: [T] each.
        owner: [T] index of each target's user; `share`: [T] its weight, 1 in total per user.
        log_norm, past, now: [M].
        offset: [M] log of the number of items that each stands for.
        lengths: [B] ``log(1 + h)`` minus `middle`, its mean.
        deviation: the standard deviation of the scores.
    """

    users: NDArray[np.intp]
    base: Floats
    target: tuple[Doubles, Doubles, Doubles, Doubles]
    owner: NDArray[np.intp]
    share: Doubles
    log_norm: Floats
    past: Floats
    now: Floats
    offset: Floats
    lengths: Doubles
    middle: float
    deviation: float

    @classmethod
    def of(cls, held: HeldOut, vectors: Floats, shares: Shares) -> "_Problem | None":
        """Scores every pair once; None if no user has a target."""
        owner, item = _flat(held.target_offsets, held.target_items)
        useful = np.any(held.queries != 0, axis=1)
        kept = useful[owner] & (item >= 0)
        columns, offset = _columns(shares.now)
        users = _some(np.unique(owner[kept]), PAIRS // max(1, len(columns)))
        if not len(users) or not len(columns):
            return None
        place = np.full(len(held.queries), -1)
        place[users] = np.arange(len(users))
        kept &= place[owner] >= 0
        owner, item = place[owner[kept]], item[kept]
        queries = held.queries[users]
        norms = np.maximum(np.linalg.norm(vectors, axis=1), SHORTEST)
        base = queries @ vectors[columns].T
        deviation = float(np.std(base / norms[columns])) or 1.0
        base /= deviation
        _hide_seen(base, held, place, columns, len(vectors))
        base[np.isneginf(base).all(axis=1)] = 0  # the user has seen every item
        lengths = np.log1p(held.histories[users].astype(np.float64))
        score = np.einsum("td,td->t", queries[owner], vectors[item]) / deviation
        return cls(
            users=users,
            base=base,
            target=(score.astype(np.float64), np.log(norms[item]), shares.past[item], shares.now[item]),
            owner=owner,
            share=1.0 / np.bincount(owner, minlength=len(users))[owner],
            log_norm=np.log(norms[columns]).astype(np.float32),
            past=shares.past[columns],
            now=shares.now[columns],
            offset=offset,
            lengths=lengths - lengths.mean(),
            middle=float(lengths.mean()),
            deviation=deviation,
        )

    def best(
        self, exponents: tuple[float, float], *, length: bool, start: Sequence[float] | None = None
    ) -> "scipy.optimize.OptimizeResult":
        """The most likely weights; `length` frees the last one."""
        first = (0.0, exponents[1], 0.3, 0.8, 0.0) if start is None else start
        weight = (0.0, MOST_WEIGHT)
        return scipy.optimize.minimize(
            self.loss,
            np.array(first),
            jac=True,
            method="L-BFGS-B",
            options={"ftol": 1e-7, "maxiter": 50},
            bounds=[LOG_SCALE, exponents, weight, weight, (-1.0, 1.0) if length else (0.0, 0.0)],
        )

    def loss(self, weights: Doubles) -> tuple[float, Doubles]:
        """Minus the mean log-likelihood per user, plus the ridge, and its gradient [5]."""
        log_scale, exponent, past, now, length = weights
        scale = np.exp(log_scale)
        rows = max(1, BLOCK // len(self.now))
        parts = [slice(begin, begin + rows) for begin in range(0, len(self.users), rows)]
        # [B] each.
        log_total, expected, expected_norm, expected_past, expected_now = np.concatenate(
            [self._expected(part, weights) for part in parts], axis=1
        )
        score, log_norm, log_past, log_now = self.target
        hit = scale * score * np.exp(-exponent * log_norm)
        mine = hit + (now + length * self.lengths[self.owner]) * log_now - past * log_past
        likelihood = self.share @ (mine - log_total[self.owner])
        # The gradient of a log-likelihood: observed minus expected.
        fashion = np.bincount(self.owner, self.share * log_now, len(self.users)) - expected_now
        gradient = np.array(
            [
                self.share @ hit - expected.sum(),
                -(self.share @ (hit * log_norm)) + expected_norm.sum(),
                -(self.share @ log_past) + expected_past.sum(),
                fashion.sum(),
                fashion @ self.lengths,
            ]
        )
        users = len(self.users)
        ridge = RIDGE * float(np.square(weights[2:]).sum())
        gradient = -gradient / users
        gradient[2:] += 2 * RIDGE * weights[2:]
        return float(-likelihood / users + ridge), gradient

    def _expected(self, part: slice, weights: Doubles) -> Doubles:
        """Of some users, [5, b]: the log of the sum over the items, and what their chances expect of the scaled score,
        of that times the log length, of past and of now."""
        log_scale, exponent, past, now, length = weights.astype(np.float32)
        scaled = self.base[part] * np.exp(log_scale - exponent * self.log_norm)
        own = (now + length * self.lengths[part].astype(np.float32))[:, np.newaxis]
        chance = own * self.now
        chance += scaled
        chance += self.offset - past * self.past
        top = chance.max(axis=1, keepdims=True)
        chance -= top
        np.exp(chance, out=chance)
        total = chance.sum(axis=1, keepdims=True)
        chance /= total
        means = chance @ np.stack([self.past, self.now], axis=1)
        scaled[chance == 0] = 0.0  # 0 times the -inf of a seen item would be NaN
        scaled *= chance
        log_total = (top + np.log(total))[:, 0]
        return np.stack([log_total, scaled.sum(axis=1), scaled @ self.log_norm, *means.T]).astype(np.float64)


def _some(users: NDArray[np.intp], most: int) -> NDArray[np.intp]:
    """At most `most` users, evenly spaced, because their order may be that of their activity."""
    if len(users) <= most:
        return users
    return users[np.linspace(0, len(users) - 1, max(most, 1)).astype(np.intp)]


def _columns(now: Floats) -> tuple[NDArray[np.intp], Floats]:
    """The items that the likelihood sums over, and the log of how many items each stands for."""
    if len(now) <= HEAD + SAMPLE:
        return np.arange(len(now)), np.zeros(len(now), np.float32)
    order = np.argsort(-now, kind="stable")
    tail = np.random.default_rng(0).choice(order[HEAD:], SAMPLE, replace=False)
    offset = np.zeros(HEAD + SAMPLE, np.float32)
    offset[HEAD:] = np.log((len(now) - HEAD) / SAMPLE)
    return np.concatenate([order[:HEAD], tail]), offset


def _hide_seen(base: Floats, held: HeldOut, place: NDArray[np.intp], columns: NDArray[np.intp], items: int) -> None:
    """Sets the scores of what a user has seen to -inf, in place."""
    owner, item = _flat(held.seen_offsets, held.seen_items)
    column = np.full(items + 1, -1)  # an item of -1 reads the last one
    column[columns] = np.arange(len(columns))
    here = (place[owner] >= 0) & (column[item] >= 0)
    base[place[owner[here]], column[item[here]]] = -np.inf


def _flat(offsets: Int64s, items: Int32s) -> tuple[NDArray[np.intp], Int32s]:
    return np.repeat(np.arange(len(offsets) - 1), np.diff(offsets)), items
