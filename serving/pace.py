"""Pauses long work in the background after each piece, so that requests are not delayed.

In: a thread's work, in pieces. Out: the same work, over three times the time.
"""

import time
from collections.abc import Callable

# Rested for each second of the processor. Python's threads share one interpreter: a thread that works without a rest
# takes up to half of it from the event loop, and at half of its saturation a line builds up.
REST = 2.0

Rest = Callable[[], None]


def at_once() -> None:
    """No rest: nobody waits."""


def beside_answers() -> Rest:
    """What to call after each piece of the work that begins now, from the thread that does it."""
    since = time.thread_time()

    def rest() -> None:
        nonlocal since
        time.sleep(REST * (time.thread_time() - since))
        since = time.thread_time()

    return rest
