"""A load generator of one core: prebuilt requests over keep-alive connections, closed loop or open loop.

In: a URL, JSON bodies, how many connections and how long, in open loop a rate. Out: a `Result`: latencies, statuses,
errors. `python -m benchmarks.serving.load.generator URL --bodies FILE` prints one.

In open loop a latency counts from the moment at which the request was due, not from when it could be sent: a server
that stalls for a second cannot hide the requests of that second. Give the generator a core of its own (`pin`),
and look at its own delays in the result (`lag_ms`).
"""

import argparse
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

import numpy as np

from benchmarks.serving.load.result import Result
from benchmarks.serving.load.run import Run


def closed(
    url: str,
    bodies: Sequence[bytes],
    connections: int,
    seconds: float,
    *,
    answers: Sequence[bytes] | None = None,
    headers: Mapping[str, str] | None = None,
    obeys: bool = False,
) -> Result:
    """Each connection sends its next request when the answer to the last has come, whatever its status.

    Args:
        url: of the route that is asked, `http://host:port/path`.
        bodies: JSON bodies, sent in turn by POST.
        connections: how many at the same time.
        seconds: how long requests are sent.
        answers: for each body, the body that every answer of status 200 must have; None: any.
        headers: further ones of every request.
        obeys: a connection that is answered 429 waits as long as Retry-After says.
    """
    return Run(url, bodies, connections, seconds, answers, headers, obeys).go(None)


def open_loop(
    url: str,
    bodies: Sequence[bytes],
    rate: float,
    seconds: float,
    connections: int,
    *,
    arrivals: Literal["poisson", "even"] = "poisson",
    answers: Sequence[bytes] | None = None,
    headers: Mapping[str, str] | None = None,
    seed: int = 0,
) -> Result:
    """Requests come when they come, `rate` a second, however slow the answers are.

    Args:
        url, bodies, seconds, answers, headers: as in `closed`.
        rate: requests a second.
        connections: how many there are; a request that finds none free waits for one, and its latency counts that.
        arrivals: "poisson": as of many callers who know nothing of each other; "even": one every 1/rate seconds.
        seed: of the Poisson arrivals.
    """
    count = int(rate * seconds)
    if arrivals == "even":
        due = np.arange(count) / rate
    else:
        due = np.cumsum(np.random.default_rng(seed).exponential(1 / rate, count))
    return Run(url, bodies, connections, seconds, answers, headers).go(due)


def pin(core: int) -> None:
    """Keeps this process on one core; on a machine with one core, or without the call, it stays where it is."""
    if hasattr(os, "sched_setaffinity") and core in os.sched_getaffinity(0):
        os.sched_setaffinity(0, {core})


def main() -> None:
    """Prints the summary of one run as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url")
    parser.add_argument("--bodies", type=Path, required=True, help="JSON Lines: one body a line")
    parser.add_argument("--connections", type=int, default=16)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--rate", type=float, help="requests a second, open loop; without it closed loop")
    parser.add_argument("--core", type=int, help="the core that the generator stays on")
    given = parser.parse_args()
    bodies = [line for line in given.bodies.read_bytes().splitlines() if line.strip()]
    if given.core is not None:
        pin(given.core)
    if given.rate is None:
        result = closed(given.url, bodies, given.connections, given.seconds)
    else:
        result = open_loop(given.url, bodies, given.rate, given.seconds, given.connections)
    print(json.dumps(result.summary(), indent=2))


if __name__ == "__main__":
    main()
