"""The clock of a search: seconds used of its budget, in this process and in those before."""

import math
import time

from optuna import Study

SAVE_EVERY_S = 5.0
USED = "seconds used"  # attribute of the study


class Clock:
    """Counts seconds from `begun`, as of `time.monotonic`; `budget_s` is None for no limit; `study` stores them."""

    def __init__(self, budget_s: float | None, study: Study, begun: float) -> None:
        self.budget_s = math.inf if budget_s is None else budget_s
        self._study = study
        self._before = float(study.user_attrs.get(USED, 0.0))
        self._begun = self._saved = begun

    @property
    def timed(self) -> bool:
        """Whether there is a budget; otherwise costs are epochs."""
        return math.isfinite(self.budget_s)

    def used(self) -> float:
        """Seconds used, including earlier processes."""
        return self._before + time.monotonic() - self._begun

    def left(self) -> float:
        """Seconds left of the budget; infinity without one."""
        return self.budget_s - self.used()

    def save(self, *, now: bool = False) -> None:
        """Stores the seconds used, every few seconds or `now`."""
        if now or time.monotonic() - self._saved >= SAVE_EVERY_S:
            self._saved = time.monotonic()
            self._study.set_user_attr(USED, self.used())
