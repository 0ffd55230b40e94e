"""Limits the single recalls that wait in a worker, so that those it accepts are answered soon."""

import asyncio
import math
from time import perf_counter

# Demand beyond the short limit for BURST_S, without a gap of GAP_S, is a standing queue; AFTER_S without it ends that.
# A second: opening a bundle takes half a core for about as long, and must refuse nobody at half load.
BURST_S, GAP_S, AFTER_S = 1.0, 0.05, 0.5
OVERFLOW_S = 0.05  # A queue that fills all its places is no burst that will pass.
SHORT_S = 0.015  # a standing queue that is answered within this time delays nobody much
# A flood refuses more than it answers. Each turn of the event loop then brings mostly requests to refuse, and those it
# accepts wait for that, too.
FLOOD_S, FLOOD_LEAST = 0.005, 4
TURN_S = 0.004  # After a longer turn even more requests have come: fewer are accepted until they are refused.
RATE_S = 0.1  # answers and refusals are counted for this long


class Line:
    """Limits the single recalls in the queue: a burst may fill it, a standing queue only a part of it.

    That part is as many as were last answered in SHORT_S, at least an eighth of the queue: by Little's law each then
    waits for about that time. In a flood it is as many as were answered in FLOOD_S, and FLOOD_LEAST after a long turn.

    Attributes:
        flooded: whether more recalls were last refused than answered; `time_turn` is to be called in each turn.

    Args:
        most: places in the queue.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._short = self._least = max(2 * FLOOD_LEAST, most // 8)
        self._since = self._asked_at = self._counted_at = -math.inf
        self._stands, self._left, self._refused = False, 0, 0
        self.flooded, self._turn_s, self._timing = False, 0.0, False

    def leave(self) -> None:
        """Counts a recall that has been answered."""
        self._left += 1

    def time_turn(self, loop: asyncio.AbstractEventLoop) -> None:
        """Measures the rest of this turn of the event loop; further calls in the same turn change nothing."""
        if not self._timing:
            self._timing = True
            loop.call_soon(self._turned, perf_counter())

    def has_room(self, count: int, now: float) -> bool:
        """Whether one more may join `count` recalls at time `now`, in seconds."""
        if now - self._counted_at > RATE_S:
            self.flooded = self._refused > self._left
            seconds, least = (FLOOD_S, FLOOD_LEAST) if self.flooded else (SHORT_S, self._least)
            self._short = max(least, round(self._left / (now - self._counted_at) * seconds))
            self._left, self._refused, self._counted_at = 0, 0, now
        if count < (FLOOD_LEAST if self.flooded and self._turn_s > TURN_S else self._short):
            return True
        if now - self._asked_at > (AFTER_S if self._stands else GAP_S):
            self._since = now
        if count >= self._most:
            self._since = min(self._since, now - BURST_S + OVERFLOW_S)
        self._asked_at, self._stands = now, now - self._since > BURST_S
        room = not self._stands and count < self._most
        self._refused += not room
        return room

    def _turned(self, since: float) -> None:
        self._turn_s, self._timing = perf_counter() - since, False
