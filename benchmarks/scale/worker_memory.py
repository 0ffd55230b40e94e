"""What one more worker of `towers serve` costs at a million items x 64: private memory, and what all workers share.

Over each bundle, which differ in how they store vectors, the service is started with one, two and three workers and
asked until every worker is warm; then the kernel's own account of every process is read (`/proc/PID/smaps`). A page
counts as private where only one process holds it, and as anonymous where no file is behind it. Claims: in every worker
the item vectors and the item ids are pages of the bundle's files, none of them anonymous, and the workers hold the same
ones. Linux only. Writes benchmarks/scale/results/worker_memory.json; exits with 1 where a claim fails.
"""

import argparse
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from benchmarks.harness.machine import ROOT, verdict, write
from serving.bundle.reader import Bundle

START_TIMEOUT_S, REQUESTS = 300, 600
# The scales are those of int8 vectors.
SHARED_FILES = ("item_vectors.npy", "item_scales.npy", "item_id_bytes.npy", "item_id_offsets.npy", "item_id_slots.npy")
FIELDS = ("Rss", "Shared_Clean", "Shared_Dirty", "Private_Clean", "Private_Dirty", "Anonymous")
HEADER = re.compile(r"^[0-9a-f]+-[0-9a-f]+ \S+ \S+ \S+ \d+ *(.*)$")


def main(paths: list[Path], dry: bool) -> int:
    bundles = {str(Bundle.open(path, verify=False).manifest.vectors): path for path in paths}
    claims: dict[str, bool] = {}
    measured = {}
    for kind, path in bundles.items():
        measured[kind], held = measure(path)
        claims |= {f"{kind}: {claim}": holds for claim, holds in held.items()}
        print(f"{kind}: one more worker adds {measured[kind]['one_more_worker_adds_bytes'] / 1e6:,.0f} MB", flush=True)
    sizes = {name: each.pop("sizes") for name, each in measured.items()}
    claims["the same items, users and dimension"] = len({tuple(each.values()) for each in sizes.values()}) == 1
    result = {"claims": claims, "sizes": next(iter(sizes.values())), "bundles": measured}
    if not dry:
        print(write(__file__, "worker_memory", result))
    return verdict(result)


def measure(path: Path) -> tuple[dict[str, Any], dict[str, bool]]:
    """The memory of the service over one bundle, and what is claimed of it."""
    bundle = Bundle.open(path, verify=False)
    trees = {}
    for workers in (1, 2, 3):
        with service(path, workers) as (pid, url):
            warm(url, bundle)
            trees[workers] = [summary(each, path) for each in processes(pid)]
            print(
                f"{workers} workers:",
                [round(each["private"] / 1e6) for each in trees[workers]],
                "MB private",
                flush=True,
            )
    of_two = serving(trees[2])
    rows = {
        "the only worker": trees[1][0],
        "each of two workers": {name: max(each[name] for each in of_two) for name in ("private", "shared", "rss")},
        "the process that watches over the workers": trees[2][0],
    }
    # What only it holds: whatever it shares is there already with the others.
    added = max(each["private"] for each in serving(trees[3]))
    claims = {"two workers serve": len(of_two) == 2}
    for name in filter(lambda name: (path / name).exists(), SHARED_FILES):
        pages = [each["files"].get(name, {}) for each in of_two]
        claims[f"{name}: in memory as pages of the file, none anonymous"] = all(
            each.get("Rss", 0) > 0 and each["Anonymous"] == 0 and each["Private_Dirty"] == 0 for each in pages
        )
        claims[f"{name}: the workers hold the same pages"] = all(
            each.get("Shared_Clean", 0) >= 0.9 * each.get("Rss", 1) for each in pages
        )
    manifest = bundle.manifest
    result = {
        "sizes": {"items": manifest.items, "users": manifest.queries, "dimension": manifest.dimension},
        "rows": rows,
        "one_more_worker_adds_bytes": added,
        "trees": trees,
    }
    return result, claims


@contextmanager
def service(bundle: Path, workers: int) -> Iterator[tuple[int, str]]:
    """`towers serve`, ready; its process and address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = ["serve", "--bundle", str(bundle), "--port", str(port), "--workers", str(workers)]
    process = subprocess.Popen([sys.executable, "-m", "pipelines", *words], cwd=ROOT)
    url, start = f"http://127.0.0.1:{port}", time.monotonic()
    try:
        while not ready(url):
            if process.poll() is not None or time.monotonic() - start > START_TIMEOUT_S:
                sys.exit(f"error: towers serve was not ready within {START_TIMEOUT_S} s")
            time.sleep(0.2)
        while len(serving([summary(pid, bundle) for pid in processes(process.pid)])) < workers:
            time.sleep(0.5)
        yield process.pid, url
    finally:
        process.terminate()
        process.wait(timeout=60)


def ready(url: str) -> bool:
    try:
        return httpx.get(f"{url}/readyz").status_code == 200
    except httpx.TransportError:
        return False


def warm(url: str, bundle: Bundle) -> None:
    """Requests of known users and of histories, each on a connection of its own: the kernel deals them to workers."""
    for number in range(REQUESTS):
        row = number * (bundle.manifest.queries // REQUESTS)
        known = {"user_id": bundle.query_names[row]}
        body = known if number % 2 else {"history": bundle.item_names[number : number + 10]}
        httpx.post(f"{url}/recall", json={**body, "k": 100}).raise_for_status()


def serving(tree: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Those that have the bundle open."""
    return [each for each in tree if each["files"].get(SHARED_FILES[0], {}).get("Rss", 0) > 0]


def processes(parent: int) -> list[int]:
    """A process and all that came from it."""
    found = [parent]
    for pid in found:
        for task in Path(f"/proc/{pid}/task").glob("*/children"):
            found += [int(child) for child in task.read_text(encoding="utf-8").split()]
    return found


def summary(pid: int, bundle: Path) -> dict[str, Any]:
    """Bytes of one process, and of the bundle's files in it."""
    total, files = dict.fromkeys(FIELDS, 0), {}
    into = total
    for line in Path(f"/proc/{pid}/smaps").read_text(encoding="utf-8").splitlines():
        if header := HEADER.match(line):
            name = header[1]
            inside = name.startswith(f"{bundle}{os.sep}")
            into = files.setdefault(Path(name).name, dict.fromkeys(FIELDS, 0)) if inside else {}
            continue
        field, _, rest = line.partition(":")
        if field in total:
            size = 1024 * int(rest.split()[0])
            total[field] += size
            if into:
                into[field] += size
    return {
        "pid": pid,
        "private": total["Private_Clean"] + total["Private_Dirty"],
        "shared": total["Shared_Clean"] + total["Shared_Dirty"],
        "rss": total["Rss"],
        "anonymous": total["Anonymous"],
        "files": files,
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scale.worker_memory", description=__doc__)
    parser.add_argument(
        "--bundle",
        type=Path,
        required=True,
        action="append",
        help="with an index; that of `benchmarks.search.approximate`, say. Repeat it for one that `towers export "
        "--vectors int8` made of the same run",
    )
    parser.add_argument("--dry", action="store_true", help="write no result")
    given = parser.parse_args()
    sys.exit(main([each.resolve() for each in given.bundle], given.dry))
