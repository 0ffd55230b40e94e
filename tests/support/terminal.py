"""A terminal for this process's stderr, and files for its two streams, both below Python: C++ writes there, too."""

import os
import pty
import re
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

# Colours, movements of the cursor, and what else a terminal obeys; a line feed is none.
CONTROL = re.compile(r"\x1b|[\x00-\x08\x0b-\x1f\x7f]")
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


@dataclass
class Streams:
    """What a command wrote; filled when the context ends."""

    out: str = ""
    err: str = ""


@contextmanager
def streams(*, terminal: bool = False) -> Iterator[Streams]:
    """Catches descriptors 1 and 2 and the two streams of Python; with `terminal`, descriptor 2 is one."""
    held = Streams()
    master, slave = pty.openpty() if terminal else (-1, -1)
    parts: list[bytes] = []
    reader = threading.Thread(target=_read, args=(master, parts))
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        before = sys.stdout, sys.stderr, os.dup(1), os.dup(2)
        os.dup2(out.fileno(), 1)
        os.dup2(slave if terminal else err.fileno(), 2)
        if terminal:
            os.close(slave)
            reader.start()
        sys.stdout, sys.stderr = (os.fdopen(fd, "w", encoding="utf-8", closefd=False) for fd in (1, 2))
        try:
            yield held
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            sys.stdout, sys.stderr = before[:2]
            for fd, kept in enumerate(before[2:], start=1):
                os.dup2(kept, fd)
                os.close(kept)
            if terminal:
                reader.join()  # the terminal ends with its last descriptor
                os.close(master)
            out.seek(0)
            err.seek(0)
            held.out = out.read().decode()
            held.err = b"".join(parts).decode() if terminal else err.read().decode()


def _read(master: int, parts: list[bytes]) -> None:
    try:
        while part := os.read(master, 65_536):
            parts.append(part)
    except OSError:
        pass  # so a terminal ends on Linux
