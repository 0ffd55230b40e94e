"""Keeps the events of the types that the recipe names, and numbers the types."""

from collections.abc import Collection
from pathlib import Path

import numpy as np
import polars as pl

from pipelines.dataset.column_lines import visible
from pipelines.dataset.number_text import as_strings
from pipelines.errors import DataError
from pipelines.ingest.columns.event_table import Codes
from serving.catalogue.journal_rows import IMPRESSION, UNTYPED
from towers.data.events import Int16s, Int32s

MOST_TYPES = 1_000  # of events: a column with more values holds something else, and is not kept
MANY = 100  # types that a message may choose from
SHOWN = 10  # types in a message
# Beside numbers; others, a duration say, have no text.
HOLD_TYPES = (pl.String, pl.Boolean, pl.Categorical, pl.Enum, pl.Date, pl.Datetime, pl.Time, pl.Null)


class EventTypes:
    """The types of all events, batch by batch.

    Args:
        wanted: ``data.event_types``; if empty, every event is kept.
    """

    def __init__(self, wanted: Collection[str]) -> None:
        self._wanted = set(wanted)
        self._came: set[str] = set()
        self._codes = Codes()

    def wanted(self, frame: pl.DataFrame, path: Path, column: str | None) -> pl.Expr | None:
        """Which events of a batch to keep, or None for all.

        Raises:
            DataError: the column can hold no types.
        """
        dtype = pl.Null() if column is None else frame.schema[column]
        if not (dtype.is_numeric() or dtype in HOLD_TYPES):
            raise DataError(f"{path}, column {column!r}: wrong type: an event's type is text or a number, got {dtype}")
        if not self._wanted or column is None:
            return None
        # A missing value makes floats of whole numbers, but no other types. Bundles of before may name "1.0".
        forms = as_strings(frame[column]), frame[column].cast(pl.String)
        here = {each for form in forms for each in form.unique() if each is not None}
        self._came |= here if len(self._came) < MANY else here & self._wanted
        return pl.lit(forms[0].is_in(self._wanted) | forms[1].is_in(self._wanted))

    def codes(self, frame: pl.DataFrame, column: str | None) -> Int32s:
        """The code of each event's type, that of "" for an event without one."""
        names = pl.repeat("", frame.height, eager=True) if column is None else as_strings(frame[column])
        return self._codes.encode(names.fill_null(""))

    def numbered(self, codes: Int32s | None) -> tuple[tuple[str, ...], Int16s | None]:
        """The types by number, and the number of each event's; none if there are none, or too many."""
        names = self._codes.strings().to_list()
        kept = sorted({*names} - {""})
        if not kept or len(kept) > MOST_TYPES:
            return (), None
        return tuple(kept), np.array([kept.index(name) if name else -1 for name in names], np.int16)[codes]

    def told(self) -> str:
        """What an error adds: the types that came, if the recipe names some."""
        return f"; the types there are {', '.join(map(visible, sorted(self._came)[:SHOWN]))}" if self._came else ""

    def refuse_absent(self, path: Path) -> None:
        """Refuses a recipe that names a type of which no event is: it is a slip of the pen, and drops a type.

        Args:
            path: a file of events, for the message.

        Raises:
            DataError: there is one; names it and the types that came.
        """
        # Those of `towers events export` may come later: a service writes no event without a type, or none yet.
        if absent := sorted(self._wanted - self._came - {UNTYPED, IMPRESSION}):
            raise DataError(f"{path}: data.event_types: no event has the type {absent[0]!r}{self.told()}")
