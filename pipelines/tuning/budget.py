"""Tracks a search's time budget: the seconds used by this process and by earlier, interrupted ones.

The seconds used are kept in a file. Without a budget there is no clock: costs are counted in epochs, and the same seed
gives the same search on any machine.
"""

import math
import time
from pathlib import Path

from serving.files.staging import staged

SAVE_EVERY_S = 5.0


class Clock:
    """Counts seconds from `begun`.

    Args:
        budget_s: total seconds; None for no limit.
        file: stores the seconds used.
        begun: start, as of `time.monotonic`.
    """

    def __init__(self, budget_s: float | None, file: Path, begun: float) -> None:
        self.budget_s = math.inf if budget_s is None else budget_s
        self._file = file
        self._before = float(file.read_text(encoding="utf-8")) if file.exists() else 0.0
        self._started = self._saved = begun

    @property
    def timed(self) -> bool:
        """Whether there is a budget; otherwise costs are epochs."""
        return math.isfinite(self.budget_s)

    def used(self) -> float:
        """Seconds used, including earlier processes."""
        return self._before + time.monotonic() - self._started

    def left(self) -> float:
        """Seconds left of the budget."""
        return self.budget_s - self.used()

    def save(self, *, now: bool = False) -> None:
        """Stores the seconds used, every few seconds or `now`."""
        if now or time.monotonic() - self._saved >= SAVE_EVERY_S:
            self._saved = time.monotonic()
            with staged(self._file, overwrite=True) as half:
                half.write_text(repr(self.used()), encoding="utf-8")
