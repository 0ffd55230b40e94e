"""SIGTERM before a server handles it. Imports nothing slow: it is there before all else of a start."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


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
