"""What a search may use, and what it has used: seconds of this process and of those before it that were cut off.

In: a budget. Out: seconds left, kept in a file. Without a budget there is no clock: trials are counted in epochs, and
the same seed gives the same search on any machine.
"""

import math
import time
from pathlib import Path

from serving.staging import staged

SAVE_EVERY_S = 5.0


class Clock:
    """Counts from `begun` on.

    Args:
        budget_s: seconds in all; None: there is no end.
        file: where the seconds used are kept.
        begun: by `time.monotonic`.
    """

    def __init__(self, budget_s: float | None, file: Path, begun: float) -> None:
        self.budget_s = math.inf if budget_s is None else budget_s
        self._file = file
        self._before = float(file.read_text(encoding="utf-8")) if file.exists() else 0.0
        self._started = self._saved = begun

    @property
    def timed(self) -> bool:
        """Whether there is a budget; without one costs are epochs."""
        return math.isfinite(self.budget_s)

    def used(self) -> float:
        """Seconds, those of earlier processes included."""
        return self._before + time.monotonic() - self._started

    def left(self) -> float:
        """Seconds until the budget is used up."""
        return self.budget_s - self.used()

    def save(self, *, now: bool = False) -> None:
        """Keeps what was used, every few seconds or `now`."""
        if now or time.monotonic() - self._saved >= SAVE_EVERY_S:
            self._saved = time.monotonic()
            with staged(self._file, overwrite=True) as half:
                half.write_text(repr(self.used()), encoding="utf-8")
