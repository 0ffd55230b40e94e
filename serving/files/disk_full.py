"""Turns the errors of a full disk into one that names the path, whichever library was writing."""

import errno
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

REASONS = {number: os.strerror(number) for number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)}
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

    TensorFlow and Polars wrap the system's error in their own, so its text counts as well as its number.
    """
    if isinstance(error, OSError):
        if error.errno in REASONS:
            return REASONS[error.errno]
        if SHORT.fullmatch(str(error)):
            return "the disk took only a part (no space left, a quota, or a limit on the size of files)"
    return next((reason for reason in REASONS.values() if reason in str(error)), None)


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
