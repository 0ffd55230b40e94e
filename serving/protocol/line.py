"""Limits the single recalls that wait in a worker, so that those it accepts are answered soon."""

import math

# Demand beyond the short limit for BURST_S, without a gap of GAP_S, is a standing queue; AFTER_S without it ends that.
# A second: opening a bundle takes half a core for about as long, and must refuse nobody at half load.
BURST_S, GAP_S, AFTER_S, LEAST = 1.0, 0.05, 0.5, 8
OVERFLOW_S = 0.1  # A queue that fills all its places is no burst that will pass.
SHORT_S = 0.015  # a standing queue that is answered within this time delays nobody much
RATE_S = 0.25  # answers and refusals are counted for this long


class Line:
    """Limits the single recalls in the queue: a burst may fill it, a standing queue only a part of it.

    That part is as many as were last answered in SHORT_S: by Little's law each then waits for about that time. Where
    more are refused than answered it is half of that, because each turn of the event loop then lasts longer. It is at
    least an eighth of the queue.

    Args:
        most: places in the queue.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._short = self._least = max(LEAST, most // 8)
        self._since = self._asked_at = self._counted_at = -math.inf
        self._stands, self._left, self._refused = False, 0, 0

    def leave(self) -> None:
        """Counts a recall that has been answered."""
        self._left += 1

    def has_room(self, count: int, now: float) -> bool:
        """Whether one more may join `count` recalls at time `now`, in seconds."""
        if now - self._counted_at > RATE_S:
            seconds = SHORT_S / 2 if self._refused > self._left else SHORT_S
            self._short = max(self._least, int(self._left / (now - self._counted_at) * seconds))
            self._left, self._refused, self._counted_at = 0, 0, now
        if count < self._short:
            return True
        if now - self._asked_at > (AFTER_S if self._stands else GAP_S):
            self._since = now
        if count >= self._most:
            self._since = min(self._since, now - BURST_S + OVERFLOW_S)
        self._asked_at, self._stands = now, now - self._since > BURST_S
        room = not self._stands and count < self._most
        self._refused += not room
        return room
