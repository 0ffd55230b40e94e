"""Reads plain lists: LightGCN folders (`user item item …` lines, a file per split), the same lines in time order, which
are sequences, and `user item` pairs in time order.

The tables have the columns `user_id` and `item_id`.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import polars as pl

from pipelines.errors import DataError
from pipelines.ingest.formats.column_names import USUAL, plain_name
from pipelines.ingest.formats.rejects import ROW, Rejects
from pipelines.ingest.formats.table import Table, lines_table

WORD = r"\S+"
TIME = re.compile(r"[1-9]\d{8,12}")  # seconds or milliseconds since 1970
COUNT = pl.col("words").list.len()


def pairs_table(path: Path, *, skip: bool = False) -> Table:
    """Opens a file of `user item` lines."""
    return _words_table(path, {"expected two ids, 'user item'": COUNT != 2}, skip=skip)


def lightgcn_table(path: Path, *, skip: bool = False) -> Table:
    """Opens a file of `user item item …` lines; a line may hold a user without items."""
    # A line holds many events, so the number of lines says nothing about progress.
    return replace(_words_table(path, {}, skip=skip), rows=None)


def sequences_table(path: Path, *, skip: bool = False) -> Table:
    """Opens a file of `user item item …` lines in time order; every line holds a user and at least one item."""
    wrong = {
        "an empty line: expected 'user item item …'": COUNT == 0,
        "a user without items: expected 'user item item …' with blanks between them": COUNT == 1,
    }
    return replace(_words_table(path, wrong, skip=skip, blank=True), rows=None)


def _words_table(path: Path, wrong: Mapping[str, pl.Expr], *, skip: bool, blank: bool = False) -> Table:
    """Opens a file whose lines are words, a user and items; `wrong` tells by a reason which lines are bad rows."""

    def parse(lines: pl.DataFrame, rejects: Rejects) -> pl.DataFrame:
        frame = lines.with_columns(pl.col("line").str.extract_all(WORD).alias("words"))
        for reason, bad in wrong.items():
            frame = rejects.split_off(frame, bad, path, "line", reason)
        words = pl.col("words").list
        pair = words.first().alias("user_id"), words.slice(1).alias("item_id")
        return frame.filter(COUNT > 1).select(*pair, ROW).explode("item_id")

    return _not_empty(lines_table(path, ("user_id", "item_id"), parse, skip=skip, blank=blank))


def _not_empty(table: Table) -> Table:
    """Makes a table raise at its end if no line gave an event because the separator is not a blank.

    Lines of single words are users without items, which may occur in a given split.
    """

    def read(rejects: Rejects) -> Iterator[pl.DataFrame]:
        found = False
        for batch in table.read(rejects):
            found = found or not batch.is_empty()
            yield batch
        if found:
            return
        with table.path.open(encoding="utf-8-sig", errors="replace") as handle:
            line = handle.readline(80).strip()
        if re.search(r"[,;|]", line):
            reason = "no line holds a user and an item with blanks between them"
            raise DataError(f"{table.path}, row 1: {reason}, got {line!r}")

    return replace(table, read=read)


def kind_of_lists(path: Path, text: Path) -> str:
    """The format of a .txt file by its first 100 lines: ``pairs`` if each holds two words, else ``lightgcn``.

    Args:
        path: the file, for messages.
        text: the same file unpacked.

    Raises:
        DataError: it is a table: of columns with names, or of users, items and times or ratings without.
    """
    if header := _table_header(text):
        remedy = "give --format csv" if re.search(r"[\t,;|]", header) else "remove that line"
        raise DataError(f"{path}: a table with a header ({header}), not lists of items; {remedy}")
    with text.open(encoding="utf-8-sig", errors="replace") as handle:
        lines = [line.split() for line, _ in zip(handle, range(100), strict=False) if line.strip()]
    widths = {len(words) for words in lines}
    # Items that look like times, too, are ids.
    timed = widths in ({3}, {4}) and all(map(TIME.fullmatch, (words[-1] for words in lines)))
    users = Counter(words[0] for words in lines)
    why = ""
    if timed and not all(map(TIME.fullmatch, (words[1] for words in lines))):
        why = f"each line ends like a time ({lines[0][-1]})"
    elif widths in ({3}, {4}) and len(users) < len(lines):
        why = f"each line holds {len(lines[0])} words, and {users.most_common(1)[0][0]!r} begins several"
    if why:
        raise DataError(
            f"{path}: {why}: a table without a header, not lists of items; put a line of names before it (user_id, "
            "item_id, …), with tabs or commas between all columns, and give --format csv; if it does hold lists, give "
            "--format lightgcn"
        )
    return "pairs" if widths == {2} else "lightgcn"


def _table_header(path: Path) -> str:
    """The first line of a file if it names a column of users and one of items; else an empty text."""
    with path.open(encoding="utf-8-sig", errors="replace") as handle:
        line = handle.readline(1_000).strip()
    names = {plain_name(word) for word in re.split(r"[\t,;| ]+", line)}
    return line if names & {*USUAL["user"]} and names & {*USUAL["item"]} else ""
