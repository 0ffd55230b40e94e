"""How many noise samples NCE needs: against full softmax and sampled softmax, on a world whose P(item | user) is known.

"25 noise samples are enough" was measured with samples of their own for each example (Mnih & Teh 2012); here, as in
training with this library, the k samples are shared by the batch. Fresh examples at every step, so nothing overfits.
Each loss is tuned over one grid of learning rates by the log-likelihood of held-out examples. Time is steps times the
step's time in `benchmarks.losses.nce_speed`, so that what else the machine does here does not matter.

In: a `Store`. Out: KL to the truth in nats and share of the attainable recall@20, over steps.
"""

import functools
import itertools
from typing import Any

import numpy as np

from benchmarks.harness.array_task import ArrayTask
from benchmarks.harness.resumable import Store
from benchmarks.losses.worlds import World, attained, divergence, log_likelihood, low_rank_world

USERS, RANK, DEVIATION = 100, 4, 1.5
SIZES = (10_000, 100_000)
BATCH, DIMENSION = 256, 16
KS = (5, 25, 100, 1_000)
RATES = (0.003, 0.01, 0.03)
RECALL = 20
# Steps at which every model is looked at; full softmax goes as far as its cost allows, the others twice as far.
LOOKS = (25, 50, 100, 200, 400, 800, 1_600, 3_200)
FULL_STEPS = {10_000: 1_600, 100_000: 400}
STEPS = {10_000: 3_200, 100_000: 1_600}
HELD_OUT = 20_000
SEED = 1
CLOSE = 0.01  # share of the attainable recall


def losses(size: int) -> dict[str, tuple[dict[str, Any], int | None]]:
    """Name to section and k of everything that is compared at N = `size`."""
    sampled: dict[str, tuple[dict[str, Any], int | None]] = {"full_softmax": ({"name": "full_softmax"}, None)}
    for k in KS:
        sampled[f"nce k={k}"] = ({"name": "nce", "log_z": float(np.log(size))}, k)
    sampled["nce k=25, log_z = 0"] = ({"name": "nce", "log_z": 0.0}, 25)
    sampled["nce k=25, log_z learned"] = ({"name": "nce", "log_z": "learned"}, 25)
    for k in (25, 1_000):
        sampled[f"sampled_softmax k={k}"] = ({"name": "sampled_softmax"}, k)
    return sampled


def run(
    store: Store,
    *,
    sizes: tuple[int, ...] = SIZES,
    rates: tuple[float, ...] = RATES,
    steps: dict[int, int] = STEPS,
    full_steps: dict[int, int] = FULL_STEPS,
) -> dict[str, Any]:
    """All runs of the part: for each N and loss the path of the best learning rate."""
    found: dict[str, Any] = {}
    for size in sizes:
        own = _Bench(size)
        found[str(size)] = {}
        for name, (loss, k) in losses(size).items():
            last = full_steps[size] if k is None else steps[size]
            tried = {}
            for rate in rates:
                settings = {"part": "nce", "items": size, "loss": loss, "k": k, "rate": rate, "steps": last}
                tried[rate] = store.run(settings, functools.partial(own.train, loss, k, rate, last))
            best = max(rates, key=lambda rate: tried[rate]["valid"])
            found[str(size)][name] = {"rate": best, "k": k, "path": tried[best]["path"]}
    gaps = {size: gaps_at_equal_steps(by_name) for size, by_name in found.items()}
    return {
        "claims": _claims(gaps),
        "gaps at equal steps": gaps,
        "quality": found,
        "settings": {
            "users": USERS, "batch": BATCH, "dimension": DIMENSION, "rates": rates, "sampler": "unigram^1",
            "noise": "shared by the batch",
        },
    }  # fmt: skip


def gaps_at_equal_steps(found: dict[str, Any]) -> dict[str, dict[str, float]]:
    """KL above, and share of the attainable recall below full softmax's, after as many steps as that was given."""
    full = found["full_softmax"]["path"][-1]
    gaps = {}
    for name, one in found.items():
        own = next(look for look in one["path"] if look["step"] == full["step"])
        gaps[name] = {"kl": round(own["kl"] - full["kl"], 4), "recall": round(full["recall"] - own["recall"], 4)}
    return gaps


def _claims(gaps: dict[str, dict[str, dict[str, float]]]) -> dict[str, bool]:
    claims = {}
    for size, by_name in gaps.items():
        by_k = [by_name[f"nce k={k}"]["kl"] for k in KS]
        claims[f"N = {int(size):,}: NCE's KL is smaller at each larger k"] = all(
            later < earlier for earlier, later in itertools.pairwise(by_k)
        )
        claims[f"N = {int(size):,}: NCE with k = {KS[-1]:,} is within {CLOSE} of full softmax's recall@{RECALL}"] = (
            by_name[f"nce k={KS[-1]}"]["recall"] <= CLOSE
        )
    return claims


class _Bench:
    """One world, its examples, and the task of the last loss, so that a learning rate more is not traced again."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._task: tuple[str, ArrayTask] | None = None

    @functools.cached_property
    def world(self) -> World:
        return low_rank_world(USERS, self.size, rank=RANK, deviation=DEVIATION, seed=SEED)

    @functools.cached_property
    def examples(self) -> tuple[Any, Any]:
        return self.world.draw(max(LOOKS) * BATCH, SEED + 1)

    @functools.cached_property
    def held_out(self) -> tuple[Any, Any]:
        return self.world.draw(HELD_OUT, SEED + 2)

    def train(self, loss: dict[str, Any], k: int | None, rate: float, steps: int) -> dict[str, Any]:
        """Steps, KL and share of the attainable recall at each look; the held-out log-likelihood at the end."""
        task = self._of(loss, k)
        task.reset(SEED, rate)
        users, items = self.examples
        path = []
        for step in range(steps):
            own = slice(step * BATCH, (step + 1) * BATCH)
            task.step(task.batch(users[own], items[own], (SEED, step)))
            if step + 1 in LOOKS:
                scores = task.scores()
                kl, recall = divergence(self.world, scores), attained(self.world, scores, RECALL)
                path.append({"step": step + 1, "kl": round(kl, 4), "recall": round(recall, 4)})
        return {"path": path, "valid": log_likelihood(task.scores(), *self.held_out)}

    def _of(self, loss: dict[str, Any], k: int | None) -> ArrayTask:
        key = f"{loss} {k}"
        if self._task is None or self._task[0] != key:
            sampler = None if k is None else {"name": "unigram", "power": 1.0, "negatives": k}
            self._task = (key, ArrayTask(USERS, self.world.counts, DIMENSION, BATCH, loss, sampler))
        return self._task[1]
