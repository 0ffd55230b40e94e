"""The metric that chooses the epoch: held-out users, the whole catalogue, seen items masked, top-k in blocks."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property, partial

import numpy as np
from numpy.typing import NDArray

from towers.data.events import Floats, Int32s, Int64s, select_lists
from towers.evaluation import metrics
from towers.evaluation.climb import beyond_chance, climb
from towers.evaluation.encode import embed_all, informed
from towers.evaluation.metrics import Measured
from towers.evaluation.prior_fit import MOST_WEIGHT, HeldOut, fit
from towers.evaluation.top_k import top_k
from towers.evaluation.upper_bound import upper_bound
from towers.model.prior import Prior, Shares, assign_prior, deviation, prior_of
from towers.model.two_tower import SHORTEST, Encoded, TwoTower
from towers.ops.replicas import ALONE, Replicas

# For the exponent x of the served item vectors v / |v|^x. Training on the cosine leaves the lengths of the vectors
# free: an item's length grows as it is trained on, so it reflects popularity. The cosine (x = 1) discards that, the dot
# product (x = 0) uses it at full strength. The best ranking lies in between, depends on the data, and is free to serve.
LEAST, MOST = -1.0, 1.0
EXTRA = 44  # candidates beyond k, where exponents or priors are compared: what others may bring among the first k

Settings = tuple[float, Prior | None]  # norm exponent and prior of a ranking


@dataclass(frozen=True)
class Validation:
    """Held-out users.

    Attributes:
        query: their looked-up features, by name.
        candidate: every item's looked-up features, by name.
        seen_offsets, seen_items: [Q + 1] and flat, what each user has seen.
        target_offsets, target_items: [Q + 1] and flat, what each user took next.
        metric: ``recall@k`` or ``ndcg@k``.
        shares: log shares of every item, for the prior and for users of whom nothing is known; None ranks by scores.
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

    @property
    def depth(self) -> int:
        """The k of the metric."""
        return int(self.metric.partition("@")[2])

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
        vector scores 0, which is more than most items get from a loss that pushes scores down.
        """
        ranking = Ranking.of(self, model)
        own, settings = model.candidate_tower.norm_exponent, model.settings
        prior = prior_of(model)
        best = float(own.numpy())
        searched = settings.prior == "validation"
        without = None if searched else prior
        if settings.norm_exponent == "validation":
            best, value = ranking.climb(lambda exponent: (exponent, without), best, LEAST, MOST)
        else:
            value = float(np.nanmean(ranking.values(best, without)))
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
        queries: [Q, D]; zero where training learnt nothing about the known features.
        seen: the held-out users' seen items by their place in `learnt`, -1 for others.
        candidates: [q, C] places in `learnt` of the best items of this worker's users when last ranked.
        known: the metric of each user, by norm exponent and prior.
        bounds: the hits that this worker's users have at most, by the same.
    """

    held: Validation
    learnt: Int32s
    vectors: Floats
    queries: Floats
    seen: Int32s
    candidates: Int32s
    known: dict[Settings, NDArray[np.float64]] = field(default_factory=dict)
    bounds: dict[Settings, metrics.Hits] = field(default_factory=dict)

    @classmethod
    def of(cls, held: Validation, model: TwoTower) -> "Ranking":
        """The vectors of a model, for the held-out users and the items that it learnt something about."""
        learnt = np.flatnonzero(informed(model.candidate_tower, held.candidate)).astype(np.int32)
        vectors = embed_all(
            partial(model.candidate_tower.serve, norm_exponent=0.0),
            {key: rows[learnt] for key, rows in held.candidate.items()},
        )
        queries = embed_all(model.query_tower.serve, held.query)
        queries[~informed(model.query_tower, held.query)] = 0
        part, width = held.replicas.part(len(queries)), held.depth
        if "validation" in (model.settings.norm_exponent, model.settings.prior):
            width += EXTRA
        candidates = np.full((part.stop - part.start, width), -1, np.int32)
        ranking = cls(held, learnt, vectors, queries, held.seen_items, candidates)
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
        least, most = min(0.0, prior.now), max(MOST_WEIGHT, prior.now)
        now, value = self.climb(lambda now: (exponent, replace(prior, now=now)), prior.now, least, most)
        best, before = replace(prior, now=now), self.values(exponent, prior)
        if beyond_chance(self.values(exponent, best) - before):
            return best, value
        return prior, float(np.nanmean(before))

    def climb(
        self, settings: Callable[[float], Settings], start: float, least: float, most: float
    ) -> tuple[float, float]:
        """The place whose settings rank best, and the mean of the metric; see `towers.evaluation.climb`."""
        return climb(
            lambda place: float(np.nanmean(self.values(*settings(place)))),
            lambda place: float(np.nanmean(self.bound(*settings(place)))),
            start,
            least,
            most,
        )

    def values(self, exponent: float, prior: Prior | None) -> NDArray[np.float64]:
        """The metric of each held-out user."""
        settings = exponent, prior
        if settings not in self.known:
            queries, vectors = self._scoring(settings)
            rows = np.arange(len(self.candidates))
            if self.known:  # a user who has no hit at most has none
                rows = np.flatnonzero(self._bound(settings).any(axis=1))
            seen_offsets, seen = select_lists(rows + self._part.start, self.held.seen_offsets, self.seen)
            self.candidates[rows] = top_k(queries[rows], vectors, self.candidates.shape[1], seen_offsets, seen)
            found = np.full((len(self.candidates), self.held.depth), -1, np.int32)
            found[rows] = self.candidates[rows, : self.held.depth]
            targets, offsets = self._targets
            offsets, targets = select_lists(np.arange(len(found)), offsets, targets)  # of those that are ranked
            self.known[settings] = self._judged(metrics.hits(found, offsets, targets))
        return self.known[settings]

    def bound(self, exponent: float, prior: Prior | None) -> NDArray[np.float64]:
        """What the metric of each held-out user is at most."""
        return self._judged(self._bound((exponent, prior)))

    def _bound(self, settings: Settings) -> metrics.Hits:
        if settings not in self.bounds:
            self.bounds[settings] = upper_bound(
                self.candidates, *self._scoring(settings), *self._targets, self.held.depth
            )
        return self.bounds[settings]

    @property
    def _part(self) -> slice:
        """The users of this worker."""
        return self.held.replicas.part(len(self.queries))

    @cached_property
    def _targets(self) -> tuple[Int32s, Int64s]:
        """The places of their targets, and the offsets of each of them."""
        offsets = self.held.target_offsets[self._part.start : self._part.stop + 1]
        return self.places(self.held.target_items[offsets[0] : offsets[-1]]), offsets - offsets[0]

    def _scoring(self, settings: Settings) -> tuple[Floats, Floats]:
        """The vectors of this worker's queries and of the items, whose dot products are the scores."""
        held, (exponent, prior) = self.held, settings
        queries, vectors = self.queries, scaled(self.vectors, exponent)
        unknown = ~queries.any(axis=1)
        if held.shares is not None and (prior is not None or unknown.any()):
            weights = (prior or Prior(0.0, 0.0)).weights(np.diff(held.seen_offsets)) * deviation(queries, vectors)
            # A query about which nothing is known gets what is popular now.
            weights[unknown] = 1, 0
            queries = np.concatenate([queries, weights], axis=1)
            shares = np.stack([held.shares.now[self.learnt], held.shares.past[self.learnt]], axis=1)
            vectors = np.concatenate([vectors, shares], axis=1)
        return queries[self._part], vectors

    def _judged(self, hits: metrics.Hits) -> NDArray[np.float64]:
        """The metric of each user, from the hits of this worker's users."""
        metric, counts = metrics.METRICS[self.held.metric.partition("@")[0]], np.diff(self._targets[1])
        return self.held.replicas.gather_array(metric(hits, counts, self.held.depth))


def scaled(vectors: Floats, exponent: float) -> Floats:
    """``v / |v|^x`` of each row of `vectors` [R, D], as `towers.model.two_tower.Tower.serve`."""
    norm = np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), SHORTEST)
    out: Floats = (vectors * norm**-exponent).astype(np.float32)
    return out
