"""What a run of the load generator found.

In: latencies, statuses and moments of all answers. Out: rates and percentiles, by status and by time.
"""

from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np

PERCENTILES = (50, 90, 99, 99.9)


@dataclass(frozen=True)
class Result:
    """One run.

    Attributes:
        seconds: how long requests were sent.
        sent: requests.
        at: float64 [answers], seconds since the start at which each request was due (closed loop: was sent).
        latency_ms: float64 [answers], from then to the whole answer.
        status: int16 [answers].
        errors: requests without an answer, by reason.
        unasked: statuses that came on a connection without a request, such as that of a refused connection.
        wrong: answers of status 200 that were not what was expected.
        waited: requests that found no connection free (open loop).
        lag_ms: how late the generator itself sent each of the others (open loop).
        turn_ms: how long each turn of its loop took; an answer may have waited as long before it was seen.
    """

    seconds: float
    sent: int
    at: np.ndarray
    latency_ms: np.ndarray
    status: np.ndarray
    errors: dict[str, int]
    unasked: dict[int, int]
    wrong: int
    waited: int
    lag_ms: np.ndarray
    turn_ms: np.ndarray

    @property
    def statuses(self) -> dict[int, int]:
        """Answers by status."""
        return dict(sorted(Counter(self.status.tolist()).items()))

    def rate(self, status: int = 200) -> float:
        """Answers of a status a second, of those that came while requests were sent."""
        in_time = self.at + self.latency_ms / 1000 <= self.seconds
        return float(np.sum((self.status == status) & in_time) / self.seconds)

    def percentile(self, q: float, status: int = 200, since: float = 0.0, until: float = np.inf) -> float:
        """Percentile of the latencies of a status in ms, of requests due in [since, until); NaN without any."""
        chosen = self.latency_ms[(self.status == status) & (self.at >= since) & (self.at < until)]
        return float(np.percentile(chosen, q)) if len(chosen) else float("nan")

    def summary(self) -> dict[str, Any]:
        """All figures as JSON: rates, percentiles of each status in ms, errors, and the generator's own delays."""
        return {
            "seconds": self.seconds,
            "sent": self.sent,
            "statuses": self.statuses,
            "rate": {status: round(self.rate(status), 1) for status in self.statuses},
            "latency_ms": {status: self._spread(self.latency_ms[self.status == status]) for status in self.statuses},
            "errors": self.errors,
            "unasked": self.unasked,
            "wrong": self.wrong,
            "waited_for_connection": self.waited,
            "generator": {"lag_ms": self._spread(self.lag_ms), "turn_ms": self._spread(self.turn_ms)},
        }

    @staticmethod
    def _spread(values: np.ndarray) -> dict[str, float]:
        if not len(values):
            return {}
        found = {f"p{q:g}": round(float(np.percentile(values, q)), 3) for q in PERCENTILES}
        return found | {"mean": round(float(values.mean()), 3), "max": round(float(values.max()), 3)}
