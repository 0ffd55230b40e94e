"""A soak: minutes of recalls, changed items, events and swaps of the bundle at once; nothing fails, no memory is lost.

In: a bundle whose items can be put by a feature of known users (`--bundle`). Out:
    `benchmarks/serving/results/soak.json`; code 1 where a claim fails.

One worker on one core. On the other: known users in open loop below saturation, a second process that changes items,
sends events and activates two copies of the bundle in turn by `towers bundles activate`, and the memory of the worker
every second.
"""

import argparse
import multiprocessing
import shutil
import sys
import tempfile
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness import machine
from benchmarks.serving.load import generator
from benchmarks.serving.load.result import Result
from benchmarks.serving.request_bodies import known_users
from benchmarks.serving.servers import Memory, MemoryWatch, Server, service
from benchmarks.serving.soak_writer import Writer, activate
from serving.bundle.manifest import read_manifest

VERSIONS = ("a", "b")
RATE = 400.0  # recalls a second, far below saturation
CONNECTIONS = 64
LEAST_SWAPS, LEAST_UPSERTS = 20, 5_000
MOST_MEMORY = 1.05
MOST_REFUSED = 0.005
LOAD_S = 30.0  # one stretch of load: its latencies are kept in memory


def main() -> None:
    """Soaks, writes the result, and ends with code 1 where a claim fails."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bundle", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=10)
    given = parser.parse_args()
    generator.pin(1)
    with tempfile.TemporaryDirectory() as folder:
        root, state = Path(folder) / "bundles", Path(folder) / "state"
        for name in VERSIONS:
            shutil.copytree(given.bundle, root / name)
        activate(root, VERSIONS[0])
        with service(root, state=state, log=Path(folder) / "log") as server:
            result = soak(server, root, given.bundle, given.minutes * 60)
            errors = [line for line in (Path(folder) / "log").read_text().splitlines() if '"error"' in line]
    result["log_errors"] = errors[:20]
    result["claims"]["no error in the service's log"] = not errors
    manifest = read_manifest(given.bundle)
    result["bundle"] = {"items": manifest.items, "users": manifest.queries, "dimension": manifest.dimension}
    print(machine.write(__file__, "soak", result))
    sys.exit(machine.verdict(result))


def soak(server: Server, root: Path, bundle: Path, seconds: float) -> dict[str, Any]:
    """All at once for so long: figures and claims."""
    bodies = known_users(bundle, 2_000)
    ours, theirs = multiprocessing.Pipe()
    writer = multiprocessing.get_context("spawn").Process(
        target=_write, args=(server.url, root, bundle, seconds, theirs), daemon=True
    )
    url = f"{server.url}/recall"
    generator.open_loop(url, bodies, RATE, 5, CONNECTIONS)  # warm
    writer.start()
    theirs.close()  # so that a writer that dies is noticed
    loads: list[Result] = []
    with MemoryWatch(server) as watch:
        while watch.found == [] or watch.seconds[-1] < seconds - 1:
            left = seconds - (watch.seconds[-1] if watch.seconds else 0)
            loads.append(generator.open_loop(url, bodies, RATE, min(LOAD_S, left), CONNECTIONS, seed=len(loads)))
    written = ours.recv()
    writer.join()
    memory = quarters(watch.seconds, watch.found, seconds)
    statuses: dict[int, int] = {}
    for each in loads:
        for status, count in each.statuses.items():
            statuses[status] = statuses.get(status, 0) + count
    lost = sum(sum(each.errors.values()) for each in loads)
    claims = {
        f"median memory of the last quarter at most {MOST_MEMORY:g} times that of the second": (
            memory["rss_last_over_second"] <= MOST_MEMORY and memory["anonymous_last_over_second"] <= MOST_MEMORY
        ),
        f"every recall is answered; at most {MOST_REFUSED:.1%} are refused": (
            set(statuses) <= {200, 429} and not lost and statuses.get(429, 0) <= MOST_REFUSED * sum(statuses.values())
        ),
        "every change, event and swap is taken": not written["failed"],
        "what was put last is recalled": written["last_is_recalled"],
    }
    if seconds >= 600:
        claims[f"at least {LEAST_SWAPS} swaps and {LEAST_UPSERTS:,} upserts in ten minutes"] = (
            written["swaps"] >= LEAST_SWAPS and written["upserts"] >= LEAST_UPSERTS
        )
    return {
        "claims": claims,
        "minutes": round(seconds / 60, 2),
        "memory": memory,
        "recalls": {
            "rate": RATE,
            "statuses": statuses,
            "lost": lost,
            "p50_ms": round(float(np.median([each.percentile(50) for each in loads])), 3),
            "p99_ms": round(float(np.median([each.percentile(99) for each in loads])), 3),
            "max_ms": round(max(float(each.latency_ms.max()) for each in loads), 1),
        },
        "written": written,
    }


def quarters(at: list[float], found: list[Memory], seconds: float) -> dict[str, Any]:
    """Medians of each quarter in MiB, the last against the second, and a sample every ten seconds."""
    quarter = np.minimum((np.array(at) / seconds * 4).astype(int), 3)
    figures: dict[str, Any] = {}
    # Not pss: what the libraries take in it depends on which other processes run.
    for name in ("rss", "anonymous"):
        values = np.array([getattr(each, name) for each in found])
        medians = [float(np.median(values[quarter == place])) for place in range(4)]
        figures[f"{name}_mib_by_quarter"] = [round(each, 1) for each in medians]
        figures[f"{name}_last_over_second"] = round(medians[3] / medians[1], 4)
        figures[f"{name}_mib_every_10_s"] = [round(float(each), 1) for each in values[::10]]
    return figures


def _write(url: str, root: Path, bundle: Path, seconds: float, out: Connection) -> None:
    generator.pin(1)
    out.send(Writer(url, root, bundle, VERSIONS).run(seconds))


if __name__ == "__main__":
    main()
