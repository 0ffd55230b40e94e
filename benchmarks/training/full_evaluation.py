"""Full evaluation, exact top-k of every user with seen items masked, against its bare matrix product and against TFRS.

Claims, at Gowalla's size (29,858 users x 40,981 items x 64, k = 20) on random vectors and, where TOWERS_DATA holds
gowalla/, on vectors of its own (truncated SVD) with its own seen items: at most 3 times the time of the bare matrix
product (the faster of several block sizes) for `towers.evaluation.top_k` (for `serving.search.exact` a goal); at least
1.5 times as fast as TFRS's layers asked for the same lists, with the seen items as exclusions (best of three settings);
the lists are theirs; memory rises by at most 3 blocks of scores. TFRS's metric `FactorizedTopK` is not a peer: it ranks
every test event, masks nothing, and so does several times the work. Medians of runs that take turns. Linux only. Writes
benchmarks/training/results/evaluation.json; exits with 1 where a claim fails.
"""

import argparse
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from scipy.sparse import csr_matrix
from scipy.sparse.linalg import svds

from benchmarks.harness.machine import verdict, write
from benchmarks.harness.process_memory import memory
from benchmarks.training import factorized_top_k as peer
from serving.search.exact import ExactIndex
from towers.evaluation import metrics
from towers.evaluation.top_k import ITEMS, QUERIES, top_k

USERS, CATALOGUE, DIMENSION, K = 29_858, 40_981, 64, 20
TRAIN_EVENTS, TEST_EVENTS = 810_128, 217_242  # of Gowalla in the split of LightGCN
MOST_TIMES_PRODUCT, LEAST_TIMES_TFRS, MOST_BLOCKS = 3.0, 1.5, 3
PRODUCT_QUERIES = (128, 256, 512, 1_024)


@dataclass(frozen=True)
class World:
    """Vectors [U, D] and [N, D]; what each user has seen and should find, as offsets [U + 1] and item rows."""

    queries: Any
    items: Any
    seen: tuple[Any, Any]
    targets: tuple[Any, Any]


def main(rounds: int, users: int, dry: bool) -> int:
    worlds = {"random": random_world(users)}
    data = Path(os.environ.get("TOWERS_DATA", "")) / "gowalla"
    if "TOWERS_DATA" in os.environ and data.is_dir():
        worlds["gowalla"] = gowalla(data, users)
    result: dict[str, Any] = {"claims": {}, "sizes": {"users": users, "k": K, "rounds": rounds}, "worlds": {}}
    for name, world in worlds.items():
        figures = measured(world, rounds)
        result["worlds"][name] = figures
        print(name, figures)
    result |= judged(result["worlds"])
    if not dry:
        print(write(__file__, "evaluation", result))
    return verdict(result)


def judged(worlds: dict[str, Any]) -> dict[str, dict[str, bool]]:
    """The claims, and the goals that may fail."""
    claims, goals = {}, {}
    for name, figures in worlds.items():
        times, faster = figures["times_bare_product"], figures["times_faster_than_query_with_exclusions"]
        product = f"{name}: at most {MOST_TIMES_PRODUCT:g} times the bare product"
        claims[product] = times["top_k"] <= MOST_TIMES_PRODUCT
        goals[f"{product}, ExactIndex"] = times["ExactIndex"] <= MOST_TIMES_PRODUCT
        claims[f"{name}: at least {LEAST_TIMES_TFRS:g} times as fast as TFRS's exclusions"] = faster >= LEAST_TIMES_TFRS
        # Rounding swaps near ties.
        claims[f"{name}: the lists of TFRS's exclusions"] = figures["same_lists"] >= 0.9999
        most = MOST_BLOCKS * QUERIES * ITEMS * 4
        claims[f"{name}: memory rises by at most {MOST_BLOCKS} blocks"] = figures["rise_bytes"] <= most
    return {"claims": claims, "goals": goals}


def measured(world: World, rounds: int) -> dict[str, Any]:
    """Medians of seconds, ratios, and the memory of one evaluation."""
    offsets, seen = world.seen
    index = ExactIndex(world.items)
    excluded = np.split(seen, offsets[1:-1])
    # The peak starts again at what is held now.
    Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")
    before = memory()["VmHWM"]
    mine = evaluated(world)
    rise = memory()["VmHWM"] - before
    calls: dict[str, Callable[[], Any]] = {
        "top_k": lambda: evaluated(world),
        "ExactIndex": lambda: index.search(world.queries, K, excluded),
    }
    calls |= {f"product, {size} queries": product(world, size) for size in PRODUCT_QUERIES}
    calls |= {f"numpy product, {size} queries": numpy_product(world, size) for size in PRODUCT_QUERIES}
    layers = peer.masked(world.queries, world.items, K, offsets, seen)
    calls |= {f"query_with_exclusions, {name}": call for name, call in layers.items()}
    theirs = next(iter(layers.values()))()
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for number in range(rounds + 1):
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            if number:  # the first one compiles
                seconds[name].append(time.perf_counter() - start)
    medians = {name: round(float(np.median(taken)), 3) for name, taken in seconds.items()}

    def best(start: str) -> float:
        return min(value for name, value in medians.items() if name.startswith(start))

    return {
        "seconds": medians,
        "times_bare_product": {
            "top_k": round(medians["top_k"] / best("product"), 2),
            "ExactIndex": round(medians["ExactIndex"] / best("numpy product"), 2),
        },
        "times_faster_than_query_with_exclusions": round(best("query_with_exclusions") / medians["top_k"], 1),
        "same_lists": round(float((mine == theirs).mean()), 6),
        "rise_bytes": rise,
    }


def evaluated(world: World) -> Any:
    """The lists, and recall and NDCG of every user from them."""
    lists = top_k(world.queries, world.items, K, *world.seen)
    hits = metrics.hits(lists, *world.targets)
    targets = np.diff(world.targets[0])
    metrics.recall(hits, targets, K), metrics.ndcg(hits, targets, K)
    return lists


def product(world: World, size: int) -> Callable[[], Any]:
    """The scores of every user and nothing else, `size` users at a time, by TensorFlow."""
    items = tf.constant(world.items)
    # One number leaves the graph, which keeps the product from being optimised away.
    step = tf.function(lambda part: tf.matmul(part, items, transpose_b=True)[0, 0], reduce_retracing=True)
    return lambda: [step(world.queries[begin : begin + size]) for begin in range(0, len(world.queries), size)]


def numpy_product(world: World, size: int) -> Callable[[], Any]:
    """The same by NumPy's BLAS."""
    out = np.empty((size, len(world.items)), np.float32)

    def run() -> None:
        for begin in range(0, len(world.queries), size):
            part = world.queries[begin : begin + size]
            np.matmul(part, world.items.T, out=out[: len(part)])

    return run


def random_world(users: int) -> World:
    """Normal vectors; seen items and targets as many as Gowalla's, spread as unevenly as users are."""
    rng = np.random.default_rng(0)

    def lists(events: int) -> tuple[Any, Any]:
        share = rng.lognormal(0, 1, users)
        counts = 1 + (share / share.sum() * (events * users / USERS - users)).astype(np.int64)
        offsets = np.concatenate([[0], np.cumsum(counts)])
        return offsets, np.concatenate([rng.choice(CATALOGUE, n, replace=False) for n in counts]).astype(np.int32)

    vectors = [rng.normal(size=(count, DIMENSION)).astype(np.float32) for count in (users, CATALOGUE)]
    return World(vectors[0], vectors[1], lists(TRAIN_EVENTS), lists(TEST_EVENTS))


def gowalla(folder: Path, users: int) -> World:
    """Its first `users` users, with vectors of a truncated SVD of who took what in training."""
    lists = {}
    for name in ("train", "test"):
        lines = [line.split() for line in (folder / f"{name}.txt").read_text(encoding="utf-8").splitlines()]
        of = {int(line[0]): np.unique(np.array(line[1:], np.int32)) for line in lines}
        rows = [of.get(user, np.empty(0, np.int32)) for user in range(users)]
        lists[name] = np.concatenate([[0], np.cumsum([len(row) for row in rows])]), np.concatenate(rows)
    offsets, items = lists["train"]
    taken = csr_matrix((np.ones(len(items), np.float32), items, offsets), shape=(users, CATALOGUE))
    left, values, right = svds(taken, DIMENSION, random_state=0)
    vectors = [np.ascontiguousarray(part, np.float32) for part in (left * values, right.T)]
    return World(vectors[0], vectors[1], lists["train"], lists["test"])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks.training.full_evaluation", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="of all, taking turns")
    parser.add_argument("--users", type=int, default=USERS, help="fewer for a trial")
    parser.add_argument("--dry", action="store_true", help="print only")
    given = parser.parse_args()
    sys.exit(main(given.rounds, given.users, given.dry))
