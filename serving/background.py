"""Long work beside requests: pauses after each step and each failure, and values that many threads want and one makes.

With pauses the work takes three times as long, and delays no request.
"""

import threading
import time
from collections.abc import Callable
from typing import Any, Generic, TypeVar, overload

# Seconds of pause per second of CPU time. Python's threads share one interpreter: a thread that never pauses takes up
# to half of it from the event loop, which then saturates at half the load.
REST = 2.0

LONGEST_PAUSE_S = 60.0  # between two attempts

OPENING = "reload"  # the name of the thread that opens bundles beside those that answer

Rest = Callable[[], None]
T = TypeVar("T")


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


class Pauses:
    """When something is tried again that failed: at once, or after `first_s` seconds, then after longer pauses.

    A failure may pass within a moment. What goes on failing must not be worked on five times a second.
    """

    def __init__(self, first_s: float = 0.0) -> None:
        self._next_s, self._again_at = first_s, 0.0

    def fail(self) -> None:
        """Notes a failure."""
        self._again_at = time.monotonic() + self._next_s
        self._next_s = min(2 * self._next_s + 1, LONGEST_PAUSE_S)

    def waits(self) -> bool:
        """Whether it is too early for another attempt."""
        return time.monotonic() < self._again_at


class Once(Generic[T]):
    """`functools.cached_property` as it was before Python 3.12: with a lock, so that no value is made twice.

    For values that take much time and memory, and that many threads want at the same moment.
    """

    def __init__(self, make: Callable[[Any], T]) -> None:
        self._make, self._lock = make, threading.RLock()
        self.__doc__ = make.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, instance: None, owner: type) -> "Once[T]": ...
    @overload
    def __get__(self, instance: object, owner: type) -> T: ...
    def __get__(self, instance: object | None, owner: type) -> "Once[T] | T":
        if instance is None:
            return self
        own = vars(instance)  # where Python finds it from then on, without a call of this
        with self._lock:
            if self._name not in own:
                own[self._name] = self._make(instance)
        value: T = own[self._name]
        return value
