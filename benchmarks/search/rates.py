"""What an index does on known queries: recall, queries per second one by one and in batches, time to build."""

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from serving.search.index import Floats, Rows

SINGLES, BATCH = 500, 256
Search = Callable[[Floats], Rows]


def timed(build: Callable[[], Any]) -> tuple[Any, dict[str, float]]:
    """Seconds by the clock, and of CPU time: the latter hardly depend on what else the machine does."""
    start, processor = time.perf_counter(), time.process_time()
    made = build()
    clock, used = time.perf_counter() - start, time.process_time() - processor
    return made, {"build_s": round(clock, 1), "build_processor_s": round(used, 1)}


def recall_of(truth: Rows, found: Rows) -> float:
    hits = [len(set(wanted) & set(got)) for wanted, got in zip(truth.tolist(), found.tolist(), strict=True)]
    return round(sum(hits) / truth.size, 5)


def rates(search: Search, queries: Floats) -> dict[str, float]:
    """Queries per second: one by one, by the median of their times, and in batches, by the median of theirs."""
    return {"single": rate(search, queries[:SINGLES], 1), "batch": rate(search, queries, BATCH)}


def rate(search: Search, queries: Floats, size: int) -> float:
    seconds = []
    for first in range(0, len(queries) - size + 1, size):
        start = time.perf_counter()
        search(queries[first : first + size])
        seconds.append(time.perf_counter() - start)
    return round(size / float(np.median(seconds)), 1)
