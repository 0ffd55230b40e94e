"""Breaks the code in fixed places, one at a time, and runs the tests that must notice it.

In: tests/mutants.toml, and a tree whose tests pass; they run without a mutant first, or those that fail anyway would
seem to notice every one. Out: a line for each mutant, and exit code 1 where one survived.
The tree is never touched: each worker has a copy of its tracked files in a temporary folder.
"""

import argparse
import os
import queue
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypeVar

ROOT = Path(__file__).parent.parent
PYTEST = ("-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "--no-header")
TIMEOUT_S = 600.0
NO_FAILURE = (0, 4, 5)  # pytest's exit codes: all passed, wrong usage, no test ran
tell = partial(print, flush=True)
T, R = TypeVar("T"), TypeVar("R")


class Mutant(NamedTuple):
    """One mistake: `file` has `new` instead of `old`, and one of `tests` must fail. Paths are from the root."""

    file: str
    old: str
    new: str
    tests: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.file}: {' '.join(self.old.split())} -> {' '.join(self.new.split())}"


def read() -> list[Mutant]:
    """The committed mutants."""
    entries = tomllib.loads((ROOT / "tests" / "mutants.toml").read_text(encoding="utf-8"))["mutant"]
    return [Mutant(each["file"], each["old"], each["new"], tuple(each["tests"])) for each in entries]


def problems(mutants: Sequence[Mutant], root: Path = ROOT) -> list[str]:
    """What keeps mutants from being run: code that moved or occurs twice, missing tests."""
    found = []
    for mutant in mutants:
        path = root / mutant.file
        times = path.read_text(encoding="utf-8").count(mutant.old) if path.is_file() else 0
        found += [f"{mutant}: `old` occurs {times} times, must be once"] if times != 1 else []
        found += [f"{mutant}: no tests"] if not mutant.tests else []
        found += [f"{mutant}: {test}: no such file" for test in mutant.tests if not (root / test).is_file()]
    return found


def ended(tests: Sequence[str], folder: Path) -> int | None:
    """pytest's exit code for these tests of a copy of the tree; None where they took too long."""
    # No bytecode: a file that changes twice in a second would be taken for the one before. And without CI, under which
    # a test fails where its real data are missing: the copy has none.
    environment = {name: value for name, value in os.environ.items() if name != "CI"}
    environment |= {"PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
    words, quiet = [sys.executable, *PYTEST, *tests], subprocess.DEVNULL
    try:
        done = subprocess.run(words, cwd=folder, env=environment, stdout=quiet, stderr=quiet, timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired:
        return None
    return done.returncode


def killed(mutant: Mutant, folder: Path) -> bool:
    """Whether the tests find the mutant in a copy of the tree, which is whole again afterwards."""
    path = folder / mutant.file
    whole = path.read_text(encoding="utf-8")
    path.write_text(whole.replace(mutant.old, mutant.new), encoding="utf-8")
    try:
        return ended(mutant.tests, folder) not in NO_FAILURE
    finally:
        path.write_text(whole, encoding="utf-8")


def run(mutants: Sequence[Mutant], jobs: int) -> int:
    """Runs them all, several at a time; returns the exit code of the command."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    tracked = [name for name in listed.split("\0") if name and (ROOT / name).is_file()]
    with tempfile.TemporaryDirectory(prefix="mutants-") as work, ThreadPoolExecutor(jobs) as pool:
        free: queue.SimpleQueue[Path] = queue.SimpleQueue()
        for folder in (Path(work) / str(number) for number in range(jobs)):
            for name in tracked:
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, folder / name)
            free.put(folder)

        def in_copy(call: Callable[[T, Path], R], what: T) -> R:
            folder = free.get()
            try:
                return call(what, folder)
            finally:
                free.put(folder)

        def one(mutant: Mutant) -> bool:
            started = time.monotonic()
            found = in_copy(killed, mutant)
            tell(f"{'killed  ' if found else 'SURVIVED'} {mutant} ({time.monotonic() - started:.0f} s)")
            return found

        sets = list(dict.fromkeys(mutant.tests for mutant in mutants))
        tell(f"{len(sets)} sets of tests without a mutant")
        codes = list(pool.map(partial(in_copy, ended), sets))
        wrong = [" ".join(tests) for tests, code in zip(sets, codes, strict=True) if code != 0]
        if wrong:
            tell(*(f"{tests}: does not pass without a mutant" for tests in wrong), sep="\n")
            return 2
        dead = sum(pool.map(one, mutants))
    tell(f"{dead} of {len(mutants)} mutants killed")
    return int(dead < len(mutants))


def main() -> int:
    """The command: 0 where every mutant was killed, 1 where one survived, 2 where the list or the tests do not fit."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help="mutants at a time (2)")
    parser.add_argument("--only", default="", metavar="SUBSTRING", help="only mutants of files whose path holds this")
    parser.add_argument("--check", action="store_true", help="only hold the list against the tree")
    asked, every = parser.parse_args(), read()
    chosen = [mutant for mutant in every if asked.only in mutant.file]
    wrong = problems(every) + ([] if chosen else [f"--only {asked.only}: no mutant's file holds this"])
    if wrong:
        tell(*wrong, sep="\n")
        return 2
    return 0 if asked.check else run(chosen, max(1, asked.jobs))


if __name__ == "__main__":
    sys.exit(main())
