"""Long work beside answers: after each piece it rests, so that whoever was held up meanwhile catches up.

In: a thread's work, in pieces. Out: the same work, over three times the time; and whether there is any now.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

# Rested for each second of the processor. Python's threads share one interpreter: a thread that works without a rest
# takes up to half of it from the event loop, and at half of its saturation a line builds up.
REST = 2.0

Rest = Callable[[], None]

_lock = threading.Lock()
_works = 0


def at_once() -> None:
    """No rest: nobody waits."""


@contextmanager
def beside_answers() -> Iterator[Rest]:
    """Gives what to call after each piece of the work within, from the thread that does it."""
    global _works
    since = time.thread_time()

    def rest() -> None:
        nonlocal since
        time.sleep(REST * (time.thread_time() - since))
        since = time.thread_time()

    with _lock:
        _works += 1
    try:
        yield rest
    finally:
        with _lock:
            _works -= 1


def is_working() -> bool:
    """Whether any such work goes on in this process: answers then take longer, and soon take what they took before."""
    return _works > 0
