"""`towers prepare` on 20 million events: time and peak memory of the process, for each file format.

Claim: at most 4 GB of memory. The events are a synthetic world's, with times, a device column, users and items with
attributes. Writes benchmarks/scale/results/prepare.json; exits with 1 where the claim fails.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import polars as pl

from benchmarks.harness.machine import verdict, write
from benchmarks.harness.process_memory import timed

EVENTS, USERS, ITEMS = 20_000_000, 250_000, 200_000
MOST_BYTES = 4_000_000_000
FORMATS = ("parquet", "csv", "jsonl")


def main(work: Path, events: int, formats: Sequence[str] = FORMATS, name: str = "prepare") -> int:
    world = work / "world"
    sizes = {"users": USERS * events // EVENTS, "items": max(1_000, ITEMS * events // EVENTS), "events": events}
    options = [word for name, size in sizes.items() for word in (f"--{name}", str(size))]
    timed("synth", "--out", str(world), *options)
    runs = {}
    for kind in formats:
        source = world if kind == "parquet" else rewritten(world, work / kind, kind)
        out = work / f"dataset-{kind}"
        runs[kind] = timed("prepare", "--events", str(source), "--out", str(out))
        runs[kind]["input_bytes"] = next(source.glob("events.*")).stat().st_size
        manifest = json.loads((out / "dataset.json").read_text(encoding="utf-8"))
        runs[kind]["events"] = manifest["events"]
        runs[kind]["events_per_s"] = round(sum(manifest["events"].values()) / runs[kind]["seconds"])
    claims = {f"{kind}: at most {MOST_BYTES / 1e9:g} GB": run["peak_bytes"] <= MOST_BYTES for kind, run in runs.items()}
    result = {"claims": claims, "sizes": sizes, "formats": runs}
    print(write(__file__, name, result))
    for kind, run in runs.items():
        print(f"{kind:8} {run['seconds']:6.1f} s {run['peak_bytes'] / 1e9:5.2f} GB {run['events_per_s']:>10,} events/s")
    return verdict(result)


def rewritten(world: Path, folder: Path, kind: str) -> Path:
    """The world with its events in another format."""
    folder.mkdir()
    for name in ("users.parquet", "items.parquet"):
        (folder / name).symlink_to(world / name)
    (folder / "truth").symlink_to(world / "truth")
    frame = pl.scan_parquet(world / "events.parquet")
    (frame.sink_csv if kind == "csv" else frame.sink_ndjson)(folder / f"events.{kind}")
    return folder


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scale.prepare_20m", description=__doc__)
    parser.add_argument("--events", type=int, default=EVENTS, help="fewer for a trial; users and items shrink alike")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        sys.exit(main(Path(directory), given.events))
