"""The losses and samplers measured: `python -m benchmarks.losses.parts [PART …] [--work DIR] [--data DIR] [--docs]`.

Parts: `known`, `nce`, `nce-speed`, `q` on worlds with a known answer; `ml-100k`, `gowalla`, `logq` on real data; all of
them by default. Each writes results/losses_PART.json and ends with 1 where one of its claims fails. With
`--work`, an interrupted benchmark resumes. `--docs` writes docs/model/losses.md and its plots out
of the results, after the parts it is given or, without any, alone.
"""

import argparse
import importlib
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.harness.machine import verdict, write
from benchmarks.harness.resumable import Store
from benchmarks.losses import page

# In this order: nce-speed wants a machine that does nothing else.
SYNTHETIC = {"known": "known_world", "nce": "nce_samples", "q": "choice_of_q", "nce-speed": "nce_speed"}
ON_DATA = ("ml-100k", "logq", "gowalla")  # gowalla takes the samplers that ml-100k chose
PARTS = (*SYNTHETIC, *ON_DATA)


def main(words: list[str] | None = None) -> int:
    given = _parser().parse_args(words)
    parts = given.parts or (() if given.docs else PARTS)
    wrong = [part for part in parts if part not in PARTS]
    if wrong:
        _parser().error(f"unknown part {', '.join(wrong)}; the parts are {', '.join(PARTS)}")
    data = given.data or os.environ.get("TOWERS_DATA")
    if data is None and set(parts) & set(ON_DATA):
        _parser().error(f"the parts {', '.join(ON_DATA)} need --data DIR, or TOWERS_DATA")
    with tempfile.TemporaryDirectory() as thrown_away:
        work = given.work or Path(thrown_away)
        codes = [_shown(part, run(part, Path(data) if data else None, work)) for part in parts]
    if given.docs:
        page.write_page()
        print(page.PAGE)
    return max(codes, default=0)


def run(part: str, data: Path | None, work: Path) -> dict[str, Any]:
    """Runs one part and writes its result."""
    if part in ON_DATA:
        result: dict[str, Any] = importlib.import_module("benchmarks.losses.on_data").run(part, data, work)
        return result
    # Only now: TensorFlow takes seconds to load, and `--docs` needs none of it.
    result = importlib.import_module(f"benchmarks.losses.{SYNTHETIC[part]}").run(Store(work / "runs"))
    write(__file__, f"losses_{part.replace('-', '_')}", result)
    return result


def _shown(part: str, result: dict[str, Any]) -> int:
    print(f"{part}:")
    return verdict(result)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.losses.parts",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"{', '.join(PARTS)}; default: all")
    parser.add_argument("--work", type=Path, help="keep finished runs here, and go on from those that are there")
    parser.add_argument("--data", type=Path, help="folder that holds ml-100k/ and gowalla/; default: TOWERS_DATA")
    parser.add_argument("--docs", action="store_true", help="write docs/model/losses.md and its plots")
    return parser


if __name__ == "__main__":
    sys.exit(main())
