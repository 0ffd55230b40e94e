"""Tells texts that are numbers from others, finds the one word that makes text of a column of numbers, and makes texts
of numbers."""

import polars as pl

# A leading zero (a zip code, a phone number) marks text, not a number.
NUMBER = r"^\s*[+-]?((0|[1-9][0-9]*)(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?\s*$"
NOT_A_NUMBER = r"^(?i)[+-]?(nan|inf|infinity)$"
FIRST = 1_000  # rows that mostly show already that a column of texts is none of numbers and one word


def as_strings(column: pl.Series) -> pl.Series:
    """Converts a column to the strings sent in requests; whole floats lose their decimal point, value by value."""
    text = column.cast(pl.String)
    return text.str.strip_suffix(".0") if column.dtype.is_float() else text


def word_among_numbers(first: pl.DataFrame, frame: pl.LazyFrame) -> tuple[str, int] | None:
    """Returns the only text of a column that is no number, as NA for a missing price, and how many rows hold it.

    None if there are several, as sizes S and M beside 38, or if it has digits, as zip codes and keys do: such a column
    is text whatever becomes of its words.

    Args:
        first: the frame's first rows.
        frame: of one column of texts.
    """
    (column,) = first.columns
    value = pl.col(column)
    words: list[str] = []
    for rows in (first.head(FIRST).lazy(), frame):
        # Each text is looked at once: texts are much fewer than rows in most columns.
        odd = rows.unique().filter(~value.str.contains(NUMBER)).head(2)  # a missing value is neither
        words = odd.collect(engine="streaming").to_series().to_list()
        if len(words) > 1 or any(letter.isdigit() for word in words for letter in word):
            return None
    if not words:
        return None
    return words[0], int(frame.select((value == words[0]).sum()).collect(engine="streaming").item())
