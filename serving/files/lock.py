"""Locks a working directory for one process at a time; the lock ends with the process, however that ends."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from serving.files.staging import remove


class BusyError(Exception):
    """Another process works in the directory."""


@contextmanager
def exclusive(directory: Path, busy: str, file: str | None = None, *, create: bool = True) -> Iterator[None]:
    """Holds a lock on a directory.

    Args:
        directory: may be renamed or removed while locked.
        busy: the error message if another process holds the lock.
        file: the name of a file in it that is locked and stays. A lock of the directory itself is unknown to other
            machines of a network file system.
        create: makes the directory if needed. Not one that another command made: empty, it would pass for its output.

    Raises:
        BusyError: another process holds the lock.
        FileNotFoundError: there is no such directory, and it is not to be made.
    """
    place, flags = (directory, os.O_RDONLY) if file is None else (directory / file, os.O_RDWR | os.O_CREAT)
    while True:
        if create:
            directory.mkdir(parents=True, exist_ok=True)
        try:
            handle = os.open(place, flags, 0o666)
        except FileNotFoundError:
            if not create:
                raise
            continue  # The process that held the lock has just removed the directory.
        try:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise BusyError(busy) from None
            if not _is_at(handle, place):
                continue  # Removed between open and lock: no other process would see this lock.
            yield
            return
        finally:
            os.close(handle)


@contextmanager
def waited(file: Path) -> Iterator[None]:
    """Waits for a lock on a file that stays, in a folder that several users may write to, and holds it."""
    try:
        handle = os.open(file, os.O_RDWR | os.O_CREAT, 0o666)
    except PermissionError:  # another user's; a network file system locks none that cannot be written
        handle = os.open(file, os.O_RDONLY)
    try:
        with suppress(PermissionError):
            os.fchmod(handle, 0o666)  # whatever the umask: it holds nothing
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def empty(directory: Path, file: str) -> None:
    """Removes all that a directory holds whose lock is that of `file`: this last, or another process that makes a new
    one would find something left."""
    for each in sorted(directory.iterdir(), key=lambda path: path.name == file):
        remove(each)


def remove_empty(directory: Path) -> None:
    """Removes a directory after `empty`, unlocked: a network file system keeps a file that is removed while open."""
    with suppress(OSError):  # another process has come
        directory.rmdir()


def _is_at(handle: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), path.stat())
    except FileNotFoundError:
        return False
