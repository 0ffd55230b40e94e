"""Turns the errors of a full disk into one that names the path, whichever library was writing."""

import errno
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

REASONS = {number: os.strerror(number) for number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)}
SQLITE = "database or disk is full"
# NumPy reports only the counts, not the reason.
SHORT = re.compile(r"\d+ requested and \d+ written")


class DiskFullError(Exception):
    """There is no space for an output. The message names its path and the system's reason.

    Args:
        path: the output path.
        reason: the system's reason.
    """

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.reason = reason


def no_room(error: BaseException) -> str | None:
    """The reason, if an error means a full disk: no space, a quota, a limit on file sizes; else None.

    TensorFlow and Polars wrap the system's error in their own, so its text counts as well as its number. Optuna raises
    others for SQLite's, so the errors that led to this one count, too.
    """
    if isinstance(error, OSError):
        if error.errno in REASONS:
            return REASONS[error.errno]
        if SHORT.fullmatch(str(error)):
            return "the disk took only a part (no space left, a quota, or a limit on the size of files)"
    told = str(error).replace(SQLITE, REASONS[errno.ENOSPC])
    if reason := next((reason for reason in REASONS.values() if reason in told), None):
        return reason
    before = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return None if before is None else no_room(before)


@contextmanager
def telling_full_disk(path: Path) -> Iterator[None]:
    """Turns any error of a full disk raised inside into one.

    Args:
        path: the output path.

    Raises:
        DiskFullError: there is no space for it.
    """
    try:
        yield
    except DiskFullError as error:
        # Raised for a part of the output, at a path that the user does not know.
        raise DiskFullError(path, error.reason) from error
    except Exception as error:
        reason = no_room(error)
        if reason is None:
            raise
        raise DiskFullError(path, reason) from error
