"""Detects the separator by which texts look like lists, and splits them."""

import ast
from functools import partial

import orjson
import polars as pl

# Only the first turns a column into lists by itself: it has no other use between words. The others are only suggested.
SEPARATORS = ("|", ";", ",", "/")
WRITTEN = r"(?s)^\s*\[.*\]\s*$"
HOLD_SHARE = 0.5  # more than this share of the distinct texts must contain the separator
TEXTS_A_PART = 2  # and each part must occur, on average, in at least this many of them


def separator_of(texts: pl.Series, separators: tuple[str, ...] = SEPARATORS) -> str | None:
    """Returns the separator by which texts look like lists, or None.

    Most distinct texts must contain it, and its parts must repeat: on average each occurs in two distinct texts.
    """
    different = pl.DataFrame({"text": texts}).drop_nulls().unique()
    for separator in separators:
        holding = different.select(pl.col("text").str.contains(separator, literal=True).sum()).item()
        if holding > HOLD_SHARE * different.height:
            lists = different.select(split_text(pl.col("text"), separator).list.unique()).to_series()
            parts = lists.explode().drop_nulls()
            if len(parts) >= TEXTS_A_PART * max(1, parts.n_unique()):
                return separator
    return None


def split_text(texts: pl.Expr, separator: str) -> pl.Expr:
    """Splits texts into lists of parts, without surrounding blanks and empty parts.

    Of a whole list as JSON or Python writes it, ``["de", "en"]`` or ``[1, 2]``, the parts are what it holds.
    """
    split = partial(_split, separator=separator)
    return texts.map_batches(split, return_dtype=pl.List(pl.String), is_elementwise=True)


def _split(texts: pl.Series, separator: str) -> pl.Series:
    parts = texts.str.split(separator).list.eval(pl.element().str.strip_chars())
    written = texts.filter(texts.str.contains(WRITTEN)).unique()
    if len(written):
        lists = pl.Series([_listed(text) for text in written], dtype=pl.List(pl.String))
        known = pl.DataFrame({"text": written, "list": lists})
        frame = pl.DataFrame({"text": texts, "parts": parts}).join(known, "text", "left", maintain_order="left")
        parts = frame.select(pl.coalesce("list", "parts")).to_series()
    return parts.list.eval(pl.element().filter(pl.element() != ""))


def _listed(text: str) -> list[str] | None:
    """What a list in JSON or Python holds; None if the text is no list of words and numbers."""
    try:
        values = orjson.loads(text)
    except orjson.JSONDecodeError:
        try:
            values = ast.literal_eval(text.strip())
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            return None
    if not isinstance(values, list) or not all(isinstance(each, str | int | float | None) for each in values):
        return None
    return [str(each).strip() for each in values if each is not None]
