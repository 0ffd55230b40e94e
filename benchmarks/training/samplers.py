"""Drawing negatives against TensorFlow's own candidate samplers: milliseconds a call, both inside a tf.function.

Claims, on a CPU (TensorFlow's samplers run nowhere else), k = 8192 negatives and 8192 positives a call for both:
learned unigram, draw and count, at N = 10M within a fifth of TensorFlow's time, and within 3 times its own at N = 10k;
log-uniform, distinct, within TensorFlow's time at N = 1M and 10M, compiled by XLA within 3 times it. Goal: with
replacement, where the two are about even, within TensorFlow's time, too. Both return Q of the k and of the positives
(ours its logarithm). Medians of calls that take turns in one run. Writes benchmarks/training/results/samplers.json;
exits with 1 where a claim fails.
"""

import argparse
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
from pydantic import TypeAdapter

from benchmarks.harness.machine import verdict, write
from towers.config.samplers import SamplerConfig
from towers.samplers.registry import build_sampler

NEGATIVES = BATCH = 8_192
# Positives that the learned samplers have seen before they are timed.
SEEN = 256 * BATCH
CALLS = 101
Calls = dict[str, Callable[[], Any]]


def main(calls: int, dry: bool) -> int:
    learned = taking_turns({name: call for size in (10_000, 10_000_000) for name, call in learned_unigram(size)}, calls)
    sizes = (1_000_000, 10_000_000)
    log_uniform = {f"N = {size}": taking_turns(dict(log_uniforms(size)), calls) for size in sizes}
    result = {
        **judged(learned, log_uniform),
        "sizes": {"negatives": NEGATIVES, "batch": BATCH, "seen": SEEN, "calls": calls},
        "learned_unigram_ms": learned,
        "log_uniform_ms": log_uniform,
    }
    for name, value in {
        **learned,
        **{f"{size} {n}": v for size, ms in log_uniform.items() for n, v in ms.items()},
    }.items():
        print(f"{name:40} {value:8.3f} ms")
    if not dry:
        print(write(__file__, "samplers", result))
    return verdict(result)


def judged(learned: dict[str, float], log_uniform: dict[str, dict[str, float]]) -> dict[str, dict[str, bool]]:
    """The claims, and the goals that may be missed."""
    claims = {
        "learned_unigram, N = 10M: at most a fifth of TensorFlow's time": (
            learned["ours, N = 10000000"] <= learned["TensorFlow, N = 10000000"] / 5
        ),
        "learned_unigram: at N = 10M at most 3 times as long as at N = 10k": (
            learned["ours, N = 10000000"] <= 3 * learned["ours, N = 10000"]
        ),
    }
    goals = {}
    for size, ms in log_uniform.items():
        where = f"log_uniform, {size.removesuffix('000000')}M"
        goals[f"{where}: at most TensorFlow's time"] = ms["ours"] <= ms["TensorFlow"]
        claims |= {
            f"{where}, distinct: at most TensorFlow's time": ms["ours, distinct"] <= ms["TensorFlow, distinct"],
            f"{where}, distinct, compiled: at most 3 times TensorFlow's": (
                ms["ours, distinct, compiled"] <= 3 * ms["TensorFlow, distinct"]
            ),
        }
    return {"claims": claims, "goals": goals}


def taking_turns(calls: Calls, number: int) -> dict[str, float]:
    """Median milliseconds of each call; after three calls for warmth they take turns."""
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        for _ in range(3):
            call()
    for _ in range(number):
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            seconds[name].append(time.perf_counter() - start)
    return {name: round(float(np.median(taken)) * 1e3, 3) for name, taken in seconds.items()}


def learned_unigram(size: int) -> list[tuple[str, Callable[[], Any]]]:
    """Ours and TensorFlow's, both after the same positives."""
    ours = drawer(size, name="learned_unigram", negatives=NEGATIVES)
    theirs = tf.function(
        lambda positives: tf.random.learned_unigram_candidate_sampler(positives, 1, NEGATIVES, False, size)
    )
    for number in range(SEEN // BATCH):
        ours(popular(size, number), tf.constant([number, 0]))
        theirs(popular(size, number))
    positives, seed = popular(size, -1), tf.constant([1, 1])
    return [
        (f"ours, N = {size}", lambda: ours(positives, seed)),
        (f"TensorFlow, N = {size}", lambda: theirs(positives)),
    ]


def log_uniforms(size: int) -> list[tuple[str, Callable[[], Any]]]:
    """Ours plain and compiled, and TensorFlow's; with replacement and distinct."""
    positives, seed, calls = popular(size, 0), tf.constant([1, 1]), []
    for distinct in (False, True):
        end = ", distinct" if distinct else ""
        section = {"name": "log_uniform", "negatives": NEGATIVES, "distinct": distinct}
        plain, compiled = drawer(size, **section), drawer(size, compiled=True, **section)
        theirs = tf.function(
            lambda given, distinct=distinct: tf.random.log_uniform_candidate_sampler(
                given, 1, NEGATIVES, distinct, size
            )
        )
        calls += [
            (f"ours{end}", lambda plain=plain: plain(positives, seed)),
            (f"ours{end}, compiled", lambda compiled=compiled: compiled(positives, seed)),
            (f"TensorFlow{end}", lambda theirs=theirs: theirs(positives)),
        ]
    return calls


def drawer(size: int, compiled: bool = False, **section: Any) -> Callable[..., Any]:
    """The draw of a recipe's section."""
    config = TypeAdapter(SamplerConfig).validate_python(section)
    sampler = build_sampler(config, np.ones(size, np.int64), BATCH, SEEN + 1_000 * BATCH)
    return tf.function(sampler.draw, jit_compile=compiled)


def popular(size: int, seed: int) -> tf.Tensor:
    """Positives [B, 1], the frequent ones more often: log-uniform."""
    u = np.random.default_rng(seed + 1).random((BATCH, 1))
    return tf.constant(np.exp(u * np.log(size)) - 1, tf.int64)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks.training.samplers", description=__doc__)
    parser.add_argument("--calls", type=int, default=CALLS, help="of each, taking turns")
    parser.add_argument("--dry", action="store_true", help="print only")
    given = parser.parse_args()
    sys.exit(main(given.calls, given.dry))
