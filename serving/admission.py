"""Who is let in: how many requests a worker works on, and who is refused before the line costs anyone their latency.

In: each request when its headers are complete, and when it is over. Out: in, or the limit that says no.

How many requests are too many depends on what they ask, so it is measured. The time of a request that came while
nothing else was worked on is the time in calm. A burst may use the whole of `max_concurrent`. Where answers take more
than `max_slowdown` times the time in calm, and that for 100 ms on end, it is no burst but a standing line: from then on
only as many are let in as keep to it (more while it holds, fewer when it does not), until all of them fit again.

The ideas: a standing line apart from a burst by its age, Nichols and Jacobson, "Controlling queue delay", ACM Queue
2012; the limit from the time in calm, Brakmo and Peterson, "TCP Vegas", IEEE JSAC 1995.
"""

import time
from collections.abc import Callable

BURST_S = 0.1
STEP_S = 0.01  # between two looks at the limit
LEAST = 6  # requests that are let in always
CALM = 2  # a request that comes to no more than one other is in calm
CALM_SHARE = 0.01  # of each such time in their mean
FEWER, MORE = 0.85, 1.05
# What can be refused at once is a share of the processor, about a quarter where a refusal takes 30 µs. Callers who obey
# Retry-After stay far below; the others have their next request read later (`serving.limited_protocol`).
REFUSALS_PER_S = 8_000
REFUSALS_AT_ONCE = 1_000


class Admission:
    """The count of what a worker works on. Only the event loop's thread calls it.

    Attributes:
        in_flight: requests let in and not over.
        heavy: those of them that are heavy.
        limit: how many others are let in.

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
        self.calm_s: float | None = None
        self._taken_s, self._over, self._most = 0.0, 0, 0  # since the last look at the limit
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
        if self.in_flight >= self.max_concurrent:
            return "concurrency"
        if heavy:
            if self.heavy >= self.max_heavy:
                return "heavy"
            self.heavy += 1
        else:
            if not self.room or (late and self.strict):
                return "wait"
            self._most = max(self._most, self.in_flight - self.heavy + 1)
        self.in_flight += 1
        return None

    def leave(self, heavy: bool, since: float, others: int) -> None:
        """A request that was let in is over, with the threads that it used.

        Args:
            heavy: as it entered.
            since: when it entered, by the clock.
            others: requests that were in flight then, with itself.
        """
        self.in_flight -= 1
        if heavy:
            self.heavy -= 1
            return
        now = self.clock()
        taken_s = now - since
        if others <= CALM and not self.strict:
            self.calm_s = taken_s if self.calm_s is None else self.calm_s + CALM_SHARE * (taken_s - self.calm_s)
        self._taken_s += taken_s
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
        mean_s, most = self._taken_s / self._over, self._most
        self._taken_s, self._over, self._most, self._looked_at = 0.0, 0, 0, now
        slow = self.calm_s is not None and mean_s > self.max_slowdown * self.calm_s
        if not slow:
            self._fitted_at = now
            self.limit = min(float(self.max_concurrent), MORE * self.limit)
        elif self.strict or now - self._fitted_at > BURST_S:
            self.limit = max(float(min(LEAST, self.max_concurrent)), FEWER * min(self.limit, max(most, LEAST)))
