"""SIGTERM before a server handles it, and after the parent's end. Imports nothing slow: it is there before all else."""

import ctypes
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

PR_SET_PDEATHSIG = 1  # of prctl(2)


def end_with_parent() -> None:
    """Lets a child hear SIGTERM where nobody is left to send it, as its parent was killed; a `preexec_fn`."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def end_by(sig: int, frame: FrameType | None) -> None:
    """Ends the process by a signal, as if nothing handled it."""
    signal.signal(sig, signal.SIG_DFL)
    signal.raise_signal(sig)
    os._exit(0)  # the first process of a container, which such a signal does not end


@contextmanager
def sigterm_ends() -> Iterator[None]:
    """Lets SIGTERM end the process before a server handles it: process 1, as in a container, would not hear it."""
    before = signal.signal(signal.SIGTERM, end_by)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
