"""Calm under load: far more requests than can be answered, slow clients, a killed worker.

In: a bundle of about Gowalla's size with seen items and an index. Out: `benchmarks/serving/results/calm.json`; code 1
    where a claim fails.

The service runs with all its defaults, one worker on one core, the load generator on another. Known users, their seen
items excluded, k = 100. Normal is open loop at half of the saturation that each turn finds first. The generator does
not obey Retry-After: a refused connection sends the next request at once.

Goals, which may be missed: at twice the saturation the p99 of what is accepted is at most 3 times the normal one; after
512 hammering connections all is as before within 5 s; beside slow clients the p99 of the others is at most 1.5 times
that without them. All else is claimed.
"""

import argparse
import os
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness import machine
from benchmarks.serving.load import generator
from benchmarks.serving.overload_phases import TURNS, Asked, judged, overload
from benchmarks.serving.request_bodies import answers_alone, known_users
from benchmarks.serving.servers import Server, processor_s, service
from benchmarks.serving.slow_loris import dripping
from serving.bundle.manifest import read_manifest

BODIES = 2_000
SLOW_CONNECTIONS = 400
SLOW_TIMES = 1.5
KILL_RATE = 0.25  # of saturation: what one worker on one core answers easily
LEAST_SHARE = 0.05  # of the work, of one of two workers: the one that wakes up first takes a new connection
LOST_S = 0.1
BACK_S = 60.0


def main() -> None:
    """Runs all parts, writes the result, and ends with code 1 where a claim fails."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bundle", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=60, help="of each overload at twice the saturation")
    given = parser.parse_args()
    generator.pin(1)
    bodies = known_users(given.bundle, BODIES)
    figures: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        with service(given.bundle, log=Path(folder) / "log") as server:
            asked = _asked(server, bodies)
            asked.closed(8, 2)  # warm
            figures["overload"] = overload(server, asked, given.seconds)
            per_s = float(np.median([turn["saturation"]["per_s"] for turn in figures["overload"]]))
            figures["slow_loris"], of_loris = slow_loris(asked, per_s)
        with service(given.bundle, core=None, workers=2, log=Path(folder) / "log") as server:
            figures["worker_killed"], of_kill = worker_killed(server, _asked(server, bodies), per_s)
    of_load = judged(figures["overload"])
    claims, goals = of_load["claims"] | of_loris["claims"] | of_kill, of_load["goals"] | of_loris["goals"]
    result = {"bundle": _described(given.bundle), "claims": claims, "goals": goals, **figures}
    print(machine.write(__file__, "calm", result))
    sys.exit(machine.verdict(result))


def slow_loris(asked: Asked, per_s: float) -> tuple[dict[str, Any], dict[str, dict[str, bool]]]:
    """Half of saturation, without and with hundreds of connections that send a body by bytes, three times in turn."""
    seconds, drips = 12.0, []
    alone, beside = [], []
    for turn in range(TURNS):
        alone.append(asked.open_loop(per_s / 2, seconds, seed=10 + turn))
        found: dict[str, Any] = {}
        with dripping(asked.url, SLOW_CONNECTIONS, seconds + 5, found):
            time.sleep(0.5)  # all are open
            beside.append(asked.open_loop(per_s / 2, seconds, seed=10 + turn))
        drips.append(found)
    times = [slow.percentile(99) / without.percentile(99) for without, slow in zip(alone, beside, strict=True)]
    figures = {
        "p99_times": [round(each, 3) for each in times],
        "alone": [each.summary() for each in alone],
        "beside": [each.summary() for each in beside],
        "slow": drips,
    }
    claims = {
        "slow loris: every request of the others gets its 200, with the right items": all(
            set(each.statuses) == {200} and not each.errors and not each.wrong for each in beside
        ),
        "slow loris: every slow connection is answered 408 and closed": all(
            each["closed"] == each["connections"] and each["statuses"] == {"408": each["connections"]} for each in drips
        ),
    }
    goals = {f"slow loris: p99 of the others at most {SLOW_TIMES:g} times": bool(np.median(times) <= SLOW_TIMES)}
    return figures, {"claims": claims, "goals": goals}


def worker_killed(server: Server, asked: Asked, per_s: float) -> tuple[dict[str, Any], dict[str, bool]]:
    """kill -9 of one of two workers in the middle of an open loop."""
    rate, seconds, after = KILL_RATE * per_s, 20.0, 5.0
    before = set(server.workers())
    victim = min(before)
    killer = os.fork()
    if killer == 0:  # not a thread: it would stop the generator
        time.sleep(after)
        os.kill(victim, signal.SIGKILL)
        os._exit(0)
    result = asked.open_loop(rate, seconds, seed=20)
    os.waitpid(killer, 0)
    now = _idle_workers(server, len(before))
    spent = {pid: processor_s(pid) for pid in now}
    again = asked.open_loop(rate, 5.0, seed=21)
    shares = [processor_s(pid) - spent[pid] for pid in now]
    lost = sum(result.errors.values())
    figures = {
        "workers": len(before),
        "killed_after_s": after,
        "while_killed": result.summary(),
        "p99_ms_of_each_second": [round(result.percentile(99, 200, s, s + 1), 3) for s in range(int(seconds))],
        "afterwards": again.summary(),
        "processor_s_of_each_worker_afterwards": [round(share, 2) for share in shares],
    }
    return figures, {
        # Until the kernel has taken its memory back, its connections stay open and unread.
        f"worker killed: fewer requests are lost than come in {LOST_S * 1000:g} ms": lost < rate * LOST_S,
        "worker killed: the others get 200 with the right items": set(result.statuses) == {200} and not result.wrong,
        "worker killed: it comes back and takes its share": (
            len(now) == len(before) and victim not in now and min(shares) >= LEAST_SHARE * sum(shares)
        ),
        "worker killed: afterwards all is well": set(again.statuses) == {200} and not again.errors and not again.wrong,
    }


def _idle_workers(server: Server, count: int) -> set[int]:
    """The workers, once their number is complete and none is starting."""
    deadline = time.monotonic() + BACK_S
    while time.monotonic() < deadline:
        found = server.workers()
        spent = sum(map(processor_s, found))
        time.sleep(1)
        if len(found) == count and set(server.workers()) == set(found) and sum(map(processor_s, found)) - spent < 0.2:
            break
    return set(server.workers())


def _asked(server: Server, bodies: list[bytes]) -> Asked:
    url = f"{server.url}/recall"
    return Asked(url, bodies, answers_alone(url, bodies))


def _described(bundle: Path) -> dict[str, Any]:
    manifest = read_manifest(bundle)
    return {"items": manifest.items, "users": manifest.queries, "dimension": manifest.dimension}


if __name__ == "__main__":
    main()
