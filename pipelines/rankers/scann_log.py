"""Keeps ScaNN's start-up messages off stderr while it builds an index.

Its C++ code prints information and warnings of its own (``I0000 …``, ``W0000 …``) to descriptor 2 and reads no setting
that turns them off. A process of its own drops those lines and passes on everything else, errors and the last words of
a crash included, which a thread of this process would lose with it.
"""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

STARTUP = re.compile(rb"WARNING: All log messages before absl::InitializeLog\(\)|[IW]\d{4} [^]]*\.(cc|h):\d+\] ")


@contextmanager
def without_scann_log() -> Iterator[None]:
    """Filters descriptor 2 of this process."""
    stderr = os.dup(2)
    try:
        read, write = os.pipe()
        # In a session of its own, so that Ctrl-C does not end it before the command has said what is kept.
        with subprocess.Popen([sys.executable, "-IS", __file__], stdin=read, stdout=stderr, start_new_session=True):
            os.close(read)
            os.dup2(write, 2)
            os.close(write)
            try:
                yield
            finally:
                os.dup2(stderr, 2)  # closes the pipe, at whose end the process ends
    finally:
        os.close(stderr)


if __name__ == "__main__":
    for line in sys.stdin.buffer:
        if not STARTUP.match(line):
            sys.stdout.buffer.write(line)
            sys.stdout.buffer.flush()
