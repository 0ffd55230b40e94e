"""What the metric buffers are worth where workers share their metrics through files (Prometheus's multiprocess mode).

In: a bundle of Gowalla's size with seen items and an index. Out: `benchmarks/serving/results/metric_buffers.json`; code
    1 where the claim fails.

Two services of one worker each, on one core, with `PROMETHEUS_MULTIPROC_DIR`: as it is, and with each value written by
prometheus-client's own API at once (`direct_metrics`). Closed loop of known users, in rounds in which both are asked in
turn; the ratio of their CPU time per request, which is what bounds the requests a second of a core and depends less on
what else the machine does, is the median of the rounds' ratios.
"""

import argparse
import statistics
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

from benchmarks.harness import machine
from benchmarks.serving.load import generator
from benchmarks.serving.request_bodies import known_users
from benchmarks.serving.servers import Server, processor_s, service

BODIES, CONNECTIONS = 2_000, 16
LEAST = 1.05  # below this the buffers are not worth their lines
SERVICES = {"buffered": "pipelines", "direct": "benchmarks.serving.direct_metrics"}


def main(bundle: Path, rounds: int, seconds: float) -> int:
    generator.pin(1)
    bodies = known_users(bundle, BODIES)
    costs: dict[str, list[float]] = {name: [] for name in SERVICES}
    with ExitStack() as stack:
        servers = {name: stack.enter_context(started(module, bundle, stack)) for name, module in SERVICES.items()}
        for number in range(rounds + 1):
            for name, server in servers.items():
                before = sum(map(processor_s, server.workers()))
                answered = generator.closed(f"{server.url}/recall", bodies, CONNECTIONS, seconds).statuses[200]
                if number:  # the first warms
                    costs[name].append(round(1e6 * (sum(map(processor_s, server.workers())) - before) / answered, 2))
    ratio = statistics.median(a / b for a, b in zip(costs["direct"], costs["buffered"], strict=True))
    claims = {f"with buffers at least {LEAST:g} times the requests a second": ratio >= LEAST}
    found = {"ratio": round(ratio, 3), "processor_us": costs, "connections": CONNECTIONS, "seconds": seconds}
    result = {"claims": claims, **found}
    print(machine.write(__file__, "metric_buffers", result))
    return machine.verdict(result)


def started(module: str, bundle: Path, stack: ExitStack) -> Server:
    """A service whose metrics lie in files of their own."""
    folder = stack.enter_context(tempfile.TemporaryDirectory())
    return service(bundle, environment={"PROMETHEUS_MULTIPROC_DIR": folder}, module=module)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bundle", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each run")
    given = parser.parse_args()
    sys.exit(main(given.bundle, given.rounds, given.seconds))
