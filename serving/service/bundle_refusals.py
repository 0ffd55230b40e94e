"""Refusals of bundles that could not be opened: until when each stands, and which faults pass by themselves."""

import errno
import os
from pathlib import Path

from pydantic import ConfigDict

from serving.background import Pauses
from serving.service.look import Refusal

# Inode, mtime and size of a file: they change with every write.
Stamp = tuple[int, int, int] | None
# Faults of the machine, not of the bundle: no free file handle, no memory or thread, a disk that does not answer.
NUMBERS = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN, errno.EIO, errno.ESTALE, errno.ETIMEDOUT)
REASONS = (*(os.strerror(number) for number in NUMBERS), "can't start new thread")  # the latter is Python's own
FIRST_PAUSE_S = 1.0  # a whole bundle is opened


def passes(error: BaseException | None) -> bool:
    """Whether an error, or one that led to it, is a fault that may pass.

    The reader of a file tells what it could not open in an error of its own, TensorFlow and Polars without the number:
    so the errors before it count, and their texts.
    """
    known = set[int]()  # an error may be its own cause
    while error is not None and id(error) not in known:
        known.add(id(error))
        if isinstance(error, MemoryError) or any(reason in str(error) for reason in REASONS):
            return True
        error = error.__cause__ or error.__context__
    return False


class BundleRefusal(Refusal):
    """Also the stamps of `active.json` and the bundle's manifest then, and the pauses after a fault that may pass.

    Attempts in a row share one `Pauses`: their refusals are equal, and told once.
    """

    model_config = ConfigDict(arbitrary_types_allowed=True)

    stamps: tuple[Stamp, Stamp]
    pauses: Pauses | None = None

    def stands(self, stamps: tuple[Stamp, Stamp]) -> bool:
        """Whether another attempt with these stamps is useless, or too early."""
        return self.stamps == stamps and (self.pauses is None or self.pauses.waits())


def stamp_of(path: Path) -> Stamp:
    """The stamp of a file; None if there is none."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size
