"""Warns of ids that other programs write for a missing one, and of ids with blanks around them."""

import numpy as np
import polars as pl

from pipelines.console import amount, say
from towers.data.events import Int32s

MISSING = ("null", "none", "nan", "na", "n/a", "\\n", "<na>", "undefined")  # in lower case; MySQL writes \\N


def warn_of_ids(side: str, ids: pl.Series, rows: Int32s) -> None:
    """Warns of odd ids; they stay as they are.

    Args:
        side: "user" or "item".
        ids: [N] strings.
        rows: of each event, the row of its id.
    """
    bare = ids.str.strip_chars()
    missing = np.flatnonzero(bare.str.to_lowercase().is_in(MISSING))
    for row in missing.tolist():
        if events := int(np.count_nonzero(rows == row)):
            remedy = f"if it stands for no {side}, leave these rows out: they train as one"
            say(f"warning: {amount(events, 'events')} of the {side} {ids[row]!r}: {remedy}")
    padded = ids.filter(ids != bare)
    if len(padded):
        count = amount(len(padded), f"{side} ids")
        say(f"warning: {count} with blanks around them, {padded[0]!r} for one: they are others than without")
