"""The metric that chooses the epoch: held-out users, the whole catalogue, seen items masked, top-k in blocks."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from towers.data.events import Floats, Int32s, Int64s
from towers.data.feature_tables import bagged
from towers.evaluation import metrics
from towers.evaluation.metrics import Measured
from towers.evaluation.prior_fit import MOST_WEIGHT, HeldOut, fit
from towers.evaluation.top_k import top_k
from towers.model.prior import Prior, Shares, assign_prior, deviation, prior_of
from towers.model.two_tower import SHORTEST, Encoded, Tower, TwoTower
from towers.ops.replicas import ALONE, Replicas

ROWS = 8_192  # rows encoded at once
# For the exponent x of the served item vectors v / |v|^x. Training on the cosine leaves the lengths of the vectors
# free: an item's length grows as it is trained on, so it reflects popularity. The cosine (x = 1) discards that, the dot
# product (x = 0) uses it at full strength. The best ranking lies in between, depends on the data, and is free to serve.
STEP, LEAST, MOST = 0.1, -1.0, 1.0
ERRORS = 2  # standard errors beyond which a gain is no chance


@dataclass(frozen=True)
class Validation:
    """Held-out users.

    Attributes:
        query: their looked-up features, by name.
        candidate: every item's looked-up features, by name.
        seen_offsets, seen_items: [Q + 1] and flat, what each user has seen.
        target_offsets, target_items: [Q + 1] and flat, what each user took next.
        metric: ``recall@k`` or ``ndcg@k``.
        shares: log shares of every item, for a model with a prior; None without one.
        replicas: the workers, each of which ranks for a part of the users.
    """

    query: Encoded
    candidate: Encoded
    seen_offsets: Int64s
    seen_items: Int32s
    target_offsets: Int64s
    target_items: Int32s
    metric: str
    shares: Shares | None = None
    replicas: Replicas = ALONE

    def measure(self, model: TwoTower) -> Measured:
        """Mean of the metric over the held-out users; also chooses norm exponent and prior if the recipe says so.

        It chooses the epoch too. With a prior that is fitted here, the criterion is the mean of the metric without it
        and as served, with it if that is better: a prior makes up for what a model has not learnt yet, so that with it
        alone one epoch looks as good as ten, and the choice is left to chance. On MovieLens-100k's first four cut-offs
        the epochs that the mean chose had a recall of 0.171 on the test, those with the prior alone 0.162, those
        without it 0.167.

        The weights that make the held-out events most likely need not rank best. So from there the weight `now` climbs
        while the metric grows, if all of that is more than chance.

        Only items about which training learnt something are ranked, as only they are served: an untrained item's zero
        vector scores 0, which is more than most items get from a loss that pushes scores down. The prior is kept if the
        metric is better with it.
        """
        ranking = Ranking.of(self, model)
        own, settings = model.candidate_tower.norm_exponent, model.settings
        prior = prior_of(model)
        best = float(own.numpy())
        searched = settings.prior == "validation"
        without = None if searched else prior
        if settings.norm_exponent == "validation":
            best, value = climb(lambda exponent: ranking.mean(exponent, without), best, LEAST, MOST)
        else:
            value = ranking.mean(best, without)
        criterion = value
        if searched:
            bounds = (LEAST, MOST) if settings.norm_exponent == "validation" else (best, best)
            fitted, exponent = ranking.fit(bounds)
            fitted, with_prior = ranking.climbed(exponent, fitted)
            criterion = (value + max(value, with_prior)) / 2
            if with_prior > value:
                best, value = exponent, with_prior
            else:
                fitted = Prior(0.0, 0.0)
            assign_prior(model, fitted)
        own.assign(best)
        return Measured(value, criterion)

    def values(self, model: TwoTower) -> NDArray[np.float64]:
        """The metric of each held-out user, [Q], with the model's own norm exponent and prior."""
        exponent = float(model.candidate_tower.norm_exponent.numpy())
        return Ranking.of(self, model).values(exponent, prior_of(model))


@dataclass(frozen=True)
class Ranking:
    """Vectors of one model state, to be ranked with different norm exponents and priors.

    Attributes:
        held: the held-out users.
        learnt: [M] numbers of the items that are ranked.
        vectors: [M, D], not divided by any power of their length.
        queries: [Q, D]; with shares, zero where training learnt nothing about the known features.
        seen: the held-out users' seen items by their place in `learnt`, -1 for others.
    """

    held: Validation
    learnt: Int32s
    vectors: Floats
    queries: Floats
    seen: Int32s

    @classmethod
    def of(cls, held: Validation, model: TwoTower) -> "Ranking":
        """The vectors of a model, for the held-out users and the items that it learnt something about."""
        learnt = np.flatnonzero(informed(model.candidate_tower, held.candidate)).astype(np.int32)
        vectors = embed_all(
            partial(model.candidate_tower.serve, norm_exponent=0.0),
            {key: rows[learnt] for key, rows in held.candidate.items()},
        )
        queries = embed_all(model.query_tower.serve, held.query)
        if held.shares is not None:
            queries[~informed(model.query_tower, held.query)] = 0
        ranking = cls(held, learnt, vectors, queries, held.seen_items)
        return replace(ranking, seen=ranking.places(held.seen_items))

    def places(self, items: Int32s) -> Int32s:
        """The places of item numbers in `learnt`; -1 for an item that is not in it."""
        place = np.full(len(next(iter(self.held.candidate.values()))), -1, np.int32)
        place[self.learnt] = np.arange(len(self.learnt), dtype=np.int32)
        return place[items]

    def fit(self, exponents: tuple[float, float]) -> tuple[Prior, float]:
        """See `towers.evaluation.prior_fit.fit`."""
        held = self.held
        assert held.shares is not None
        asked = HeldOut(
            self.queries,
            held.seen_offsets,
            self.seen,
            held.target_offsets,
            self.places(held.target_items),
            np.diff(held.seen_offsets),
        )
        return fit(asked, self.vectors, Shares(held.shares.now[self.learnt], held.shares.past[self.learnt]), exponents)

    def climbed(self, exponent: float, prior: Prior) -> tuple[Prior, float]:
        """The prior whose weight `now` ranks best, or the one given if that gains no more than chance; and the mean."""

        @cache
        def values(now: float) -> NDArray[np.float64]:
            return self.values(exponent, replace(prior, now=now))

        now, value = climb(lambda now: float(np.nanmean(values(now))), prior.now, 0.0, MOST_WEIGHT)
        if beyond_chance(values(now) - values(prior.now)):
            return replace(prior, now=now), value
        return prior, float(np.nanmean(values(prior.now)))

    def mean(self, exponent: float, prior: Prior | None) -> float:
        """Mean of the metric over the held-out users."""
        return float(np.nanmean(self.values(exponent, prior)))

    def values(self, exponent: float, prior: Prior | None) -> NDArray[np.float64]:
        """The metric of each held-out user."""
        held = self.held
        name, _, depth = held.metric.partition("@")
        queries, vectors = self.queries, scaled(self.vectors, exponent)
        if held.shares is not None:
            weights = (prior or Prior(0.0, 0.0)).weights(np.diff(held.seen_offsets)) * deviation(queries, vectors)
            # A query about which nothing is known gets what is popular now.
            weights[~queries.any(axis=1)] = 1, 0
            queries = np.concatenate([queries, weights], axis=1)
            shares = np.stack([held.shares.now[self.learnt], held.shares.past[self.learnt]], axis=1)
            vectors = np.concatenate([vectors, shares], axis=1)
        part = held.replicas.part(len(queries))
        seen, targets = (each[part.start : part.stop + 1] for each in (held.seen_offsets, held.target_offsets))
        found = top_k(queries[part], vectors, int(depth), seen, self.seen)
        lists = np.where(found >= 0, np.append(self.learnt, np.int32(-1))[found], np.int32(-1))
        hits = metrics.hits(lists, targets - targets[0], held.target_items[targets[0] : targets[-1]])
        return held.replicas.gather_array(metrics.METRICS[name](hits, np.diff(targets), int(depth)))


def informed(tower: Tower, features: Mapping[str, NDArray[Any]]) -> NDArray[np.bool_]:
    """Which rows have at least one feature that training learnt something about: bool [R]; see `Tower.informed`."""
    count = len(next(iter(features.values())))
    blocks = [
        tower.informed({name: tf.constant(rows[begin : begin + ROWS]) for name, rows in features.items()}).numpy()
        for begin in range(0, count, ROWS)
    ]
    return np.concatenate([np.empty(0, np.bool_), *blocks])


def embed_all(
    encode: Callable[[Encoded], tf.Tensor],
    encoded: Mapping[str, np.ndarray],
    advance: Callable[[int], None] = lambda _: None,
) -> Floats:
    """Vectors [R, D] of every row of looked-up features, computed by `encode`, a method of a tower.

    `advance` is told the number of rows of each block, once it is encoded.
    """
    rows = len(next(iter(encoded.values())))
    out: Floats | None = None
    for begin in range(0, rows, ROWS):
        features = bagged({name: values[begin : begin + ROWS] for name, values in encoded.items()})
        block = encode(tf.nest.map_structure(tf.constant, features)).numpy()
        if out is None:
            out = np.empty((rows, block.shape[1]), np.float32)
        out[begin : begin + len(block)] = block
        advance(len(block))
    return out if out is not None else np.empty((0, 0), np.float32)


def climb(metric: Callable[[float], float], start: float, least: float, most: float) -> tuple[float, float]:
    """Climbs from `start` in steps of 0.1 while the metric grows, from `least` to `most`.

    Returns:
        The best value, and its metric.
    """
    best, value = start, metric(start)
    for direction in (-STEP, STEP):
        while least <= (next_one := round(best + direction, 6)) <= most and (found := metric(next_one)) > value:
            best, value = next_one, found
        if best != start:
            break
    return best, value


def beyond_chance(gains: NDArray[np.float64]) -> bool:
    """Whether the mean of users' gains [Q], NaN where there is none, is more than two standard errors above 0."""
    error = float(np.nanstd(gains) / np.sqrt(np.count_nonzero(~np.isnan(gains))))
    return float(np.nanmean(gains)) > ERRORS * error


def scaled(vectors: Floats, exponent: float) -> Floats:
    """``v / |v|^x`` of each row of `vectors` [R, D], as `towers.model.two_tower.Tower.serve`."""
    norm = np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), SHORTEST)
    out: Floats = (vectors * norm**-exponent).astype(np.float32)
    return out
