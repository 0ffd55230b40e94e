"""Reads the names of the columns of delimited text, and what separates its values, from its first lines."""

import csv
from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from pipelines.errors import DataError

if TYPE_CHECKING:
    from _csv import Reader as Records

SEPARATORS = (",", ";", "\t", "|")
LONGEST_NAME = 2**17  # of a column, in characters
STATED = {f"sep={separator}": separator for separator in SEPARATORS}


def stated_separator(path: Path) -> str | None:
    """The separator in a first line such as `sep=;`, as Excel writes and reads it; None without such a line."""
    with path.open(encoding="utf-8-sig", errors="replace") as handle:
        return STATED.get(handle.readline(len("sep=;\n")).rstrip("\n").lower())


def likely_separator(path: Path, quote: str | None) -> str:
    """Returns the comma, unless it finds a single column name in the header line and another separator finds more."""
    widths = {each: len(header_names(path, each, quote, strict=False)) for each in SEPARATORS}
    return "," if widths[","] > 1 else max(widths, key=lambda separator: widths[separator])


def header_names(path: Path, separator: str, quote: str | None, *, line: int = 1, strict: bool = True) -> list[str]:
    """Reads the names of the columns from a line, counted from 1.

    Raises:
        DataError: it has no names, or is not valid.
    """
    csv.field_size_limit(LONGEST_NAME)  # an open quote must not read the whole file
    with path.open(encoding="utf-8-sig", errors="replace", newline="\n") as handle:
        try:
            reader = records(handle, separator, quote, strict=strict)
            names = next(islice(reader, line - 1, None), [])
        except csv.Error as error:
            raise DataError(f"{path}, row {line}: not valid CSV: {error}") from None
    if not any(name.strip() for name in names):
        raise DataError(f"{path}, row {line}: no column names")
    return names


def records(handle: Iterable[str], separator: str, quote: str | None, *, strict: bool = True) -> "Records":
    """Python's reader of the rows of delimited text."""
    if quote is None:
        return csv.reader(handle, delimiter=separator, quoting=csv.QUOTE_NONE)
    return csv.reader(handle, delimiter=separator, quotechar=quote, strict=strict)
