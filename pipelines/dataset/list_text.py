"""Detects the separator by which texts look like lists, and splits them."""

import ast
import json
import re
import warnings
from functools import partial

import polars as pl

from pipelines.console import is_text

# Only the first turns a column into lists by itself: it has no other use between words. The others are only suggested.
SEPARATORS = ("|", ";", ",", "/")
WRITTEN = r"(?s)^\s*\[.*\]\s*$"
QUOTED = r"""(?:'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")"""
NUMPY = re.compile(rf"(?s)\s*\[\s*{QUOTED}(?:\s+{QUOTED})+\s*\]\s*")
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

    Of a whole list as JSON or Python writes it, ``["de", "en"]`` or ``[1, 2]``, or NumPy one of texts, the parts are
    what it holds.
    """
    split = partial(_split, separator=separator)
    return texts.map_batches(split, return_dtype=pl.List(pl.String), is_elementwise=True)


def _split(texts: pl.Series, separator: str) -> pl.Series:
    parts = texts.str.split(separator).list.eval(pl.element().str.strip_chars())
    written = texts.filter(texts.str.contains(WRITTEN)).unique()
    if len(written):
        lists = pl.Series([_listed(text, separator) for text in written], dtype=pl.List(pl.String))
        known = pl.DataFrame({"text": written, "list": lists})
        frame = pl.DataFrame({"text": texts, "parts": parts}).join(known, "text", "left", maintain_order="left")
        parts = frame.select(pl.coalesce("list", "parts")).to_series()
    return parts.list.eval(pl.element().filter(pl.element() != ""))


def _listed(text: str, separator: str) -> list[str] | None:
    """What a list in JSON or Python holds, or one of words in brackets; None if the text is none."""
    inside = text.strip()[1:-1]
    try:
        values = json.loads(text, parse_int=str, parse_float=str, parse_constant=str)  # numbers as they are written
    except (ValueError, RecursionError):
        values = _literal(text)
    if values is None and separator in inside and not {"[", "]"} & {*inside}:
        values = [each.strip().strip("'\"") for each in inside.split(separator)]
    if not isinstance(values, list) or not all(isinstance(each, str | int | float | None) for each in values):
        return None
    parts = [str(each).lower() if isinstance(each, bool) else str(each).strip() for each in values if each is not None]
    return parts if all(map(is_text, parts)) else None


def _literal(text: str) -> object:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of backslashes in texts
            if NUMPY.fullmatch(text):  # Python would join the texts
                return [ast.literal_eval(each) for each in re.findall(QUOTED, text)]
            return ast.literal_eval(text.strip())
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return None
