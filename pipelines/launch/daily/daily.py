"""`towers daily`: takes today's events to the bundle that answers, or says why they do not get there.

A day is named by its content. The same inputs and recipe are the same day: it resumes where it stopped, and is finished
once its bundle has been activated. One process at a time works in a directory of days.
"""

import json
import shlex
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from pipelines.console import next_step, phases, printable, say
from pipelines.errors import DataError, GateError
from pipelines.launch.daily.activation import ACTIVATION, BEFORE, note, was_activated
from pipelines.launch.daily.day import ACTIVATED, FAILED, REFUSED, SUMMARY, Day
from pipelines.launch.daily.days import remove_old, today
from pipelines.launch.daily.settings import Loop
from serving.bundle.versions import Versions
from serving.files.disk_full import DiskFullError
from serving.files.lock import exclusive
from serving.files.staging import staged

NOTIFY_S = 60.0  # that the command may take
LOCK = ".lock"  # a file: pods of several machines may share the directory of days


def run(config: Path) -> dict[str, Any]:
    """Runs the day of the events as they are now.

    Args:
        config: the file of settings.

    Returns:
        The summary, as it is written to the day's folder and given to the command of `notify`.

    Raises:
        DataError, ConfigError, BundleError: a step failed; its message says why.
        GateError: the gate refused the bundle; the one before it keeps answering.
        BusyError: another process works in the directory of days.
    """
    loop = Loop.read(config)
    loop.follow()
    loop.refuse_late_mistakes(config)
    place = loop.settings.shown_store or loop.settings.root
    quoted = shlex.quote(str(place))
    busy = f"{loop.settings.work}: another `towers daily` is at work here; wait for it"
    with exclusive(loop.settings.work, busy, LOCK):
        loop.settings.root.mkdir(parents=True, exist_ok=True)
        Versions(loop.settings.root).refuse_unwritable()  # not after hours of training
        day = today(loop)
        # Also after a rollback, which holds until there are new events.
        if was_activated(day):
            answers = loop.answers
            if not day.bundle.is_dir():
                say(f"{day.bundle}: removed since it was activated; to make it again, remove {day.folder / SUMMARY}")
            if answers is None:
                # It is not activated here: an operator may have taken it out of service.
                raise DataError(
                    f"{place}: no bundle is active, and {day.name} is made of these events and this recipe already: "
                    f"`towers bundles activate {day.name} --root {quoted}`"
                )
            if day.summary["outcome"] != ACTIVATED:
                again = f"`towers bundles activate {day.name} --root {quoted}` repeats it"
                say(f"{day.name}: its activation was interrupted, and what is active has changed since; {again}")
            say(f"nothing to do: {day.name} is made of these events and this recipe; {answers} answers")
            next_step("bundles list --root", quoted)
            return day.summary
        # Written last, not before the bundle is verified: in those minutes a change of what is active is no rollback.
        steps = day.steps(lambda: _write(day, note(day), ACTIVATION))
        phases("daily", *(step.name for step in steps))
        seconds: dict[str, float] = {}
        step = steps[0]
        try:
            for step in steps:
                if step.name == "gate":
                    loop.follow(warns=False)  # an operator may have chosen another bundle during the training
                if step.done():
                    continue
                say(f"daily: {step.name}, {day.name}")
                begin = time.monotonic()
                step.make()
                seconds[step.name] = round(time.monotonic() - begin, 1)
        except Exception as error:
            outcome = REFUSED if isinstance(error, GateError) else FAILED
            # Of an activation whose answer was lost nobody knows here whether it happened.
            stamp = {name: value for name, value in day.summary.items() if name == BEFORE and step.name == "activate"}
            _end(day, outcome, seconds, at=step.name, reason=printable(str(error)), **stamp)
            raise
        summary = _end(day, ACTIVATED, seconds)
        next_step("bundles list --root", quoted)
        return summary


def _end(day: Day, outcome: str, seconds: dict[str, float], **more: Any) -> dict[str, Any]:
    """Writes the summary of a day, removes old ones, tells of it, and gives it to the command of `notify`."""
    summary: dict[str, Any] = {
        "day": day.name,
        "outcome": outcome,
        "started": day.started,
        "warm_from": day.warm_from,
        "bundle": str(day.bundle) if day.bundle.is_dir() else None,
        "store": day.loop.settings.shown_store,
        "seconds": {**day.summary.get("seconds", {}), **seconds},
        "removed": [],
        **more,
    }
    # First: whatever happens below, a day that has been activated is not activated again.
    with suppress(OSError, DiskFullError):  # the next may find room
        _write(day, summary, outcome)
    try:
        summary["removed"] = remove_old(day.loop, day)
    except (OSError, DiskFullError, DataError) as error:
        say(f"warning: old days stay: {error}")
    text = _write(day, summary, outcome)
    say(f"{day.name}: {outcome}; {day.folder / SUMMARY}")
    if command := day.loop.settings.notify:
        try:
            subprocess.run(command, input=text.encode(), check=True, timeout=NOTIFY_S, cwd=day.loop.folder)
        # A failed notification does not change how the day ended. Its arguments, which may hold a secret, stay out.
        except subprocess.CalledProcessError as error:
            say(f"warning: notify: {command[0]} ended with exit code {error.returncode}")
        except subprocess.TimeoutExpired:
            say(f"warning: notify: {command[0]} was killed after {NOTIFY_S:g} s")
        except OSError as error:
            say(f"warning: notify: {error}")
    return summary


def _write(day: Day, summary: dict[str, Any], outcome: str) -> str:
    text = json.dumps(summary, indent=2, ensure_ascii=False) + "\n"
    try:
        with staged(day.folder / SUMMARY, overwrite=True) as half:
            half.write_text(text, encoding="utf-8")
    except (OSError, DiskFullError) as error:
        if outcome == ACTIVATED:
            raise
        say(f"warning: {error}")  # the error of the step is the one to tell
    return text
