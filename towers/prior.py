"""The prior of now: how much recent popularity adds to a model's scores, fitted on held-out events.

In: vectors of queries and items, log shares of the items in a recent window and in training, held-out targets. Out: a
`Prior`, the weights of

    s(u, i) = u . v_i / |v_i|^x + (now + length log(1 + h)) log q_now(i) - past log q_train(i)

with h the length of the query's history. A softmax with correction c learns ``log P(i | u) - (1 - c) log q_train(i)``
of the whole training period, and what is asked for is the P of today: in theory ``past = c`` and ``now = 1``, in units
of the temperature. In practice the length of the item vectors carries popularity, too, so all weights are fitted
together, by the likelihood of the held-out events with each user counted alike: it is smooth in the weights, where a
ranking metric of a few hundred users is noise. The score stays one dot product, of ``[u, w(h), -past]`` and
``[v_i / |v_i|^x, log q_now, log q_train]``. Related: Zhang et al., PDA, SIGIR 2021. The fit is a conditional logit:
McFadden, in Frontiers in Econometrics, 1974.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.optimize
from numpy.typing import NDArray

from towers.events import Floats, Int32s, Int64s
from towers.model import SHORTEST, TwoTower

Doubles = NDArray[np.float64]

# Added to an item's count over the mean count, so that an item without an event has a finite log share. On
# MovieLens-100k 0.01 to 1 gave the same recall.
SMOOTHING = 0.1
# A likelihood needs a score for each pair: at most so many, of users in the order given and of sampled items.
PAIRS, HEAD, SAMPLE = 4_194_304, 4_096, 12_288
# With 100,000 items such a sample gave every weight within 0.002 of that of all items.
RIDGE = 1e-4  # on the weights, per user: it only decides what the data leave open
# The length of the history is kept where it explains more than a random number would: Akaike's criterion.
WORTH = 2.0
LOG_SCALE = (-5.0, 5.0)  # of the model's own scores, in units of their standard deviation
MOST_WEIGHT = 10.0


@dataclass(frozen=True)
class Shares:
    """Log shares of every item: float32 [N] each.

    Attributes:
        now: of the counts that say what is in fashion.
        past: of the training events.
    """

    now: Floats
    past: Floats


@dataclass(frozen=True)
class Prior:
    """Weights of the prior, in units of the served score.

    Attributes:
        now: of ``log q_now`` for a query without a history.
        past: of ``log q_train``, taken off.
        length: what each unit of ``log(1 + h)`` adds to `now`.
    """

    now: float
    past: float
    length: float = 0.0

    def weights(self, histories: NDArray[np.integer[Any]]) -> Floats:
        """What stands in a query's vector beside the columns of `Shares`.

        Args:
            histories: [B] lengths of the queries' histories.

        Returns:
            [B, 2]: ``max(0, now + length log(1 + h))`` and ``-past``.
        """
        now = np.maximum(self.now + self.length * np.log1p(histories), 0.0)
        return np.stack([now, np.full(len(now), -self.past)], axis=1).astype(np.float32)


def prior_of(model: TwoTower) -> Prior | None:
    """A model's prior; None where its recipe has none."""
    return None if model.prior_weights is None else Prior(*map(float, model.prior_weights.numpy()))


def assign_prior(model: TwoTower, prior: Prior) -> None:
    """Gives a model whose recipe has a prior other weights."""
    assert model.prior_weights is not None
    model.prior_weights.assign([prior.now, prior.past, prior.length])


def log_share(counts: NDArray[Any], mean: float | None = None) -> Floats:
    """``log(c / mean + 0.1)`` of counts [N]: 0 for about the mean item, -2.3 for one without an event."""
    mean = float(counts.mean()) if mean is None else mean
    share: Floats = np.log(counts / (mean or 1.0) + SMOOTHING).astype(np.float32)
    return share


@dataclass(frozen=True)
class HeldOut:
    """Held-out users for `fit`, item numbers being rows of the item vectors.

    Attributes:
        queries: [Q, D]; a zero vector is a query of which nothing is known, and says nothing here.
        seen_offsets, seen_items: what each has seen, not to be ranked; a negative item is none.
        target_offsets, target_items: what each took next; a negative item is none.
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
    Of more than 16,384 items the likelihood takes the 4,096 most popular of now and a sample of the others.

    Args:
        held: the users.
        vectors: [N, D] item vectors before they are divided by a power of their length.
        shares: of the same items.
        exponents: least and greatest x; equal ones fix it.

    Returns:
        The prior and x. Without a user who has a target it is ``Prior(0, 0)`` and the greatest x.
    """
    problem = _Problem.of(held, vectors, shares)
    if problem is None:
        return Prior(0.0, 0.0), exponents[1]
    fixed = problem.best(exponents, length=False)
    free = problem.best(exponents, length=True, start=fixed.x)
    chosen = free if (fixed.fun - free.fun) * len(problem.users) > WORTH else fixed
    log_scale, exponent, past, now, length = chosen.x
    unit = problem.deviation / np.exp(log_scale)
    base = now - length * problem.middle
    return Prior(float(base * unit), float(past * unit), float(length * unit)), float(exponent)


@dataclass(frozen=True)
class _Problem:
    """The likelihood as a function of ``(log a, x, past, now, length)``.

    Attributes:
        users: [B] whose likelihood it is.
        base: [B, M] scores at x = 0 over the standard deviation of those at x = 1; -inf where an item was seen.
        target: the same, past, now and log length of the targets' items, flat: [T] each.
        owner: [T] the user of each target, by place; `share`: [T] its weight, 1 over the user's targets.
        log_norm, past, now: [M].
        offset: [M] log of how many items each stands for.
        lengths: [B] ``log(1 + h)`` less `middle`, its mean.
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
        """Scores every pair once; None where no user has a target."""
        owner, item = _flat(held.target_offsets, held.target_items)
        useful = np.any(held.queries != 0, axis=1)
        kept = useful[owner] & (item >= 0)
        columns, offset = _columns(shares.now)
        users = np.unique(owner[kept])[: max(1, PAIRS // max(1, len(columns)))]
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
        base[np.isneginf(base).all(axis=1)] = 0  # has seen every one of them
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
        """The most likely weights; `length` frees the last of them."""
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
        """Minus the mean log-likelihood of a user, with the ridge, and its gradient [5]."""
        log_scale, exponent, past, now, length = weights
        scale = np.exp(log_scale)
        own = (now + length * self.lengths)[:, np.newaxis].astype(np.float32)
        scaled = self.base * np.float32(scale) * np.exp(np.float32(-exponent) * self.log_norm)
        logits = scaled + own * self.now - np.float32(past) * self.past + self.offset
        top = logits.max(axis=1, keepdims=True)
        chance = np.exp(logits - top)
        total = chance.sum(axis=1, keepdims=True)
        chance /= total
        score, log_norm, log_past, log_now = self.target
        hit = scale * score * np.exp(-exponent * log_norm)
        mine = hit + (now + length * self.lengths[self.owner]) * log_now - past * log_past
        likelihood = self.share @ (mine - (top + np.log(total))[self.owner, 0].astype(np.float64))
        # The gradient of a log-likelihood: what was taken less what was expected.
        seen = np.where(chance > 0, scaled, 0.0)
        expected = np.einsum("bm,bm->b", chance, seen)
        expected_norm = np.einsum("bm,bm,m->b", chance, seen, self.log_norm)
        fashion = np.bincount(self.owner, self.share * log_now, len(self.users)) - chance @ self.now
        gradient = np.array(
            [
                self.share @ hit - expected.sum(),
                -(self.share @ (hit * log_norm)) + expected_norm.sum(),
                -(self.share @ log_past) + (chance @ self.past).sum(),
                fashion.sum(),
                fashion @ self.lengths,
            ]
        )
        users = len(self.users)
        ridge = RIDGE * float(np.square(weights[2:]).sum())
        gradient = -gradient / users
        gradient[2:] += 2 * RIDGE * weights[2:]
        return float(-likelihood / users + ridge), gradient


def _columns(now: Floats) -> tuple[NDArray[np.intp], Floats]:
    """Which items the likelihood sums over, and the log of how many items each stands for."""
    if len(now) <= HEAD + SAMPLE:
        return np.arange(len(now)), np.zeros(len(now), np.float32)
    order = np.argsort(-now, kind="stable")
    tail = np.random.default_rng(0).choice(order[HEAD:], SAMPLE, replace=False)
    offset = np.zeros(HEAD + SAMPLE, np.float32)
    offset[HEAD:] = np.log((len(now) - HEAD) / SAMPLE)
    return np.concatenate([order[:HEAD], tail]), offset


def _hide_seen(base: Floats, held: HeldOut, place: NDArray[np.intp], columns: NDArray[np.intp], items: int) -> None:
    """Scores of -inf for what a user has seen, in place."""
    owner, item = _flat(held.seen_offsets, held.seen_items)
    column = np.full(items + 1, -1)  # the last is read by an item of -1
    column[columns] = np.arange(len(columns))
    here = (place[owner] >= 0) & (column[item] >= 0)
    base[place[owner[here]], column[item[here]]] = -np.inf


def _flat(offsets: Int64s, items: Int32s) -> tuple[NDArray[np.intp], Int32s]:
    return np.repeat(np.arange(len(offsets) - 1), np.diff(offsets)), items
