"""The fit of the prior: its likelihood against slow loops, its gradient against differences, known weights found."""

import dataclasses
import math

import numpy as np
import pytest

from serving.bundle import prior as at_serving
from serving.bundle.manifest import PriorInfo
from towers.evaluation import prior_fit as prior
from towers.evaluation.prior_fit import HeldOut, fit
from towers.model.prior import Prior, Shares, log_share

USERS, ITEMS, WIDTH = 40, 25, 4


def world(seed: int = 0, users: int = USERS, items: int = ITEMS) -> tuple[HeldOut, np.ndarray, Shares]:
    """Held-out users with random vectors, histories and targets; user 0 is unknown, item 3 is never a target."""
    rng = np.random.default_rng(seed)
    queries = rng.normal(size=(users, WIDTH)).astype(np.float32)
    queries[0] = 0
    vectors = (rng.normal(size=(items, WIDTH)) * rng.uniform(0.5, 3, (items, 1))).astype(np.float32)
    seen = [rng.choice(items, rng.integers(0, 4), replace=False) for _ in range(users)]
    allowed = [np.setdiff1d(np.arange(items), [*mine, 3]) for mine in seen]
    targets = [rng.choice(there, rng.integers(1, 4), replace=False) for there in allowed]
    held = HeldOut(
        queries,
        np.cumsum([0, *map(len, seen)]),
        np.concatenate(seen).astype(np.int32),
        np.cumsum([0, *map(len, targets)]),
        np.concatenate(targets).astype(np.int32),
        rng.integers(0, 50, users),
    )
    shares = Shares(log_share(rng.poisson(4, items)), log_share(rng.poisson(9, items)))
    return held, vectors, shares


def likelihood(
    held: HeldOut, vectors: np.ndarray, shares: Shares, scale: float, exponent: float, weights: Prior
) -> float:
    """The mean over known users of the mean log-likelihood of a target, in slow loops from the formula."""
    values = []
    for user in range(len(held.queries)):
        query = held.queries[user].astype(float)
        if not query.any():
            continue
        seen = held.seen_items[held.seen_offsets[user] : held.seen_offsets[user + 1]].tolist()
        targets = held.target_items[held.target_offsets[user] : held.target_offsets[user + 1]].tolist()
        now = weights.now + weights.length * math.log(1 + int(held.histories[user]))
        scores = {}
        for item in range(len(vectors)):
            if item not in seen:
                vector = vectors[item].astype(float)
                own = scale * float(query @ vector) / math.sqrt(float(vector @ vector)) ** exponent
                scores[item] = own + now * float(shares.now[item]) - weights.past * float(shares.past[item])
        total = math.log(sum(math.exp(score) for score in scores.values()))
        values.append(sum(scores[item] - total for item in targets) / len(targets))
    return sum(values) / len(values)


def at(problem: "prior._Problem", scale: float, exponent: float, weights: Prior) -> np.ndarray:
    """The problem's own parameters of those weights."""
    now = weights.now + weights.length * problem.middle
    log_scale = math.log(scale * problem.deviation)
    return np.array([log_scale, exponent, weights.past, now, weights.length])


@pytest.mark.parametrize("weights", [Prior(0.7, 0.3, 0.2), Prior(0.0, 0.0), Prior(1.5, 0.0, -0.1)])
def test_the_likelihood_is_that_of_the_formula(weights: Prior) -> None:
    held, vectors, shares = world()
    problem = prior._Problem.of(held, vectors, shares)
    assert problem is not None
    value, _ = problem.loss(at(problem, 0.4, 0.6, weights))
    ridge = prior.RIDGE * float(np.square(at(problem, 0.4, 0.6, weights)[2:]).sum())
    assert value - ridge == pytest.approx(-likelihood(held, vectors, shares, 0.4, 0.6, weights), rel=1e-5)


def test_the_gradient_is_that_of_differences() -> None:
    held, vectors, shares = world()
    problem = prior._Problem.of(held, vectors, shares)
    assert problem is not None
    # float32 inside: differences need double precision.
    wide = dataclasses.replace(
        problem, **{name: getattr(problem, name).astype(np.float64) for name in ("base", "past", "now", "log_norm")}
    )
    point = np.array([0.3, 0.5, 0.4, 0.8, 0.1])
    _, gradient = problem.loss(point)
    for place in range(5):
        step = np.zeros(5)
        step[place] = 1e-3
        slope = (wide.loss(point + step)[0] - wide.loss(point - step)[0]) / 2e-3
        assert gradient[place] == pytest.approx(slope, abs=2e-4)


def drawn(users: int, items: int, truth: Prior, exponent: float, scale: float) -> tuple[HeldOut, np.ndarray, Shares]:
    """A world whose targets are drawn from the softmax of known weights."""
    rng = np.random.default_rng(5)
    held, vectors, shares = world(5, users, items)
    vectors *= 1 + np.abs(shares.past)[:, np.newaxis]
    norms = np.linalg.norm(vectors, axis=1)
    logits = scale * held.queries @ (vectors / norms[:, np.newaxis] ** exponent).T
    logits += truth.weights(held.histories) @ np.stack([shares.now, shares.past])
    chance = np.exp(logits - logits.max(axis=1, keepdims=True))
    chance /= chance.sum(axis=1, keepdims=True)
    targets = np.array([rng.choice(items, p=row) for row in chance], np.int32)
    nothing = np.zeros(users + 1, np.int64)
    world_of = dataclasses.replace(
        held,
        seen_offsets=nothing,
        seen_items=np.empty(0, np.int32),
        target_offsets=np.arange(users + 1),
        target_items=targets,
    )
    return world_of, vectors, shares


@pytest.mark.parametrize("truth", [Prior(0.9, 0.5, 0.0), Prior(0.4, 0.2, 0.25)])
def test_known_weights_are_found_again(truth: Prior) -> None:
    held, vectors, shares = drawn(6_000, 60, truth, exponent=0.5, scale=1.2)
    found, exponent = fit(held, vectors, shares, (-1.0, 1.0))
    # Served scores have no scale of their own, and the weights come in units of their deviation.
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    unit = float((held.queries[1:] @ (vectors / norms**exponent).T).std())
    found = Prior(found.now * unit, found.past * unit, found.length * unit)
    middle = np.log1p(held.histories).mean()
    assert found.now + found.length * middle == pytest.approx((truth.now + truth.length * middle) / 1.2, abs=0.06)
    assert found.past == pytest.approx(truth.past / 1.2, abs=0.06)
    assert exponent == pytest.approx(0.5, abs=0.1)
    if truth.length:
        assert found.length == pytest.approx(truth.length / 1.2, abs=0.06)
    else:
        assert abs(found.length) < 0.03


def test_a_fixed_exponent_stays() -> None:
    held, vectors, shares = world()
    assert fit(held, vectors, shares, (0.25, 0.25))[1] == 0.25


def test_nobody_to_learn_from_leaves_the_scores_as_they_are() -> None:
    held, vectors, shares = world()
    unknown = dataclasses.replace(held, queries=np.zeros_like(held.queries))
    assert fit(unknown, vectors, shares, (-1.0, 0.5)) == (Prior(0.0, 0.0), 0.5)
    untaken = dataclasses.replace(held, target_items=np.full_like(held.target_items, -1))
    assert fit(untaken, vectors, shares, (-1.0, 1.0))[0] == Prior(0.0, 0.0)


def test_a_user_who_has_seen_everything_breaks_nothing() -> None:
    held, vectors, shares = world()
    everything = np.arange(ITEMS, dtype=np.int32)
    offsets = held.seen_offsets.copy()
    offsets[2:] += ITEMS
    first = held.seen_offsets[1]
    seen = np.concatenate([held.seen_items[:first], everything, held.seen_items[first:]])
    changed = dataclasses.replace(held, seen_offsets=offsets, seen_items=seen)
    found, exponent = fit(changed, vectors, shares, (-1.0, 1.0))
    assert all(map(math.isfinite, (found.now, found.past, found.length, exponent)))


@pytest.mark.long
def test_a_sample_of_the_items_stands_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    held, vectors, shares = drawn(3_000, 600, Prior(0.9, 0.5), exponent=0.5, scale=1.2)
    whole, _ = fit(held, vectors, shares, (0.5, 0.5))
    monkeypatch.setattr(prior, "HEAD", 300)
    monkeypatch.setattr(prior, "SAMPLE", 200)
    columns, offset = prior._columns(shares.now)
    assert np.exp(offset).sum() == pytest.approx(600, rel=1e-4)
    assert set(np.argsort(-shares.now, kind="stable")[:300]) <= set(columns.tolist())
    sampled, _ = fit(held, vectors, shares, (0.5, 0.5))
    assert sampled.now == pytest.approx(whole.now, abs=0.1)
    assert sampled.past == pytest.approx(whole.past, abs=0.1)


def test_of_many_users_those_of_every_activity_are_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Users are numbered by falling activity: the first alone would say nothing of short histories."""
    held, vectors, shares = world()
    monkeypatch.setattr(prior, "PAIRS", 5 * ITEMS)
    problem = prior._Problem.of(held, vectors, shares)
    assert problem is not None
    assert problem.users.tolist() == [1, 10, 20, 29, 39]


@pytest.mark.parametrize("weights", [Prior(0.3, 0.1, 0.05), Prior(0.2, 0.0, -0.4)])
def test_serving_weighs_as_training_does(weights: Prior) -> None:
    histories = np.array([0, 1, 7, 1_000])
    info = PriorInfo(now=weights.now, past=weights.past, length=weights.length, mean_count=2.5, new_item=(0.0, 0.0))
    shares = np.array([[0.5, -1.0], [2.0, 0.25]], np.float32)
    served = at_serving.query_columns(info, histories) @ at_serving.item_columns(info, shares).T
    by_hand = [
        [max(0.0, weights.now + weights.length * math.log(1 + h)) * now - weights.past * past for now, past in shares]
        for h in histories.tolist()
    ]
    np.testing.assert_allclose(served, by_hand, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(weights.weights(histories) @ shares.T, by_hand, rtol=1e-5, atol=1e-6)
    assert not at_serving.query_columns(info, np.array([at_serving.NO_PRIOR])).any()
    assert at_serving.log_share(3.0, 2.5) == pytest.approx(float(log_share(np.array([3.0]), 2.5)[0]), rel=1e-6)
    assert math.exp(at_serving.log_share(3.0, 2.5)) == pytest.approx(3.0 / 2.5 + 0.1)
