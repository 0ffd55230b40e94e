"""Warns of events whose times no clock can have told: later than now, or long before our days."""

from time import time as clock

import numpy as np

from pipelines.console import amount, say
from pipelines.dataset.popularity import DAY_S, TICKS_PER_S
from pipelines.ingest.columns.event_table import EventTable
from pipelines.ingest.columns.likely_times import times_elsewhere
from pipelines.ingest.columns.times import LOGGED
from towers.data.events import Int64s

DAYS = (20_000, 60_000)  # since 1899, of the years 1954 to 2064
YEAR_S = 365 * DAY_S


def warn_of_clocks(events: EventTable) -> None:
    """Warns of events later than now, and of those from before 1990 beside others; for callers that use the times."""
    if events.time is None:
        return
    if early := told_of_past(events.time, events.time_unit):
        say(f"warning: {early}: if that is wrong, a clock was not set or numbers were cut: mend or leave them out")
    if late := told_of_future(events.time, events.time_unit):
        newest = "they count as the newest in a split by time, in histories and in a prior"
        say(f"warning: {late}: {newest}; mend their times or data.time_unit, or leave them out")


def warn_of_small_times(events: EventTable) -> None:
    """Warns if all events are from before 1990; for callers that keep times whose unit the recipe does not state.

    So it is if another column holds the times, or if they are no seconds since 1970. Dates may be old, but of 1970 they
    are most often numbers that a program took for nanoseconds.
    """
    times, unit = events.time, events.time_unit
    if times is None or unit not in TICKS_PER_S:
        return
    least, end = (0, YEAR_S) if events.dates else (-np.inf, LOGGED[0])
    if times.min() < least * TICKS_PER_S[unit] or times.max() >= end * TICKS_PER_S[unit]:
        return
    first, last = times.min(), times.max()
    told = f"all times (column {events.roles.time!r}) are of {_moment(first, unit)} to {_moment(last, unit)}"
    days = not events.dates and first >= DAYS[0] * TICKS_PER_S[unit] and last <= DAYS[1] * TICKS_PER_S[unit]
    excel = "; numbers of 20,000 to 60,000 may be days since 1899, as Excel writes them: write 2026-01-31T12:30:00"
    own = "; if the clock counts from a start of its own, state its unit: --config default --set data.time_unit=s"
    remedies = f"{excel if days else ''}{times_elsewhere(events.context)}{'' if events.dates else own}"
    say(f"warning: {told}{remedies}")


def told_of_future(times: Int64s, unit: str | None) -> str:
    """Tells how many times are later than now by more than any zone explains, or returns an empty text."""
    if unit not in TICKS_PER_S:
        return ""
    late = int(np.count_nonzero(times > (clock() + DAY_S) * TICKS_PER_S[unit]))
    return f"{amount(late, 'events')} later than now, the latest of {_moment(times.max(), unit)}" if late else ""


def told_of_past(times: Int64s, unit: str | None) -> str:
    """Tells how many times are before 1990 if some are later, or returns an empty text."""
    if unit not in TICKS_PER_S:
        return ""
    early = int(np.count_nonzero(times < LOGGED[0] * TICKS_PER_S[unit]))
    some = 0 < early < len(times)
    return f"{amount(early, 'events')} earlier than 1990, the earliest of {_moment(times.min(), unit)}" if some else ""


def _moment(time: np.int64, unit: str) -> str:
    seconds = np.datetime64(int(time) // TICKS_PER_S[unit], "s")  # a `datetime` ends in 9999
    return str(seconds).replace("T", " ")
