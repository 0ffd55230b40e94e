"""Finds the columns of events that look like times, to name them where none is read, or another is read in vain."""

import shlex

import polars as pl

from pipelines.ingest.formats.column_names import words

TIME_WORDS = {"time", "timestamp", "datetime", "date", "day", "ts", "dt", "created", "utc"}
WRITTEN = (pl.String, pl.Categorical, pl.Enum, pl.Date, pl.Datetime)  # types of times, beside numbers
LOOKED_AT = 100  # values of a column that may hold times
# With a word for time in the column's name: seconds or a finer unit since 1970, or a year of four digits.
LIKE_TIME = r"^\d{9}|(^|\D)(19|20)\d\d"


def without_times(context: pl.DataFrame | None) -> str:
    """What to say of events without a column of times; names the column of `context` that may hold them, if any."""
    told = "no column of times is found, so the split is random: it does not tell how well later events are foreseen"
    remedy = times_elsewhere(context)
    return f"warning: {told}{remedy}" if remedy else told


def wanted_times(context: pl.DataFrame) -> str:
    """What helps where no row has a time that can be read; names the column of `context` that may hold them, if any."""
    return f"write times as 2026-01-31T12:30:00 or as seconds since 1970{times_elsewhere(context)}"


def times_elsewhere(context: pl.DataFrame | None) -> str:
    """How to name the column of `context` that looks like times, after a semicolon; an empty text if none does."""
    context = pl.DataFrame() if context is None else context
    first = {column.name: column.drop_nulls().head(LOOKED_AT) for column in context}
    shown = {name: some for name, some in first.items() if some.dtype.is_numeric() or some.dtype.base_type() in WRITTEN}
    texts = {name: some.cast(pl.String) for name, some in shown.items() if len(some)}
    dates = [name for name, some in texts.items() if some.str.contains(r"^\d{4}-\d\d-\d\d").all()]
    named = [name for name in texts if not TIME_WORDS.isdisjoint(words(name))]
    likely = dates or [name for name in named if texts[name].str.contains(LIKE_TIME).all()]
    if not likely:
        return ""
    setting = shlex.quote(f"data.columns.time={likely[0]}")
    return f"; if {likely[0]!r} holds the times: --config default --set {setting}"
