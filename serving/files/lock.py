"""Locks a working directory for one process at a time; the lock ends with the process, however that ends."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class BusyError(Exception):
    """Another process works in the directory."""


@contextmanager
def exclusive(directory: Path, busy: str) -> Iterator[None]:
    """Creates the directory if needed and holds a lock on it.

    Args:
        directory: may be renamed or removed while locked.
        busy: the error message if another process holds the lock.

    Raises:
        BusyError: another process holds the lock.
    """
    while True:
        directory.mkdir(parents=True, exist_ok=True)
        try:
            handle = os.open(directory, os.O_RDONLY)
        except FileNotFoundError:
            continue  # The process that held the lock has just removed the directory.
        try:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise BusyError(busy) from None
            if not _is_at(handle, directory):
                continue  # Removed between open and lock: no other process would see this lock.
            yield
            return
        finally:
            os.close(handle)


def _is_at(handle: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), path.stat())
    except FileNotFoundError:
        return False
