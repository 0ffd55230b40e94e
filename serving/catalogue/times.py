"""Times: the item columns that hold them, and how they are written and read in ISO 8601.

Data sets keep a time as a number, so a column is recognised by its name and its numbers: one that is called a time and
whose numbers are seconds since 1970, milliseconds and so on, as `towers prepare` tells the units of event times.
"""

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import polars as pl

from serving.bundle.reader import Bundle

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
DAY_S = 86_400
# Ticks per second of each unit, its name, and the size below which a number is read in it.
UNITS = ((1, "seconds", 1e11), (1_000, "milliseconds", 1e14), (1_000_000, "microseconds", 1e17))
LEAST_S = 1e8  # until 1973; years, lengths and dates such as 20240131 are smaller
FIRST_S = -62_135_596_800  # the year 1
# The words of a name, also in "createdAt" and "release_date".
WORDS = re.compile(r"[A-Z]?[a-z]+|[A-Z]+")
OF_TIMES = {
    "added", "at", "born", "created", "date", "datetime", "expires", "launched", "modified", "posted", "published",
    "release", "released", "since", "time", "timestamp", "ts", "until", "updated",
}  # fmt: skip
EXAMPLE = "2026-01-31T18:30:00Z"


@dataclass(frozen=True)
class TimeColumn:
    """How a column counts time.

    Attributes:
        ticks: per second.
        dates: whether each of its times is a midnight in UTC, which is shown as a date.
    """

    ticks: int = 1
    dates: bool = False

    @property
    def unit(self) -> str:
        """The name of a tick, in the plural."""
        return next(name for ticks, name, _ in UNITS if ticks == self.ticks)

    def text(self, number: float) -> str | None:
        """The time in ISO 8601 and UTC, with the fraction of its second if it has one; None beyond the calendar."""
        seconds, rest = divmod(number, self.ticks)
        try:
            moment = EPOCH + timedelta(seconds=seconds, microseconds=round(rest * 1_000_000 / self.ticks))
        except (OverflowError, ValueError):
            return None
        if self.dates and (moment - EPOCH) % timedelta(days=1) == timedelta():
            return moment.date().isoformat()
        digits = "microseconds" if moment.microsecond % 1_000 else "milliseconds" if moment.microsecond else "seconds"
        return moment.isoformat(timespec=digits).replace("+00:00", "Z")

    def number(self, text: str) -> float | None:
        """The number of an ISO-8601 time or date; one without a zone is in UTC. None if it is none."""
        try:
            moment = datetime.fromisoformat(text.strip())
            since = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)) - EPOCH
        except (OverflowError, ValueError):
            return None
        microseconds, tick = since // timedelta(microseconds=1), 1_000_000 // self.ticks
        return microseconds / tick if microseconds % tick else microseconds // tick


def time_columns(bundle: Bundle) -> dict[str, TimeColumn]:
    """The item columns of a bundle that hold times."""
    named = [
        name
        for name, dtype in bundle.attribute_schema.items()
        if dtype.is_numeric() and OF_TIMES & {word.lower() for word in WORDS.findall(name)}
    ]
    found = {name: _time_column(bundle.item_attributes[name]) for name in named}
    return {name: column for name, column in found.items() if column is not None}


def _time_column(values: pl.Series) -> TimeColumn | None:
    known = values.drop_nulls().drop_nans()
    if known.is_empty():
        return None
    least, greatest = float(known.min()), float(known.max())  # type: ignore[arg-type]
    size = max(-least, greatest)
    ticks = next((ticks for ticks, _, limit in UNITS if size < limit), None)
    if ticks is None or size < LEAST_S or least < FIRST_S * ticks:
        return None
    return TimeColumn(ticks, dates=bool((known % (DAY_S * ticks) == 0).all()))
