"""The weight of the prior climbs from the most likely one to the one that ranks best, if that is more than chance."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from towers.evaluation import metrics, validation
from towers.evaluation.climb import beyond_chance, climb
from towers.evaluation.validation import EXTRA, Ranking, Validation
from towers.model.prior import Prior, Shares, deviation
from towers.ops.replicas import ALONE, Replicas

USERS, K = 300, 10


def alone(metric: Callable[[float], float], start: float, least: float = -1.0) -> tuple[float, float]:
    """A climb up to 1 without a bound."""
    return climb(metric, lambda _: np.inf, start, least, 1.0)


@pytest.mark.parametrize("start", [-0.35, 0.0, 0.4, 0.9])
def test_it_finds_the_top_of_a_hill_within_a_step(start: float) -> None:
    best, value = alone(lambda x: -((x - 0.42) ** 2), start)
    assert abs(best - 0.42) <= 0.05 + 1e-9
    assert value == pytest.approx(-((best - 0.42) ** 2))


@pytest.mark.parametrize(("slope", "end"), [(1.0, 1.0), (-1.0, -0.3)])
def test_it_stays_within_its_bounds(slope: float, end: float) -> None:
    assert alone(lambda x: slope * x, 0.2, -0.3)[0] == pytest.approx(end)


def test_a_flat_metric_moves_nothing() -> None:
    assert alone(lambda _: 0.5, 0.37) == (0.37, 0.5)


@pytest.mark.parametrize(
    ("gains", "beyond"),
    [
        # The mean over its standard error, with n - 1 in it: 4.1, 2.9, 1.9 (with n 2.1), 1.8.
        ([0.1, 0.2, 0.05, 0.15, np.nan, 0.1, 0.3], True),
        ([0.1, 0.2, 0.05, 0.1, 0.0, np.nan], True),
        ([0.0, 0.2, 0.05, 0.1, 0.0, np.nan], False),
        ([-0.01, 0.2, 0.05, 0.1, 0.0], False),
        ([-0.1, -0.2], False),
        ([0.1], False),
        ([0.1, np.nan], False),
        ([np.nan], False),
    ],
)
def test_a_gain_is_beyond_chance_from_two_standard_errors(gains: list[float], beyond: bool) -> None:
    assert beyond_chance(np.array(gains)) is beyond


def test_the_metric_is_asked_for_only_where_it_may_be_better() -> None:
    asked = list[float]()

    def metric(place: float) -> float:
        asked.append(place)
        return -((place - 0.42) ** 2)

    # No place below the last one may be better, and any above it.
    best = climb(metric, lambda place: np.inf if place > asked[-1] else -1.0, 0.2, -1.0, 1.0)
    assert best == (0.4, -((0.4 - 0.42) ** 2))
    assert asked == [0.2, 0.3, 0.4, 0.5]


@dataclass(frozen=True)
class Hill(Ranking):
    """A ranking whose users each get `height - (now - 0.7)^2`, and noise that depends on the weight."""

    noise: float = 0.0
    users: int = 400

    def values(self, exponent: float, prior: Prior | None) -> NDArray[np.float64]:
        assert exponent == 1.0 and prior is not None and (prior.past, prior.length) == (0.2, 0.1)
        rng = np.random.default_rng(round(1e6 * prior.now) % 2**32)
        values = 1 - (prior.now - 0.7) ** 2 + self.noise * rng.normal(size=self.users)
        values[:3] = np.nan  # users without a target
        return values

    def bound(self, exponent: float, prior: Prior | None) -> NDArray[np.float64]:
        return np.full(self.users, np.inf)


def hill(noise: float) -> Hill:
    return Hill(None, None, None, None, None, None, noise=noise)  # type: ignore[arg-type]


def test_the_weight_that_ranks_best_is_kept() -> None:
    prior, value = hill(0.01).climbed(1.0, Prior(0.3, 0.2, 0.1))
    assert (prior.now, prior.past, prior.length) == (pytest.approx(0.7), 0.2, 0.1)
    assert value == pytest.approx(1.0, abs=0.01)


@pytest.mark.parametrize("now", [-0.32, 10.48])
def test_it_climbs_also_from_a_weight_outside_the_range_of_the_fit(now: float) -> None:
    """The bounds of the fit are those of the weight at the mean length of a history, this is that without one."""
    assert abs(hill(0.001).climbed(1.0, Prior(now, 0.2, 0.1))[0].now - 0.7) <= 0.05 + 1e-9


def test_what_chance_alone_may_gain_is_not() -> None:
    start = Prior(0.65, 0.2, 0.1)
    moved = [hill(noise).climbed(1.0, start)[0] != start for noise in np.linspace(2.0, 3.0, 40)]
    assert np.mean(moved) < 0.25  # at two standard errors, of the best of a few


class Half(Replicas):
    """One of two workers; its own part of what both measure."""

    def __init__(self, number: int) -> None:
        self.number = number

    def part(self, size: int) -> slice:
        return (slice(0, size // 3), slice(size // 3, size))[self.number]


def ranking(items: int, replicas: Replicas = ALONE) -> Ranking:
    """Of items whose lengths differ, for users with ten seen items and up to three targets that their scores favour.

    Every fifth item was not learnt; of every seventh user nothing is known.
    """
    rng = np.random.default_rng(0)
    every = (rng.normal(size=(items, 8)) * rng.uniform(0.5, 2.0, (items, 1))).astype(np.float32)
    queries = rng.normal(size=(USERS, 8)).astype(np.float32)
    taken = np.argsort(-(queries @ every.T + 3 * rng.gumbel(size=(USERS, items))), axis=1)[:, :13].astype(np.int32)
    queries[::7] = 0
    counts = rng.integers(0, 4, USERS)
    targets = np.concatenate([row[10 : 10 + count] for row, count in zip(taken, counts, strict=True)])
    now, past = (rng.normal(size=items).astype(np.float32) for _ in range(2))
    offsets, ends = 10 * np.arange(USERS + 1), np.concatenate([[0], np.cumsum(counts)])
    rows = {"item_id": np.arange(items, dtype=np.int32)}
    held = Validation({}, rows, offsets, taken[:, :10].ravel(), ends, targets, f"ndcg@{K}", Shares(now, past), replicas)
    learnt = np.delete(rows["item_id"], np.s_[::5])
    candidates = np.full((len(range(USERS)[replicas.part(USERS)]), K + EXTRA), -1, np.int32)
    found = Ranking(held, learnt, every[learnt], queries, held.seen_items, candidates)
    return replace(found, seen=found.places(held.seen_items))


def by_formula(asked: Ranking, exponent: float, prior: Prior) -> NDArray[np.float64]:
    """The metric of each user, NaN without a target, from the formula of the score."""
    held = asked.held
    assert held.shares is not None
    vectors = asked.vectors / np.linalg.norm(asked.vectors, axis=1, keepdims=True) ** exponent
    now = prior.now + prior.length * np.log1p(np.diff(held.seen_offsets))[:, np.newaxis]
    shares_now, shares_past = held.shares.now[asked.learnt], held.shares.past[asked.learnt]
    known = asked.queries @ vectors.T
    known += deviation(asked.queries, vectors) * (now * shares_now - prior.past * shares_past)
    scores = np.full((USERS, len(held.shares.now)), -np.inf)
    scores[:, asked.learnt] = np.where(asked.queries.any(axis=1, keepdims=True), known, shares_now)
    scores[np.repeat(np.arange(USERS), 10), held.seen_items] = -np.inf
    lists = np.argsort(-scores, axis=1, kind="stable")[:, :K]
    lists[np.take_along_axis(scores, lists, axis=1) == -np.inf] = -1
    hits = metrics.hits(lists, held.target_offsets, held.target_items)
    return metrics.ndcg(hits, np.diff(held.target_offsets), K)


SETTINGS = [(1.0, Prior(0.0, 0.0)), (0.9, Prior(0.4, 0.1)), (-1.0, Prior(1.0, 1.0, 0.2)), (0.0, Prior(0.7, 0.2, 0.1))]


@pytest.mark.parametrize("items", [40, 3_000])
def test_every_ranking_is_exact_whatever_was_ranked_before(items: int) -> None:
    asked = ranking(items)
    assert np.isin(asked.held.target_items, asked.learnt).mean() < 0.9
    for exponent, prior in SETTINGS:
        exact = by_formula(asked, exponent, prior)
        assert np.isnan(exact).any()
        assert not (asked.bound(exponent, prior) < exact - 1e-9).any()
        np.testing.assert_allclose(asked.values(exponent, prior), exact, atol=1e-9)


def test_without_a_prior_too_users_of_whom_nothing_is_known_get_what_is_popular() -> None:
    asked = ranking(40)
    exact = by_formula(asked, 0.9, Prior(0.0, 0.0))
    assert np.nanmean(exact[::7]) > 0
    np.testing.assert_allclose(asked.values(0.9, None), exact, atol=1e-9)


def test_each_worker_ranks_its_users() -> None:
    halves = [ranking(3_000, Half(number)) for number in range(2)]
    for exponent, prior in SETTINGS:
        both = np.concatenate([half.values(exponent, prior) for half in halves])
        np.testing.assert_allclose(both, by_formula(halves[0], exponent, prior), atol=1e-9)


def test_who_can_have_no_hit_is_not_ranked_again() -> None:
    asked, prior = ranking(3_000), Prior(0.3, 0.1)
    asked.values(1.0, prior)
    before = asked.candidates.copy()
    exact = by_formula(asked, 0.9, prior)
    assert np.nanmean(asked.bound(0.9, prior)) == pytest.approx(np.nanmean(exact), rel=0.02)
    asked.values(0.9, prior)
    again = (asked.candidates != before).any(axis=1)
    assert again[exact > 0].any() and again.mean() < 0.2


def test_it_ends_where_it_would_if_every_place_were_ranked() -> None:
    asked, prior = ranking(3_000), Prior(0.3, 0.1)
    best, value = asked.climb(lambda exponent: (exponent, prior), 1.0, -1.0, 1.0)
    every = alone(lambda exponent: float(np.nanmean(by_formula(asked, exponent, prior))), 1.0)
    assert best == every[0] < 1.0
    assert value == pytest.approx(every[1])


@pytest.mark.parametrize(("with_prior", "kept", "norm"), [(2.0, Prior(1.0, 0.2), 0.5), (-2.0, Prior(0.0, 0.0), 1.0)])
def test_a_prior_that_ranks_worse_than_none_is_not_served(
    with_prior: float, kept: Prior, norm: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, assigned = ranking(40), list[object]()
    monkeypatch.setattr(Ranking, "of", lambda *_: asked)
    monkeypatch.setattr(Ranking, "fit", lambda *_: (Prior(1.0, 0.2), 0.5))
    monkeypatch.setattr(Ranking, "climbed", lambda *_: (Prior(1.0, 0.2), with_prior))
    monkeypatch.setattr(validation, "prior_of", lambda _: None)
    monkeypatch.setattr(validation, "assign_prior", lambda _, prior: assigned.append(prior))
    exponent = SimpleNamespace(numpy=lambda: 1.0, assign=assigned.append)
    settings = SimpleNamespace(prior="validation", norm_exponent=1.0)
    towers: Any = SimpleNamespace(candidate_tower=SimpleNamespace(norm_exponent=exponent), settings=settings)
    asked.held.measure(towers)
    assert assigned == [kept, norm]
