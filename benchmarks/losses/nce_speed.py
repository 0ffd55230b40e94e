"""What one train step costs: NCE and sampled softmax with k noise samples against softmax over the whole catalogue.

Forward, backward and row-sparse Adam, steps of all losses taken in turn, medians. Two sizes of step: that of a user's
training, and that of `benchmarks.losses.nce_samples`, whose quality over time it gives. Full softmax is the library's
own, in blocks; beside it, where its memory allows, the plain one: one matrix of all scores, one dense Adam step.

In: a `Store`, a quiet machine. Out: seconds per step and their ratios.
"""

import itertools
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from benchmarks.harness.array_task import ArrayTask
from benchmarks.harness.resumable import Store
from benchmarks.losses.nce_samples import BATCH, DIMENSION, KS, SIZES, USERS
from benchmarks.losses.worlds import OFFSET
from towers.data.batch import Batch

Step = Callable[[Batch], tf.Tensor]


@dataclass(frozen=True)
class Setting:
    """One size of step.

    Attributes:
        items, users, batch, dimension: N, U, B, D.
        rounds: how often each loss has its turn; full softmax takes one step in a turn, the others `STEPS_A_TURN`.
        plain: time the plain full softmax, too.
    """

    items: int
    users: int
    batch: int
    dimension: int
    rounds: int
    plain: bool


STEPS_A_TURN = 5
LARGE = tuple(
    Setting(n, 10_000, 1_024, 64, r, p) for n, r, p in ((10_000, 9, True), (100_000, 5, True), (1_000_000, 3, False))
)
SMALL = tuple(Setting(n, USERS, BATCH, DIMENSION, 7, False) for n in SIZES)
RATE = 1e-3
QUOTED = 45


def run(store: Store, settings: tuple[Setting, ...] = LARGE + SMALL) -> dict[str, Any]:
    """All timings of the part."""
    found = []
    for each in settings:
        named = {"part": "nce-speed", **vars(each), "ks": KS}
        timed = store.run(named, lambda each=each: _timed(each))  # type: ignore[misc]
        seconds = timed["seconds"]
        medians = {name: float(np.median(times)) for name, times in seconds.items()}
        full = medians["full_softmax"]
        found.append(
            {
                **vars(each),
                "milliseconds": {name: round(1e3 * median, 3) for name, median in medians.items()},
                "times_as_fast_as_full": {name: round(full / median, 1) for name, median in medians.items()},
                "fastest_milliseconds": {name: round(1e3 * min(times), 3) for name, times in seconds.items()},
                "load_average": timed["load_average"],
                "raw_seconds": seconds,
            }
        )
    return {"claims": _claims(found), "speed": found, "noise": "k samples shared by the batch, unigram^1"}


def _claims(found: list[dict[str, Any]]) -> dict[str, bool]:
    """About the steps of a user's training, by N."""
    times = {row["items"]: row["times_as_fast_as_full"]["nce k=25"] for row in found if row["dimension"] != DIMENSION}
    in_order = [times[size] for size in sorted(times)]
    quoted = f"NCE with k = 25 is more than {QUOTED} times as fast as full softmax at N = {max(times):,}"
    return {
        "NCE with k = 25 gains the more over full softmax, the larger N": all(
            earlier < later for earlier, later in itertools.pairwise(in_order)
        ),
        quoted: in_order[-1] > QUOTED,
    }


def _timed(setting: Setting) -> dict[str, Any]:
    """Seconds of each step of each loss; and how busy the machine was before."""
    load = os.getloadavg()[0]
    weight = 1.0 / (np.arange(setting.items) + OFFSET)
    counts = np.maximum(1, np.round(1e7 * weight / weight.sum())).astype(np.int64)
    rng = np.random.default_rng(1)
    users = rng.integers(0, setting.users, setting.batch)
    items = rng.choice(setting.items, setting.batch, p=weight / weight.sum())
    steps = dict(_steps(setting, counts))
    task = next(iter(steps.values()))[0]
    batches = [task.batch(users, items, (1, number)) for number in range(STEPS_A_TURN)]
    for _, step in steps.values():
        for batch in batches[:2]:
            step(batch).numpy()
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(setting.rounds):
        for name, (_, step) in steps.items():
            for batch in batches[: 1 if "full" in name else STEPS_A_TURN]:
                begin = time.perf_counter()
                step(batch).numpy()
                seconds[name].append(round(time.perf_counter() - begin, 6))
    return {"seconds": seconds, "load_average": round(load, 2)}


def _steps(setting: Setting, counts: Any) -> list[tuple[str, tuple[ArrayTask, Step]]]:
    def task(loss: dict[str, Any], k: int | None) -> ArrayTask:
        sampler = None if k is None else {"name": "unigram", "power": 1.0, "negatives": k}
        new = ArrayTask(setting.users, counts, setting.dimension, setting.batch, loss, sampler)
        new.reset(1, RATE)
        return new

    nce = {"name": "nce", "log_z": float(np.log(setting.items))}
    tasks = {"full_softmax": task({"name": "full_softmax"}, None)}
    tasks |= {f"nce k={k}": task(nce, k) for k in KS}
    tasks |= {f"sampled_softmax k={k}": task({"name": "sampled_softmax"}, k) for k in (25, 1_000)}
    steps: list[tuple[str, tuple[ArrayTask, Step]]] = [(name, (each, each.step)) for name, each in tasks.items()]
    if setting.plain:
        plain = task({"name": "full_softmax"}, None)
        steps.append(("plain full softmax", (plain, plain_step(plain))))
    return steps


def plain_step(task: ArrayTask) -> Step:
    """Softmax cross-entropy over one matrix of all scores [B, N + 1], row 0 of the table included."""

    @tf.function(autograph=False)
    def step(batch: Batch) -> tf.Tensor:
        user, item = task.tables
        with tf.GradientTape() as tape:
            query = tf.gather(user, batch.query["user_id"])
            logits = tf.matmul(query, item, transpose_b=True)
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(batch.item[:, 0] + 1, logits)
            loss = tf.reduce_mean(losses)
        task.optimizer.apply(tape.gradient(loss, task.optimizer.variables_in_order))
        return loss

    return step  # type: ignore[no-any-return]
