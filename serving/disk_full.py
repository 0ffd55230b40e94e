"""A full disk, told in one line, whichever library was writing.

In: what was raised while a path was written. Out: a `DiskFullError` that names the path; anything else as it came.
"""

import errno
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

REASONS = {number: os.strerror(number) for number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)}
# NumPy tells the count alone, and not the reason.
SHORT = re.compile(r"\d+ requested and \d+ written")


class DiskFullError(Exception):
    """There is no room for an output. The message names its path and the system's reason.

    Args:
        path: the output.
        reason: in the system's words.
    """

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.reason = reason


def no_room(error: BaseException) -> str | None:
    """Why the system took no more, where that is what went wrong: no space, a quota, a limit on the size of files.

    TensorFlow and Polars wrap the system's error in their own, so its words count as its number does.
    """
    if isinstance(error, OSError):
        if error.errno in REASONS:
            return REASONS[error.errno]
        if SHORT.fullmatch(str(error)):
            return "the disk took only a part (no space left, a quota, or a limit on the size of files)"
    return next((reason for reason in REASONS.values() if reason in str(error)), None)


@contextmanager
def telling_full_disk(path: Path) -> Iterator[None]:
    """Turns whatever a full disk raises inside into one error.

    Args:
        path: what is being written.

    Raises:
        DiskFullError: there is no room for it.
    """
    try:
        yield
    except DiskFullError as error:
        # Of a part, which lies where nobody looks.
        raise DiskFullError(path, error.reason) from error
    except Exception as error:
        reason = no_room(error)
        if reason is None:
            raise
        raise DiskFullError(path, reason) from error
