"""Reading a list of user ids: the `--users` of bulk recall.

In: a csv, parquet or jsonl file with a column `user_id`, or a txt file with one id a line. Out: distinct ids in order.
"""

from collections.abc import Callable
from pathlib import Path

import polars as pl

from pipelines.errors import DataError

COLUMN = "user_id"


def read_users(path: Path) -> pl.Series:
    """Reads user ids as strings; repeated ones count once.

    Raises:
        DataError: the file is missing, of an unknown kind, without the column, or holds an empty id.
    """
    reader = _READERS.get(path.suffix.lower())
    if reader is None:
        raise DataError(f"{path}: unknown kind of file {path.suffix!r}; allowed are {', '.join(_READERS)}")
    if not path.is_file():
        raise DataError(f"{path}: no such file")
    try:
        frame = reader(path)
    except (pl.exceptions.PolarsError, OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: cannot be read: {str(error).splitlines()[0]}") from None
    if COLUMN not in frame.columns:
        raise DataError(f"{path}: no column {COLUMN!r}; it has {', '.join(frame.columns) or 'none'}")
    ids = frame[COLUMN]
    if not (ids.dtype == pl.String or ids.dtype.is_integer() or ids.dtype == pl.Null):
        raise DataError(f"{path}: column {COLUMN!r} must hold strings or whole numbers, holds {ids.dtype}")
    ids = ids.cast(pl.String)
    empty = (ids.is_null() | (ids == "")).fill_null(True)
    if empty.any():
        raise DataError(f"{path}: column {COLUMN!r}, row {int(empty.arg_max() or 0) + 1}: no id")
    return ids.unique(maintain_order=True)


def _read_text(path: Path) -> pl.DataFrame:
    lines = path.read_text(encoding="utf-8").split("\n")
    return pl.DataFrame({COLUMN: [line.rstrip("\r") for line in lines if line.strip()]}, schema={COLUMN: pl.String})


_READERS: dict[str, Callable[[Path], pl.DataFrame]] = {
    # All columns as strings: an id like 007 must not become 7.
    ".csv": lambda path: pl.read_csv(path, infer_schema=False),
    ".tsv": lambda path: pl.read_csv(path, infer_schema=False, separator="\t"),
    ".parquet": pl.read_parquet,
    ".jsonl": pl.read_ndjson,
    ".txt": _read_text,
}
