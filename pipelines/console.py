"""Shows the progress of commands: a line that names the phases, then for each a bar, or plain lines without a terminal.

Everything goes to stderr; stdout is for results, so commands can be piped.
"""

import os
import shlex
import shutil
import sys
import time
import unicodedata
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import chain, count
from pathlib import Path

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    Task,
    TaskProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)
from rich.text import Text

TOWERS = "towers"
# Seconds between plain lines: a tenth of the time so far, so that a log of hours stays short.
LEAST_INTERVAL_S, MOST_INTERVAL_S, INTERVAL_SHARE = 5.0, 60.0, 0.1

WIDE = 1_000_000  # columns, so that no table is cut or folded to fit

# Categories of Unicode that a terminal may obey: controls, breaks, halves of letters. And what reorders a line.
OBEYED = frozenset({"Cc", "Zl", "Zp", "Cs"})
REORDERING = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")

Advance = Callable[..., None]


def no_bar(n: float = 1, note: str = "") -> None:
    """An `Advance` for a caller that shows no progress."""


def printable(text: str) -> str:
    """Returns a text of the data in which no character moves the cursor, colours or reorders what a terminal shows.

    Such characters, line breaks too, become their escapes.
    """
    if text.isprintable():
        return text
    obeyed = (unicodedata.category(each) in OBEYED or each in REORDERING for each in text)
    return "".join(
        each.encode("unicode_escape").decode() if wrong else each for each, wrong in zip(text, obeyed, strict=True)
    )


def is_text(word: str) -> bool:
    """Whether UTF-8 can hold it: JSON (``"\\ud800"``) and a command line's bytes may be half of a surrogate pair."""
    return not any("\ud800" <= letter <= "\udfff" for letter in word)


def say(message: str) -> None:
    """Prints plain progress, a line or several."""
    message = "\n".join(map(printable, message.split("\n")))  # a message may quote a text of the data
    print(message, file=sys.stderr, flush=True)  # noqa: T201


def amount(number: int, nouns: str) -> str:
    """Returns a number with its noun, which is given in the plural, on -s or -ies: "1 user", "1,204 users"."""
    one = f"{nouns.removesuffix('ies')}y" if nouns.endswith("ies") else nouns.removesuffix("s")
    return f"{number:,} {one if number == 1 else nouns}"


def results(*, markup: bool = True) -> Console:
    """Returns a console of stdout; without a terminal each row of a table is one whole line there, for grep and awk.

    Args:
        markup: reads ``[bold]`` and the like in texts, and colours numbers.
    """
    console = Console(markup=markup, highlight=markup, emoji=False)
    if not console.is_terminal:
        console.width = WIDE
    return console


def phases(command: str, *names: str) -> None:
    """Names the phases of a command in one line, before the first begins."""
    say(f"{command}: {', '.join(names)}")


def next_step(*words: str | Path, program: str = TOWERS) -> None:
    """Prints the command to give next; paths are quoted for the shell, strings are taken as they are."""
    quoted = (shlex.quote(str(word)) if isinstance(word, Path) else word for word in words)
    say(" ".join(["next:", towers(program), *quoted]))


def free(name: str) -> str:
    """A name of an output to suggest: this one, or the first of ``NAME-2``, ``NAME-3``, … that is not there yet."""
    names = chain([name], (f"{name}-{number}" for number in count(2)))
    return next(each for each in names if not os.path.lexists(each))


def towers(program: str = TOWERS) -> str:
    """Returns how to call a program in this shell: by name if on PATH, else by its path beside this interpreter."""
    beside = Path(sys.executable).with_name(program)
    if shutil.which(program) or not beside.exists():
        return program
    return shlex.quote(str(beside.relative_to(Path.cwd()) if beside.is_relative_to(Path.cwd()) else beside))


@contextmanager
def progress(description: str, total: float | None, unit: str) -> Iterator[Advance]:
    """Shows the progress of one phase.

    Yields:
        ``advance(n, note="")``: reports n more finished units; `note` (a loss, a metric) is shown next to the rate.
    """
    if not sys.stderr.isatty():
        plain = _PlainLines(description, total, unit)
        yield plain.advance
        plain.close()
        return
    with _bars() as bars:
        task = bars.add_task(description, total=total, note="", unit=unit, rate=None)

        def advance(n: float = 1, note: str = "") -> None:
            bars.update(task, advance=n)
            if note:
                bars.update(task, note=note)

        yield advance
        ended = bars.tasks[bars.task_ids.index(task)]
        # Of the whole phase; `speed` is of its last updates, and None of a single one.
        rate = ended.completed / ended.elapsed if ended.elapsed else None
        bars.update(task, total=1, completed=1, rate=rate)


@contextmanager
def phase(description: str) -> Iterator[None]:
    """Shows a phase whose progress cannot be counted: its name and its time. Also a decorator."""
    if sys.stderr.isatty():
        with progress(description, total=None, unit=""):
            yield
        return
    start = time.monotonic()
    yield
    say(f"{description}: {time.monotonic() - start:.1f} s")


@contextmanager
def _bars() -> Iterator[Progress]:
    # The bars have a descriptor of their own: while stderr is filtered (`pipelines.rankers.scann_log`), they go on.
    with os.fdopen(os.dup(sys.stderr.fileno()), "w", encoding="utf-8") as terminal:
        columns = (
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            TaskProgressColumn(),
            _RateColumn(),
            TimeRemainingColumn(elapsed_when_finished=True),
            TextColumn("{task.fields[note]}"),
        )
        # A result that goes to a file, or nowhere, must not go to the terminal instead.
        shown = sys.stdout is not None and sys.stdout.isatty()
        with Progress(*columns, console=Console(file=terminal), redirect_stdout=shown) as bars:
            yield bars


class _RateColumn(ProgressColumn):
    def render(self, task: Task) -> Text:
        speed = task.fields["rate"] or task.speed
        return Text("" if speed is None or not task.fields["unit"] else _rate(speed, task.fields["unit"]))


def _rate(per_s: float, unit: str) -> str:
    return f"{per_s:,.0f} {unit}/s" if per_s >= 10 else f"{per_s:.1f} {unit}/s"


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
        interval = min(MOST_INTERVAL_S, max(LEAST_INTERVAL_S, INTERVAL_SHARE * (self.last - self.start)))
        if now - self.last >= interval and self.done != self.total:
            self.last = now
            rate = self.done / (now - self.start)
            left = f", {(self.total - self.done) / rate:,.0f} s left" if self.total and rate else ""
            of = f"{self.done:,.0f} of " if self.total else ""
            done = of + amount(round(self.total or self.done), self.unit)
            say(f"{self.description}: {done}, {_rate(rate, self.unit)}{left}{self._noted()}")

    def close(self) -> None:
        seconds = time.monotonic() - self.start
        rate = self.done / seconds if seconds else 0.0
        done = amount(round(self.done), self.unit)
        say(f"{self.description}: {done} in {seconds:.1f} s, {_rate(rate, self.unit)}{self._noted()}")

    def _noted(self) -> str:
        return f", {self.note}" if self.note else ""
