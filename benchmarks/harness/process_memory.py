"""Runs a command and measures its time and memory; or a function, in a process of its own.

`MeasuredProcess` looks at the memory five times a second (Linux only): all that is resident, and the anonymous part,
which no file backs; pages of memory-mapped files count as resident, but the kernel drops them if memory is short.
"""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any, TypeVar

from benchmarks.harness.machine import ROOT

EVERY_S = 0.2
Found = TypeVar("Found")


class MeasuredProcess:
    """A running process.

    Args:
        words: the command.
        options: of `subprocess.Popen`.

    Attributes:
        process: it.
        peaks: bytes, by ``peak_bytes`` and ``peak_anonymous_bytes``.
    """

    def __init__(self, words: list[str], **options: Any) -> None:
        self.peaks = {"peak_bytes": 0, "peak_anonymous_bytes": 0}
        self._start = time.perf_counter()
        self.process = subprocess.Popen(words, **options)
        self._watcher = threading.Thread(target=self._watch, daemon=True)
        self._watcher.start()

    @property
    def seconds(self) -> float:
        """Since its start."""
        return round(time.perf_counter() - self._start, 1)

    def wait(self) -> dict[str, Any]:
        """Its seconds, start included, and its peaks, once it has ended; ``code`` is how."""
        code = self.process.wait()
        seconds = self.seconds
        self._watcher.join()
        return {"seconds": seconds, **self.peaks, "code": code}

    def _watch(self) -> None:
        while self.process.poll() is None:
            now = memory(self.process.pid)
            # The kernel remembers the peak of all resident pages, of the anonymous ones only what they are now.
            found = {"peak_bytes": now.get("VmHWM", 0), "peak_anonymous_bytes": now.get("RssAnon", 0)}
            self.peaks = {name: max(value, found[name]) for name, value in self.peaks.items()}
            time.sleep(EVERY_S)


def memory(pid: int | str = "self") -> dict[str, int]:
    """What `/proc/PID/status` says in bytes, ``RssAnon`` and ``VmHWM`` among it; empty where the process is gone."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
    except OSError:
        return {}
    return {line.split(":")[0]: 1024 * int(line.split()[1]) for line in lines if line.endswith(" kB")}


def timed(*words: str) -> dict[str, Any]:
    """Runs `towers WORDS` in a process of its own; returns its seconds and its peak resident memory."""
    start = time.perf_counter()
    process = subprocess.Popen([sys.executable, "-m", "pipelines", *words], cwd=ROOT, stdout=sys.stderr)
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        sys.exit(f"error: towers {words[0]} ended with status {status}")
    # Kilobytes on Linux, bytes on macOS.
    peak = usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    return {"seconds": round(time.perf_counter() - start, 1), "peak_bytes": peak}


def alone(measure: Callable[..., Found], *arguments: Any) -> Found:
    """Calls a function in a process of its own: TensorFlow keeps what it once allocated, in pieces of any size."""
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        return pool.submit(measure, *arguments).result()
