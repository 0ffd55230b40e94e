"""Columns of numbers: which texts read as one, and the rows whose number is none or too large to train on.

In: frames with text or typed columns. Out: the same with numbers; bad rows go to `Rejects` with the value as it came.
"""

from pathlib import Path

import numpy as np
import polars as pl

from pipelines.ingest.rejects import Rejects
from pipelines.ingest.tables import Kind

# A leading zero (a zip code, a phone number) makes a text, not a number.
NUMBER = r"^[+-]?(0|[1-9][0-9]*)(\.[0-9]*)?([eE][+-]?[0-9]+)?$"
NOT_A_NUMBER = r"^(?i)[+-]?(nan|inf|infinity)$"
# Training and serving hold numbers as float32: beyond this they would be infinite.
LARGEST = float(np.finfo(np.float32).max)
TOO_LARGE = "beyond ±3.4e38, the range of 32-bit floats"


def text_kind(values: pl.Series) -> Kind:
    """The kind of a text column: number where every value reads as one, else string."""
    numeric = values.str.contains(NUMBER)
    return "number" if numeric.any() and (numeric | values.str.contains(NOT_A_NUMBER)).all() else "string"


def numbers(frame: pl.DataFrame, column: str, path: Path, rejects: Rejects) -> pl.DataFrame:
    """Parses a text column, or takes a float column, and takes out the rows whose value is no number of 32 bits.

    Args:
        frame: a batch with `column`, empty cells null, and `ROW`.
        column: of texts or floats.
        path: the file, for messages.
        rejects: where bad rows go.

    Raises:
        DataError: a bad row that is not skipped.
    """
    value, number = pl.col(column), pl.col("__number__")
    infinite = number.is_infinite()
    if frame.schema[column] == pl.String:
        text = value.str.strip_chars()
        frame = frame.with_columns(text.cast(pl.Float64, strict=False).alias("__number__"))
        frame = rejects.split_off(frame, number.is_null() & value.is_not_null(), path, column, "not a number")
        # The text 1e400 also parses as infinite, but is a number that is too large.
        infinite = infinite & text.str.contains(NOT_A_NUMBER)
    else:
        frame = frame.with_columns(value.alias("__number__"))
    reason = "NaN or infinite; leave the cell empty where there is no number"
    frame = rejects.split_off(frame, number.is_nan() | infinite, path, column, reason)
    frame = rejects.split_off(frame, number.abs() > LARGEST, path, column, TOO_LARGE)
    return frame.with_columns(number.alias(column)).drop("__number__")
