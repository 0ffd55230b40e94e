"""Parses columns of numbers and rejects rows whose value is not a number or too large to train on."""

from pathlib import Path

import numpy as np
import polars as pl

from pipelines.dataset.manifest import Kind
from pipelines.dataset.number_text import NOT_A_NUMBER, NUMBER
from pipelines.ingest.formats.rejects import Rejects

# Training and serving use float32, where larger numbers would be infinite.
LARGEST = float(np.finfo(np.float32).max)
NOT_FINITE = "NaN or infinite; leave the cell empty where there is no number"
TOO_LARGE = "beyond ±3.4e38, the range of 32-bit floats"


def text_kind(values: pl.Series) -> Kind:
    """Returns the kind of a text column: number if every value parses as one, else string."""
    numeric = values.str.contains(NUMBER)
    return "number" if numeric.any() and (numeric | values.str.contains(NOT_A_NUMBER)).all() else "string"


def parsed(texts: pl.Series) -> pl.Series:
    """Texts as numbers, null where a text is none: Int64, which keeps every digit, if all fit into it, else Float64."""
    stripped = texts.str.strip_chars()
    whole = stripped.cast(pl.Int64, strict=False)
    return whole if whole.null_count() == texts.null_count() else stripped.cast(pl.Float64, strict=False)


def numbers(
    frame: pl.DataFrame, column: str, path: Path, rejects: Rejects, not_finite: str = NOT_FINITE, remedy: str = ""
) -> pl.DataFrame:
    """Parses a text or float column as numbers and rejects rows whose value does not fit a 32-bit float.

    Texts that are all whole numbers of 64 bits become Int64, as in a Parquet file; see `parsed`.

    Args:
        frame: a batch with `column`, empty cells null, and `ROW`.
        column: a column of texts or floats.
        path: the file, for messages.
        rejects: receives bad rows.
        not_finite: the reason for NaN and infinite numbers.
        remedy: what helps if no text is a number.

    Raises:
        DataError: a bad row that is not skipped.
    """
    value, number = pl.col(column), pl.col("__number__")
    infinite = number.is_infinite()
    if frame.schema[column] == pl.String:
        text = value.str.strip_chars()
        frame = frame.with_columns(text.cast(pl.Float64, strict=False).alias("__number__"))
        wrong = number.is_null() & value.is_not_null()
        frame = rejects.split_off(frame, wrong, path, column, "not a number", remedy=remedy)
        # The text 1e400 also parses as infinite, but is rejected as too large.
        infinite = infinite & text.str.contains(NOT_A_NUMBER)
    else:
        frame = frame.with_columns(value.alias("__number__"))
    frame = rejects.split_off(frame, number.is_nan() | infinite, path, column, not_finite)
    frame = rejects.split_off(frame, number.abs() > LARGEST, path, column, TOO_LARGE)
    # Of the rows that are left: a NaN that was left out does not make floats of whole numbers.
    made = parsed(frame[column]) if frame.schema[column] == pl.String else frame["__number__"].alias(column)
    return frame.with_columns(made).drop("__number__")
