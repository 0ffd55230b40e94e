"""`towers prepare` on 100 million events in Parquet: time and peak memory of the process.

Claim: at most 4 GB of memory. The world is that of `benchmarks.scale.prepare_20m`, five times as large; 10 GB
on disk. It writes benchmarks/scale/results/prepare_100m.json; exits with 1 where the claim fails.
"""

import argparse
import sys
import tempfile
from pathlib import Path

from benchmarks.scale.prepare_20m import main

EVENTS = 100_000_000

if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scale.prepare_100m", description=__doc__)
    parser.add_argument("--events", type=int, default=EVENTS, help="fewer for a trial; users and items shrink alike")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        sys.exit(main(Path(directory), given.events, ("parquet",), "prepare_100m"))
