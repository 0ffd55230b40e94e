"""Shows the progress of long steps: a bar with rate and time left, or plain lines without a terminal.

Everything goes to stderr; stdout is for results, so commands can be piped.
"""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, SpinnerColumn, Task, TextColumn, TimeRemainingColumn
from rich.text import Text

PLAIN_INTERVAL_S = 5.0

Advance = Callable[..., None]


def say(message: str) -> None:
    """Prints one line of plain progress."""
    print(message, file=sys.stderr, flush=True)  # noqa: T201


@contextmanager
def progress(description: str, total: float | None, unit: str) -> Iterator[Advance]:
    """Shows the progress of one long step.

    Yields:
        ``advance(n, note="")``: reports n more finished units; `note` (a loss, a metric) is shown beside the rate.
    """
    if not sys.stderr.isatty():
        plain = _PlainLines(description, total, unit)
        yield plain.advance
        plain.close()
        return
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f}%"),
        _RateColumn(unit),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
    )
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(description, total=total, note="")

        def advance(n: float = 1, note: str = "") -> None:
            bar.update(task, advance=n)
            if note:
                bar.update(task, note=note)

        yield advance


class _RateColumn(ProgressColumn):
    def __init__(self, unit: str) -> None:
        super().__init__()
        self.unit = unit

    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed
        return Text("" if speed is None else f"{speed:,.0f} {self.unit}/s")


class _PlainLines:
    def __init__(self, description: str, total: float | None, unit: str) -> None:
        self.description, self.total, self.unit = description, total, unit
        self.done = 0.0
        self.note = ""
        self.start = self.last = time.monotonic()

    def advance(self, n: float = 1, note: str = "") -> None:
        self.done += n
        self.note = note or self.note
        now = time.monotonic()
        if now - self.last >= PLAIN_INTERVAL_S:
            self.last = now
            rate = self.done / (now - self.start)
            left = f", {(self.total - self.done) / rate:,.0f} s left" if self.total and rate else ""
            of = f" of {self.total:,.0f}" if self.total else ""
            say(f"{self.description}: {self.done:,.0f}{of} {self.unit}, {rate:,.0f} {self.unit}/s{left}{self._noted()}")

    def close(self) -> None:
        seconds = time.monotonic() - self.start
        rate = self.done / seconds if seconds else 0.0
        done = f"{self.done:,.0f} {self.unit}"
        say(f"{self.description}: {done} in {seconds:.1f} s, {rate:,.0f} {self.unit}/s{self._noted()}")

    def _noted(self) -> str:
        return f", {self.note}" if self.note else ""
