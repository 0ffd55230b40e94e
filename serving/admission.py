"""Who is let in: how many requests a worker works on, and who is refused before the line costs anyone their latency.

In: each request when its headers are complete, and when it is over. Out: in, or the limit that says no.

How many requests are too many depends on what they ask, so it is measured. The time of a request that came while
nothing else was worked on is the time in calm. A burst may use the whole of `max_concurrent`. Where answers take more
than `max_slowdown` times the time in calm, and that for 250 ms on end, it is no burst but a standing line: from then on
only as many are let in as keep to it (more while it holds, fewer when it does not), until all of them fit again. While
a bundle is opened answers take longer for a moment, and nobody is refused for that.

The ideas: a standing line apart from a burst by its age, Nichols and Jacobson, "Controlling queue delay", ACM Queue
2012; the limit from the time in calm, Brakmo and Peterson, "TCP Vegas", IEEE JSAC 1995.
"""

import math
import time
from collections.abc import Callable

from serving.pace import is_working

BURST_S = 0.25
STEP_S = 0.01  # between two looks at the limit
LEAST = 8  # requests that are let in always
LEAST_S = 1e-6  # of a request, by a clock that may be coarse
CALM = 2  # a request that comes to no more than one other is in calm
# Of each such time in their mean: more of short ones, since what makes one longer is seldom the request itself.
CALM_DOWN, CALM_UP, CALM_MOST = 0.02, 0.005, 3.0
FEWER, MORE = 0.85, 1.05
# What can be refused at once is a share of the processor, a third where a refusal takes 30 µs. Callers who obey
# Retry-After stay far below; the others have their next request read later (`serving.limited_protocol`).
REFUSALS_PER_S = 12_000
REFUSALS_AT_ONCE = 1_000


class Admission:
    """The count of what a worker works on. Only the event loop's thread calls it.

    Attributes:
        in_flight: requests let in and not over.
        heavy: those of them that are heavy.
        limit: how many others are let in.
        calm_s: seconds in calm, by kind of work.

    Args:
        max_concurrent: requests in flight.
        max_heavy: of these, heavy ones. They hold threads and the processor long, so few of them suffice; what is left
            of the threads is for single recalls.
        max_slowdown: how many times their time in calm requests may take.
        clock: seconds.
    """

    def __init__(
        self,
        max_concurrent: int,
        max_heavy: int,
        max_slowdown: float,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.max_concurrent, self.max_heavy, self.max_slowdown = max_concurrent, max_heavy, max_slowdown
        self.clock = clock
        self.in_flight = self.heavy = 0
        self.limit = float(max_concurrent)
        self.calm_s: dict[str, float] = {}
        self._slowdowns, self._over, self._most = 0.0, 0, 0  # since the last look at the limit
        now = clock()
        self._looked_at = self._fitted_at = self._allowed_at = now
        self._allowed = float(REFUSALS_AT_ONCE)

    @property
    def strict(self) -> bool:
        """Whether there is a standing line."""
        return self.limit < self.max_concurrent

    @property
    def room(self) -> bool:
        """Whether a request that is not heavy would be let in now."""
        return self.in_flight < self.max_concurrent and self.in_flight - self.heavy < self.limit

    def enter(self, heavy: bool, late: bool = False) -> str | None:
        """Lets a request in, or not.

        Args:
            heavy: whether it is of the heavy kind.
            late: it has waited already, unread, because its connection was held.

        Returns:
            None, or the name of the limit that refuses it. After None call `leave` once.
        """
        reason = self.refusal(heavy, late)
        if reason is None:
            self.in_flight += 1
            if heavy:
                self.heavy += 1
            else:
                self._most = max(self._most, self.in_flight - self.heavy)
        return reason

    def refusal(self, heavy: bool, late: bool = False) -> str | None:
        """What `enter` would say; counts nothing."""
        if self.in_flight >= self.max_concurrent:
            return "concurrency"
        if heavy:
            return "heavy" if self.heavy >= self.max_heavy else None
        return "wait" if self.in_flight - self.heavy >= self.limit or (late and self.strict) else None

    def leave(self, heavy: bool, since: float, others: int, kind: str = "") -> None:
        """A request that was let in is over, with the threads that it used.

        Args:
            heavy: as it entered.
            since: when it entered, by the clock.
            others: requests that were in flight then, with itself.
            kind: of work, found while it was answered; each kind has its own time in calm.
        """
        self.in_flight -= 1
        if heavy:
            self.heavy -= 1
            return
        now = self.clock()
        taken_s = max(now - since, LEAST_S)
        calm_s = self.calm_s.get(kind)
        if calm_s is None:
            # Nothing is known yet. Of the others some were waited for, some went with it in one batch: between the two.
            self.calm_s[kind] = calm_s = taken_s / math.sqrt(others)
        elif others <= CALM and self.in_flight < CALM and not self.strict:
            # Both at its ends: the first of a burst comes alone, and leaves with all of it behind.
            share = CALM_DOWN if taken_s < calm_s else CALM_UP
            self.calm_s[kind] = calm_s = calm_s + share * (min(taken_s, CALM_MOST * calm_s) - calm_s)
        self._slowdowns += taken_s / calm_s
        self._over += 1
        if now - self._looked_at >= STEP_S:
            self._look(now)

    def may_refuse_at_once(self) -> bool:
        """Counts a refusal; False where so many came lately that the next request of its caller should wait unread."""
        now = self.clock()
        self._allowed = min(REFUSALS_AT_ONCE, self._allowed + (now - self._allowed_at) * REFUSALS_PER_S)
        self._allowed_at = now
        self._allowed -= 1  # below 0 too: whoever was held is refused in any case, and is counted here
        return self._allowed >= 0

    def _look(self, now: float) -> None:
        slowdown, most = self._slowdowns / self._over, self._most
        self._slowdowns, self._over, self._most, self._looked_at = 0.0, 0, 0, now
        if slowdown <= self.max_slowdown or is_working():
            self._fitted_at = now
            self.limit = min(float(self.max_concurrent), MORE * self.limit)
        elif self.strict or now - self._fitted_at > BURST_S:
            self.limit = max(float(min(LEAST, self.max_concurrent)), FEWER * min(self.limit, max(most, LEAST)))
