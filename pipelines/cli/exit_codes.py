"""Turns the end of a command into an exit code and, on failure, one line on stderr that says why.

A traceback is printed only with TOWERS_DEBUG.
"""

import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from typer import TyperException

from pipelines.console import say
from pipelines.errors import DataError, GateError
from serving.errors import BundleError, RequestError
from serving.files.disk_full import DiskFullError, no_room
from serving.files.lock import BusyError
from serving.files.staging import OutputExistsError

UNEXPECTED = 1
USER_MISTAKE = 2
REFUSED = 3
INTERRUPTED = 130

# What remains after Ctrl-C (see also `sigterm_as_ctrl_c`); commands not listed leave no unfinished output.
KEPT = dict.fromkeys(("query", "look", "check", "doctor", "gate", "losses", "samplers"), "nothing was changed") | {
    "train": "the last checkpoint is kept, and the same command resumes from there (--fresh starts over)",
    "daily": "what is done is kept, and the same command resumes from there",
    "tune": "the trials that have ended are kept, and the same command resumes from there (--fresh starts over)",
    "embed": "the finished parts are kept, and the same command resumes from there",
    "recall": "the finished parts are kept, and the same command resumes from there",
    "serve": "the service has stopped",
    "bundles": "the change is made whole or not at all; 'towers bundles list' shows it",
    "keys": "the file of keys is changed whole or not at all",
    "forget": "each place is changed whole or not at all, and the same command does the rest",
}

MODEL_MISTAKES = (("towers.errors", "ConfigError"), ("towers.errors", "DivergedError"))
LOST_WORKER = ("towers.errors", "LostWorkerError")


def exit_code(command: Callable[[], object], *, kept: str) -> int:
    """Runs a command and turns every way it can end into an exit code.

    Args:
        command: returns None, or the exit code that Typer chose (0 after ``--help``, 130 after Ctrl-C).
        kept: what an interrupted command leaves behind, for a user who pressed Ctrl-C or whose disk is full.

    Returns:
        0 on success, 2 on a user's mistake (one ``error: …`` line), 3 if the gate refuses a bundle (likewise), 130
        after Ctrl-C (or SIGTERM, see `sigterm_as_ctrl_c`), 1 on anything unexpected, such as a lost worker.
    """
    try:
        code = command()
    except KeyboardInterrupt:
        code = INTERRUPTED
    except TyperException as error:
        message = error.format_message().replace("Value error, ", "")  # pydantic's prefix, of no use to a user
        return _failed(error, message + _help_hint(error), USER_MISTAKE)
    except Exception as error:  # noqa: BLE001 - the outermost frame: every error must end as one line
        if isinstance(error, DiskFullError) or no_room(error):
            told = str(error) if isinstance(error, DiskFullError) else _system_reason(error)
            return _failed(error, f"{told}; make room, then give the same command again: {kept}", USER_MISTAKE)
        if isinstance(error, GateError):
            return _failed(error, str(error), REFUSED)
        if isinstance(error, _mistakes()):
            return _failed(error, str(error), USER_MISTAKE)
        if isinstance(error, _loaded(LOST_WORKER)):
            return _failed(error, str(error), UNEXPECTED)
        if isinstance(error, OSError):
            return _failed(error, _system_reason(error), USER_MISTAKE)
        hint = "; set TOWERS_DEBUG=1 for the traceback"
        return _failed(error, f"unexpected {type(error).__name__}: {error}{hint}", UNEXPECTED)
    if code == INTERRUPTED:
        say(f"interrupted; {kept}")
    return code if isinstance(code, int) else 0


@contextmanager
def sigterm_as_ctrl_c() -> Iterator[None]:
    """Lets SIGTERM, which a machine that is about to be taken away sends, end a command as Ctrl-C does.

    A second SIGTERM is ignored: it would interrupt the saving that the first one began.
    """

    def interrupt(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _mistakes() -> tuple[type[Exception], ...]:
    return (BusyError, DataError, BundleError, RequestError, OutputExistsError, *_loaded(*MODEL_MISTAKES))


def _loaded(*errors: tuple[str, str]) -> tuple[type[Exception], ...]:
    # `towers serve` must not load `towers`; a module that was never loaded cannot have raised its error.
    return tuple(getattr(sys.modules[module], name) for module, name in errors if module in sys.modules)


def _failed(error: Exception, message: str, code: int) -> int:
    if os.environ.get("TOWERS_DEBUG"):
        traceback.print_exception(error)
    say("error: " + " ".join(line.strip() for line in message.splitlines() if line.strip()))
    return code


def _help_hint(error: TyperException) -> str:
    context = getattr(error, "ctx", None)
    return f" (see {context.command_path} --help)" if context else ""


def _system_reason(error: Exception) -> str:
    # "[Errno 28] No space left on device: 'x'" reversed, because all other messages here name the file first.
    if isinstance(error, OSError) and error.filename and error.strerror:
        return f"{error.filename}: {error.strerror}"
    return str(error)
