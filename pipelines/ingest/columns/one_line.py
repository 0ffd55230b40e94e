"""Refuses a second line of a user in files of sequences: which of the two comes first is not known."""

from collections import defaultdict
from pathlib import Path

import numpy as np
import polars as pl

from pipelines.ingest.columns.event_table import Codes
from pipelines.ingest.formats.rejects import ROW, Rejects


class OneLine:
    """Checks the events of all files, batch by batch.

    Args:
        rejects: receives second lines.
    """

    def __init__(self, rejects: Rejects) -> None:
        self._rejects = rejects
        self._codes: defaultdict[str | None, Codes] = defaultdict(Codes)
        self._latest: defaultdict[str | None, int] = defaultdict(lambda: -1)

    def check(self, frame: pl.DataFrame, path: Path, column: str, split: str | None) -> pl.DataFrame:
        """Returns the events without those of lines whose user had a line before in the same split.

        Args:
            frame: whole lines, each an event or more with its number in `ROW`.
            path: the file.
            column: the users.
            split: of the file, or None.

        Raises:
            DataError: there is such a line and bad rows are not skipped.
        """
        lines = frame.filter(pl.col(ROW) != pl.col(ROW).shift(fill_value=0))
        # Codes count up with first appearances: a user is new if their code is above all before it.
        code = self._codes[split].encode(lines[column])
        latest = np.maximum.accumulate(np.append(self._latest[split], code))
        self._latest[split] = int(latest[-1])
        again = pl.lit(pl.Series(code <= latest[:-1]))
        reason = "a second line of this user; one line holds all items of a user, in time order"
        kept = self._rejects.split_off(lines, again, path, column, reason)
        return frame if kept.height == lines.height else frame.filter(pl.col(ROW).is_in(kept[ROW].implode()))
