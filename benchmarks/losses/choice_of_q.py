"""What the choice of the noise distribution q matters, and how that falls as k grows: four samplers, one known world.

Every sampler knows its q exactly, so each of them aims at the same optimum; they differ in the noise of the way there.
Fresh examples at every step; for each loss, k and sampler the learning rate is the best of one grid by the likelihood
of held-out examples on the first seed.

In: a `Store`. Out: KL to the truth in nats by loss, k and sampler, and its spread between samplers.
"""

import functools
import itertools
from typing import Any

import numpy as np

from benchmarks.harness.array_task import ArrayTask
from benchmarks.harness.resumable import Store
from benchmarks.losses.worlds import World, divergence, log_likelihood, low_rank_world

USERS, ITEMS, RANK, DEVIATION = 100, 1_000, 4, 1.5
BATCH, DIMENSION, STEPS = 256, 16, 800
KS = (5, 25, 100, 1_000)
RATES = (0.003, 0.01, 0.03)
SEEDS = (1, 2, 3)
HELD_OUT = 20_000
# The worlds' popularity is Zipf's, so log_uniform is near to unigram^1 but for the first items.
SAMPLERS: dict[str, dict[str, Any]] = {
    "uniform": {"name": "uniform"},
    "unigram^0.75": {"name": "unigram", "power": 0.75},
    "log_uniform": {"name": "log_uniform"},
    "unigram^1": {"name": "unigram", "power": 1.0},
}
LOSSES: dict[str, dict[str, Any]] = {
    "sampled_softmax": {"name": "sampled_softmax"},
    "nce": {"name": "nce", "log_z": float(np.log(ITEMS))},
}


def run(
    store: Store,
    *,
    ks: tuple[int, ...] = KS,
    rates: tuple[float, ...] = RATES,
    steps: int = STEPS,
) -> dict[str, Any]:
    """All runs of the part."""
    world = low_rank_world(USERS, ITEMS, rank=RANK, deviation=DEVIATION, seed=1)
    found: dict[str, dict[str, dict[str, Any]]] = {loss: {str(k): {} for k in ks} for loss in LOSSES}
    for loss, k, sampler in itertools.product(LOSSES, ks, SAMPLERS):
        settings = {
            "part": "q", "loss": LOSSES[loss], "k": k, "sampler": SAMPLERS[sampler], "rates": rates, "steps": steps,
            "seeds": SEEDS,
        }  # fmt: skip
        cell = functools.partial(_cell, world, loss, sampler, k, rates, steps)
        found[loss][str(k)][sampler] = store.run(settings, cell)
    spread = {loss: {k: round(_spread(cells), 4) for k, cells in by_k.items()} for loss, by_k in found.items()}
    falls = {loss: _falls(list(by_k.values())) for loss, by_k in spread.items()}
    claims = {
        f"{loss}: KL differs less between samplers at each larger k, from k = {ks[1]} on": _falls(
            list(by_k.values())[1:]
        )
        for loss, by_k in spread.items()
    }
    settings = {
        "users": USERS, "items": ITEMS, "batch": BATCH, "dimension": DIMENSION, "steps": steps, "rates": rates,
        "seeds": SEEDS,
    }  # fmt: skip
    # At the smallest k a loss can be so far from its optimum that the samplers do not differ yet.
    return {
        "claims": claims,
        "falls from the smallest k on": falls,
        "kl": found,
        "spread": spread,
        "settings": settings,
    }


def _cell(world: World, loss: str, sampler: str, k: int, rates: tuple[float, ...], steps: int) -> dict[str, Any]:
    """KL at the end for each seed, at the learning rate that was best for the first one."""
    section = SAMPLERS[sampler] | {"negatives": k}
    task = ArrayTask(USERS, world.counts, DIMENSION, BATCH, LOSSES[loss], section)
    held_out = world.draw(HELD_OUT, 0)

    def trained(seed: int, rate: float) -> tuple[float, float]:
        task.reset(seed, rate)
        users, items = world.draw(steps * BATCH, seed)
        for step in range(steps):
            own = slice(step * BATCH, (step + 1) * BATCH)
            task.step(task.batch(users[own], items[own], (seed, step)))
        scores = task.scores()
        return round(divergence(world, scores), 4), log_likelihood(scores, *held_out)

    tried = {rate: trained(SEEDS[0], rate) for rate in rates}
    best = max(rates, key=lambda rate: tried[rate][1])
    return {"rate": best, "kl": [tried[best][0], *(trained(seed, best)[0] for seed in SEEDS[1:])]}


def _falls(values: list[float]) -> bool:
    return all(later < earlier for earlier, later in itertools.pairwise(values))


def _spread(cells: dict[str, Any]) -> float:
    """Largest less smallest mean KL of the samplers."""
    means = [np.mean(cell["kl"]) for cell in cells.values()]
    return float(max(means) - min(means))
