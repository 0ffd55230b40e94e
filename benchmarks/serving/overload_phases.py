"""Overload of one service: how it answers at half of saturation, under far more than it can do, and afterwards.

In: a running service, bodies with their answers. Out: figures of each phase, and which claims and goals they meet.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.serving.load import generator
from benchmarks.serving.load.result import Result
from benchmarks.serving.servers import MemoryWatch, Server

CONNECTIONS = 256  # of open loops
OVERLOADS = ("twice_saturation", "connections_512")
TURNS = 3
SATURATION_S = 4.0
HAMMERED_S = 20.0
AFTER_S = 15.0  # of each phase at half of saturation
BACK_S = 5.0  # within this the service is as before
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


def saturation(asked: Asked) -> dict[str, Any]:
    """The greatest rate of answers with status 200 in closed loops, and the number of connections that gave it."""
    rates = {count: round(asked.closed(count, SATURATION_S).rate(), 1) for count in (8, 16, 32)}
    best = max(rates, key=rates.__getitem__)
    return {"per_s": rates[best], "connections": best, "rates": rates}


def overload(server: Server, asked: Asked, seconds: float) -> list[dict[str, Any]]:
    """Three turns of `_turn`: a shared machine is at times a third slower for minutes, so times are medians.

    Args:
        server: the service, for its memory.
        asked: what is asked.
        seconds: how long twice the saturation lasts in each turn.
    """
    return [_turn(server, asked, seconds, seed=10 * turn) for turn in range(TURNS)]


def judged(turns: list[dict[str, Any]]) -> dict[str, dict[str, bool]]:
    """The claims, and the goals that may be missed.

    The 512 ask again as soon as they are refused, and refusals take most of the CPU. How fast the accepted ones are
    then, and how soon all is as before, is the business of the proxy in front, which bounds connections.
    """

    def median(name: str, figure: str) -> float:
        return float(np.median([turn[name][figure] for turn in turns]))

    claims = {"normal load is never refused": all({*map(int, turn["normal"]["statuses"])} == {200} for turn in turns)}
    goals = {
        f"twice_saturation: p99 of what is accepted at most {TIMES_NORMAL:g} times that of half of saturation": (
            median("twice_saturation", "p99_times_normal") <= TIMES_NORMAL
        )
    }
    for name in OVERLOADS:
        claims |= {
            f"{name}: only 200 and 429, every 200 with the right items, no error": all(
                _clean(turn[name], {200, 429}) for turn in turns
            ),
            f"{name}: p99 of refusals at most {AT_ONCE_MS:g} ms": median(name, "refused_p99_ms") <= AT_ONCE_MS,
            f"{name}: resident memory at most {MORE_MEMORY:g} times": all(
                turn[name]["rss_mib"]["most"] <= MORE_MEMORY * turn[name]["rss_mib"]["before"] for turn in turns
            ),
        }
        back = claims if name == "twice_saturation" else goals
        back[f"{name}: back to normal within {BACK_S:g} s"] = median(name, "back_after_s") <= BACK_S
    return {"claims": claims, "goals": goals}


def _turn(server: Server, asked: Asked, seconds: float, seed: int) -> dict[str, Any]:
    """Finds the saturation, then: half of it, twice of it, half, 512 connections that never pause, half."""
    found = saturation(asked)
    per_s = float(found["per_s"])
    normal = asked.open_loop(per_s / 2, AFTER_S, seed)
    p99 = normal.percentile(99)
    figures: dict[str, Any] = {"saturation": found, "normal": normal.summary()}
    overloads: dict[str, Callable[[], Result]] = {
        "twice_saturation": lambda: asked.open_loop(2 * per_s, seconds, seed + 1),
        "connections_512": lambda: asked.closed(512, HAMMERED_S),
    }
    for place, (name, run) in enumerate(overloads.items()):
        before = server.memory()
        with MemoryWatch(server) as watch:
            result = run()
            after = asked.open_loop(per_s / 2, AFTER_S, seed + 2 + place)
        figures[name] = result.summary() | {
            "p99_times_normal": round(result.percentile(99) / p99, 3),
            "refused_p99_ms": round(result.percentile(99, 429), 3),
            "rss_mib": {"before": round(before.rss, 1), "most": round(max(each.rss for each in watch.found), 1)},
            "back_after_s": back_after(after, p99),
            "after": after.summary() | {"p99_ms_of_each_second": per_second(after)},
        }
    return figures


def back_after(after: Result, normal_p99: float) -> float:
    """Seconds from which on nothing is refused any more and p99 is near the normal one; the whole run if never."""
    clean = _clean(after.summary(), {200, 429})
    for second in range(int(after.seconds - BACK_S) + 1):
        refused = np.any(after.status[after.at >= second] != 200)
        if clean and not refused and after.percentile(99, 200, second) <= BACK_TIMES * normal_p99:
            return float(second)
    return after.seconds


def per_second(result: Result) -> list[float]:
    """p99 of the answers of status 200 in ms, by the second in which the request was due."""
    return [round(result.percentile(99, 200, s, s + 1), 3) for s in range(int(result.seconds))]


def _clean(found: dict[str, Any], statuses: set[int]) -> bool:
    """Whether a summary, in memory or read from a result, has these statuses only and nothing wrong."""
    return {*map(int, found["statuses"])} <= statuses and not (found["errors"] or found["wrong"] or found["unasked"])
