"""The path as a user runs it: each stage is a `towers` command of its own, timed; and a service to ask.

In: words of the command line. Out: seconds per stage, the commands, a running service's address.
"""

import argparse
import contextlib
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import httpx

from benchmarks.harness.machine import ROOT

START_TIMEOUT_S = 120


class Stages:
    """Runs commands and remembers them.

    Attributes:
        seconds: stage -> wall-clock seconds, start of the process included.
        commands: as a person would type them, with paths shortened to the working directory's own.
    """

    def __init__(self, work: Path, data: Path) -> None:
        self.work, self.data = work, data
        self.seconds: dict[str, float] = {}
        self.commands: list[str] = []

    def run(self, *words: str) -> None:
        """Runs `towers WORDS`; a failure ends the benchmark with the command's own message."""
        self.commands.append(self._shown(words))
        print(f"$ {self.commands[-1]}", file=sys.stderr, flush=True)
        start = time.perf_counter()
        done = subprocess.run([sys.executable, "-m", "pipelines", *words], cwd=ROOT, stdout=sys.stderr, check=False)
        if done.returncode:
            sys.exit(f"error: towers {words[0]} ended with code {done.returncode}")
        self.seconds[words[0]] = round(time.perf_counter() - start, 1)

    @contextlib.contextmanager
    def service(self, bundle: Path) -> Iterator[str]:
        """Starts `towers serve` on a free port and yields its address once it is ready."""
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        words = ("serve", "--bundle", str(bundle), "--port", str(port))
        self.commands.append(self._shown(words))
        start = time.perf_counter()
        process = subprocess.Popen([sys.executable, "-m", "pipelines", *words], cwd=ROOT)
        url = f"http://127.0.0.1:{port}"
        try:
            while not _ready(url):
                if process.poll() is not None or time.perf_counter() - start > START_TIMEOUT_S:
                    sys.exit(f"error: towers serve was not ready within {START_TIMEOUT_S} s")
                time.sleep(0.1)
            self.seconds["serve until ready"] = round(time.perf_counter() - start, 1)
            yield url
        finally:
            process.terminate()
            process.wait(timeout=30)

    def _shown(self, words: tuple[str, ...]) -> str:
        line = " ".join(["towers", *words])
        return line.replace(f"{self.work}/", "").replace(str(self.data), self.data.name)


@contextlib.contextmanager
def arguments(
    program: str, name: str, description: str | None, *, resumes: bool = False
) -> Iterator[tuple[Path, Path]]:
    """Reads the command line of a benchmark; yields the data's folder and a working directory.

    Args:
        program: its module.
        name: of the data's folder.
        description: of the benchmark.
        resumes: it goes on from what is in the working directory, which must be empty otherwise.
    """
    parser = argparse.ArgumentParser(prog=f"python -m {program}", description=description)
    parser.add_argument("--data", type=Path, help=f"folder that holds {name}/; default: the environment's TOWERS_DATA")
    kept = "keep finished runs here, and go on from those that are there" if resumes else "keep what is made here"
    parser.add_argument("--work", type=Path, help=f"{kept}; default: thrown away")
    given = parser.parse_args()
    root = given.data or Path(os.environ.get("TOWERS_DATA", ""))
    folder = root / name
    if (given.data is None and "TOWERS_DATA" not in os.environ) or not folder.is_dir():
        parser.error(f"no folder {folder}; name the one that holds {name}/ by --data or TOWERS_DATA")
    if given.work is not None:
        if not resumes and given.work.exists() and any(given.work.iterdir()):
            parser.error(f"--work {given.work}: must be empty, so that every stage runs")
        given.work.mkdir(parents=True, exist_ok=True)
        yield folder.resolve(), given.work.resolve()
        return
    with tempfile.TemporaryDirectory() as work:
        yield folder.resolve(), Path(work).resolve()


def _ready(url: str) -> bool:
    try:
        return httpx.get(f"{url}/readyz").status_code == 200
    except httpx.TransportError:
        return False
