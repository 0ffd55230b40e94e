"""One process at a time in a working directory: a lock that goes with the process, however that ends.

In: the directory. Out: it exists and is held, or a `DataError`.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pipelines.errors import DataError


@contextmanager
def alone(directory: Path, busy: str) -> Iterator[None]:
    """Makes the directory where it is not there and holds a lock on it.

    Args:
        directory: may be renamed or removed while it is held.
        busy: what the error says where another process holds it.

    Raises:
        DataError: another process holds it.
    """
    while True:
        directory.mkdir(parents=True, exist_ok=True)
        try:
            handle = os.open(directory, os.O_RDONLY)
        except FileNotFoundError:
            continue  # The process that held it has just finished with it.
        try:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise DataError(busy) from None
            if not _is_at(handle, directory):
                continue  # Gone between its opening and its locking: a lock that nobody else would see.
            yield
            return
        finally:
            os.close(handle)


def _is_at(handle: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), path.stat())
    except FileNotFoundError:
        return False
