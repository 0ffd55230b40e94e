"""Detects the separator by which texts look like lists, and splits them."""

import polars as pl

# Only the first turns a column into lists by itself: it has no other use between words. The others are only suggested.
SEPARATORS = ("|", ";", ",", "/")
WRITTEN = r"(?s)^\s*\[(.*)\]\s*$"
QUOTED = r"'[^']*'" r'|"[^"]*"'
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

    Of a list as Python or JSON writes it, ``['de', "a, b"]`` or ``[1, 2]``, the parts are what it holds.
    """
    inside = texts.str.extract(WRITTEN)
    bare = pl.coalesce(inside, texts).str.split(separator).list.eval(pl.element().str.strip_chars())
    quoted = inside.str.extract_all(QUOTED).list.eval(pl.element().str.slice(1).str.head(-1).str.strip_chars())
    parts = pl.when(inside.str.contains(r"^\s*['\"]")).then(quoted).otherwise(bare)
    return parts.list.filter(pl.element() != "")
