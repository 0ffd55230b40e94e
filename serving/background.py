"""Pauses long background work after each step, so that requests are not delayed.

The work then takes three times as long.
"""

import time
from collections.abc import Callable

# Seconds of pause per second of CPU time. Python's threads share one interpreter: a thread that never pauses takes up
# to half of it from the event loop, which then saturates at half the load.
REST = 2.0

OPENING = "reload"  # the name of the thread that opens bundles beside those that answer

Rest = Callable[[], None]


def no_pause() -> None:
    """Does not pause: no requests are waiting."""


def yielding_to_requests() -> Rest:
    """Returns the pause to call after each step of the work that starts now, in the same thread."""
    since = time.thread_time()

    def rest() -> None:
        nonlocal since
        time.sleep(REST * (time.thread_time() - since))
        since = time.thread_time()

    return rest
