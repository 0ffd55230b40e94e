"""Overload of one service: how it answers at half of saturation, under far more than it can do, and afterwards.

In: a running service, bodies with their answers. Out: figures of each phase, and which claims hold.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.serving.load import generator
from benchmarks.serving.load.result import Result
from benchmarks.serving.servers import MemoryWatch, Server

CONNECTIONS = 256  # of open loops
BACK_S = 5.0  # within this the service is as before
AFTER_S = 15.0
TIMES_NORMAL = 3.0
BACK_TIMES = 1.5  # p99 afterwards against p99 before: one run of some seconds differs from another by as much
AT_ONCE_MS = 100.0
MORE_MEMORY = 1.05


@dataclass(frozen=True)
class Asked:
    """What is asked: the URL of the route, bodies, and the answer of each."""

    url: str
    bodies: Sequence[bytes]
    answers: Sequence[bytes]

    def closed(self, connections: int, seconds: float) -> Result:
        """A closed loop of these."""
        return generator.closed(self.url, self.bodies, connections, seconds, answers=self.answers)

    def open_loop(self, rate: float, seconds: float, seed: int = 0) -> Result:
        """An open loop of these."""
        return generator.open_loop(self.url, self.bodies, rate, seconds, CONNECTIONS, answers=self.answers, seed=seed)


def saturation(asked: Asked, seconds: float) -> dict[str, Any]:
    """The greatest rate of answers with status 200 in closed loops: the median of three runs of the best setting."""
    rates: dict[int, list[float]] = {count: [] for count in (8, 16, 32)}
    for _ in range(3):
        for count, found in rates.items():
            found.append(asked.closed(count, seconds).rate())
    medians = {count: float(np.median(found)) for count, found in rates.items()}
    best = max(medians, key=medians.__getitem__)
    return {"per_s": round(medians[best], 1), "connections": best, "rates": rates}


def overload(server: Server, asked: Asked, per_s: float, seconds: float) -> tuple[dict[str, Any], dict[str, bool]]:
    """Normal, twice the saturation in open loop, after it, 512 connections in closed loop, after it.

    The 512 ask again as soon as they are refused, and refusals take most of the CPU. How fast the accepted ones
    are then is the business of the proxy in front, which bounds connections: nothing is claimed of it here.

    Args:
        server: the service, for its memory.
        asked: what is asked.
        per_s: its saturation.
        seconds: how long each of the two overloads lasts.
    """
    normal = asked.open_loop(per_s / 2, max(seconds / 2, BACK_S), seed=1)
    p99 = normal.percentile(99)
    figures: dict[str, Any] = {"normal": normal.summary()}
    claims = {"normal load is never refused": set(normal.statuses) == {200}}
    overloads: dict[str, Callable[[], Result]] = {
        "twice_saturation": lambda: asked.open_loop(2 * per_s, seconds, seed=2),
        "connections_512": lambda: asked.closed(512, seconds),
    }
    for place, (name, run) in enumerate(overloads.items()):
        before = server.memory()
        with MemoryWatch(server) as watch:
            result = run()
            after = asked.open_loop(per_s / 2, AFTER_S, seed=3 + place)
        most = max(each.rss for each in watch.found)
        back = back_after(after, p99)
        figures[name] = result.summary() | {
            "p99_times_normal": round(result.percentile(99) / p99, 3),
            "refused_p99_ms": round(result.percentile(99, 429), 3),
            "rss_mib": {"before": round(before.rss, 1), "most": round(most, 1)},
            "after": after.summary() | {"back_after_s": back, "p99_ms_of_each_second": per_second(after)},
        }
        if name == "twice_saturation":
            claims[f"{name}: p99 of what is accepted at most {TIMES_NORMAL:g} times that of half of saturation"] = (
                result.percentile(99) <= TIMES_NORMAL * p99
            )
        claims |= {
            f"{name}: only 200 and 429, every 200 with the right items, no error": _clean(result, {200, 429}),
            f"{name}: p99 of refusals at most {AT_ONCE_MS:g} ms": not result.percentile(99, 429) > AT_ONCE_MS,
            f"{name}: resident memory at most {MORE_MEMORY:g} times": most <= MORE_MEMORY * before.rss,
            f"{name}: back to normal within {BACK_S:g} s": back is not None and back <= BACK_S,
        }
    return figures, claims


def back_after(after: Result, normal_p99: float) -> float | None:
    """Seconds from which on nothing is refused any more and p99 is near the normal one; None: not in this run."""
    for second in range(int(after.seconds - BACK_S) + 1):
        refused = np.any(after.status[after.at >= second] != 200)
        if _clean(after, {200, 429}) and not refused and after.percentile(99, 200, second) <= BACK_TIMES * normal_p99:
            return float(second)
    return None


def per_second(result: Result) -> list[float]:
    """p99 of the answers of status 200 in ms, by the second in which the request was due."""
    return [round(result.percentile(99, 200, s, s + 1), 3) for s in range(int(result.seconds))]


def _clean(result: Result, statuses: set[int]) -> bool:
    return set(result.statuses) <= statuses and not result.errors and not result.wrong and not result.unasked
