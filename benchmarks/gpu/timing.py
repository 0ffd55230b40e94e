"""Times an exported step beside the matrix products that no softmax over the same candidates can do without.

The products are the scores [B, M] and the two of their gradients, by JAX, in the precision of the step. No TensorFlow.
"""

import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.gpu.jax_step import Step

ROUNDS, WARM_UP, STEPS = 7, 1, 10  # a round queues that many steps and waits for the last


def times(entry: dict[str, Any]) -> dict[str, Any]:
    """Milliseconds of one step and of its bare products, and their ratio; medians of rounds that take turns."""
    runs = {"step": _steps(entry), "products": _products(entry)}
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for number in range(WARM_UP + ROUNDS):
        for name, run in runs.items():
            begin = time.perf_counter()
            run()
            if number >= WARM_UP:
                seconds[name].append((time.perf_counter() - begin) / STEPS)
    ratios = [one / other for one, other in zip(seconds["step"], seconds["products"], strict=True)]
    return {
        **{key: entry[key] for key in ("batch", "candidates", "dimension", "precision")},
        "step_ms": round(statistics.median(seconds["step"]) * 1e3, 4),
        "products_ms": round(statistics.median(seconds["products"]) * 1e3, 4),
        "ratio": round(statistics.median(ratios), 3),
    }


def _steps(entry: dict[str, Any]) -> Callable[[], None]:
    """Takes the steps of a round, over its batches in turn, and waits for the weights."""
    step = Step(entry, in_place=True)
    state, *batches = (jax.device_put(arrays) for arrays in (entry["state"], *entry["batches"]))

    def run() -> None:
        nonlocal state
        for number in range(STEPS):
            _, state = step(state, batches[number % len(batches)])
        jax.block_until_ready(state)

    return run


def _products(entry: dict[str, Any]) -> Callable[[], None]:
    dtype = jnp.bfloat16 if entry["precision"] == "bfloat16" else jnp.float32
    rng = np.random.default_rng(0)
    query, item = (
        jax.device_put(jnp.asarray(rng.normal(size=(rows, entry["dimension"])), dtype))
        for rows in (entry["batch"], entry["candidates"])
    )

    @jax.jit
    def products(query: Any, item: Any) -> tuple[Any, Any]:
        scores = query @ item.T
        return scores @ item, scores.T @ query

    def run() -> None:
        for _ in range(STEPS):
            found = products(query, item)
        jax.block_until_ready(found)

    return run
