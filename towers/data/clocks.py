"""Hours and weekdays of event times, as rows of a feature's table, in the time zone of the data set."""

from datetime import UTC, datetime
from functools import cache
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
from numpy.typing import NDArray

from towers.data.bags import MISSING
from towers.data.events import Int32s, Int64s

SECONDS_PER_HOUR, HOURS_PER_DAY, DAYS_PER_WEEK = 3600, 24, 7
SECONDS_PER_DAY = HOURS_PER_DAY * SECONDS_PER_HOUR
EPOCH_WEEKDAY = 3  # 1970-01-01 was a Thursday, Monday = 0
DAYS = range(47_483)  # from 1970 to 2100; a zone's offset at either end holds beyond it


def clock_rows(kind: str, seconds: NDArray[np.integer[Any]] | None, count: int, zone: str = "UTC") -> Int32s:
    """Rows of an hour or weekday feature.

    Args:
        kind: ``hour`` or ``weekday``.
        seconds: [count] event times in seconds since 1970 (UTC); None if there are none, which gives MISSING.
        count: number of rows.
        zone: IANA name of the time zone in which clocks are read.
    """
    if seconds is None:
        return np.full(count, MISSING, np.int32)
    if zone != "UTC":
        begins, offsets = _offsets(zone)
        seconds = seconds + offsets[np.maximum(np.searchsorted(begins, seconds, side="right") - 1, 0)]
    hours = seconds // SECONDS_PER_HOUR
    if kind == "hour":
        return (1 + hours % HOURS_PER_DAY).astype(np.int32)
    return (1 + (hours // HOURS_PER_DAY + EPOCH_WEEKDAY) % DAYS_PER_WEEK).astype(np.int32)


@cache
def _offsets(zone: str) -> tuple[Int64s, Int64s]:
    """When a zone's offsets from UTC begin, ascending, and the offsets, both in seconds."""
    place = ZoneInfo(zone)

    def offset(second: int) -> int:
        local = datetime.fromtimestamp(second, place)
        return int(local.replace(tzinfo=UTC).timestamp()) - second

    begins, offsets = [0], [offset(0)]
    for day in DAYS[1:]:
        high = day * SECONDS_PER_DAY
        if offset(high) == offsets[-1]:
            continue
        low = high - SECONDS_PER_DAY
        while high - low > 1:  # the offset changes in (low, high]
            middle = (low + high) // 2
            low, high = (middle, high) if offset(middle) == offsets[-1] else (low, middle)
        begins.append(high)
        offsets.append(offset(high))
    return np.array(begins), np.array(offsets)
