"""What a benchmark ran on: machine, library versions, commit, date; writing its result beside them.

In: a benchmark's figures. Out: `results/NAME.json` in the folder of the benchmark.
"""

import json
import os
import platform
import subprocess
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
BENCHMARKS = ROOT / "benchmarks"
LIBRARIES = (
    "numpy",
    "polars",
    "scipy",
    "scann",
    "scann-core",
    "faiss-cpu",
    "hnswlib",
    "usearch",
    "tensorflow",
    "tf-keras",
    "tensorflow-recommenders",
    "fastapi",
    "uvicorn",
    "jax",
    "jaxlib",
)
# Taken at import: a benchmark of the service keeps only one of them for the load.
CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


def record() -> dict[str, Any]:
    """The machine, the versions, the commit (`dirty` where files other than results and plots differ) and the time."""
    commit = _git("rev-parse", "HEAD")
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit,
        "dirty": bool(_git("status", "--porcelain", "--", ".", ":!benchmarks/*/results/*", ":!docs/plots/*"))
        if commit
        else None,
        "machine": {
            "cpu": _cpu(),
            "cores": CORES,
            "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
            "system": platform.platform(),
        },
        "python": platform.python_version(),
        "libraries": {name: version for name in LIBRARIES if (version := _version(name))},
    }


def verdict(result: dict[str, Any]) -> int:
    """Prints what holds of a result, and returns the exit code: 1 where a claim fails.

    A goal may be missed. Which of its checks are goals a benchmark says in its code, whatever the figures are.
    """
    for kind, yes, no in (("claims", "holds", "FAILS"), ("goals", "reached", "MISSED")):
        for name, holds in result.get(kind, {}).items():
            print(f"{yes if holds else no:7} {name}")
    return 0 if all(result["claims"].values()) else 1


def results() -> dict[str, Path]:
    """The committed results by name."""
    return {path.stem: path for path in sorted(BENCHMARKS.glob("*/results/*.json"))}


def load(name: str) -> dict[str, Any]:
    """A committed result."""
    content: dict[str, Any] = json.loads(results()[name].read_text(encoding="utf-8"))
    return content


def origin(result: dict[str, Any]) -> str:
    """The day of a result, the commit that it measured, and the cores, processor and memory that it had."""
    machine, changes = result["machine"], " with changes" if result["dirty"] else ""
    return (
        f"{result['date'][:10]}, {result['commit'][:7]}{changes}, "
        f"{machine['cores']} x {machine['cpu']}, {machine['memory_gib']:.0f} GiB"
    )


def write(script: str, name: str, result: dict[str, Any]) -> Path:
    """Writes `result` with the record of the machine, in the folder `results` beside the benchmark's `script`."""
    path = Path(script).parent / "results" / f"{name}.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({"benchmark": name, **record(), **result}, indent=2) + "\n", encoding="utf-8")
    return path


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _git(*words: str) -> str | None:
    try:
        done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
