"""Reads JSON Lines as batches of typed columns; the first value of a column sets its type.

A line that is not a JSON object, or a value of another type, is a bad row.
"""

import json
from codecs import BOM_UTF8
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence, Set
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import orjson
import polars as pl

from pipelines.errors import DataError
from pipelines.ingest.formats.rejects import ROW, Rejects
from pipelines.ingest.formats.table import Table, text_file

BLOCK_BYTES = 16 << 20
# Whole numbers are stored as signed 64-bit integers.
LIMIT = 2**63

_DTYPES: dict[type, pl.DataType] = {
    bool: pl.Boolean(),
    int: pl.Int64(),
    float: pl.Float64(),
    str: pl.String(),
}
_NAMES = {bool: "a boolean", int: "a whole number", float: "a number", str: "a string", list: "a list"}


def jsonl_table(
    path: Path,
    id_columns: Callable[[Iterable[str]], Set[str]],
    with_role: Callable[[Iterable[str]], Set[str]] | None = None,
    *,
    skip: bool = False,
    wanted: Collection[str] | None = None,
) -> Table:
    """Opens a file with one JSON object per line; its columns are the keys of all lines.

    A key whose first value is an object, which no feature reads, is left unread, unless it may have a role.

    Args:
        path: the file.
        id_columns: those of the columns that hold ids, where 1, 1.0 and "1" differ in type; elsewhere all numbers are
            one type.
        with_role: those of the columns that may have a role; by default all may, so that each is read.
        skip: treat lines that are not UTF-8 as bad rows instead of raising here.
        wanted: the others are left unread; by default all are read.

    Raises:
        DataError: the file is empty, not UTF-8, or holds no object with a key.
    """
    text = text_file(path, skip=skip)
    names: dict[str, type | None] = {}  # with the type of the first value
    empty: list[str] = []  # those without a value so far
    # A pass of its own: a key that comes late, a weight say, must not go unread.
    for block in _blocks(path):
        for _, line in block:
            value = _loads(line)
            if not isinstance(value, dict):
                continue
            if not value.keys() <= names.keys():
                empty += (new := [name for name in value if name not in names])
                names |= dict.fromkeys(new)
            if first := {name: type(value[name]) for name in empty if value.get(name) is not None}:
                names |= first
                empty = [name for name in empty if name not in first]
    if not names:
        row, line = next((each for block in _blocks(path) for each in block), (1, b""))
        raise DataError(f"{path}, row {row}: not a JSON object with at least one key{_array(line)}")

    roles = names.keys() if with_role is None else with_role(names)
    unneeded = set[str]() if wanted is None else names.keys() - set(wanted)
    unread = tuple(name for name, first in names.items() if name in unneeded or (first is dict and name not in roles))
    kept = tuple(name for name in names if name not in unread)

    def read(rejects: Rejects) -> Iterator[pl.DataFrame]:
        columns = _Columns(path, kept, frozenset(id_columns(kept)), rejects)
        for block in _blocks(path):
            yield columns.frame(block)

    return Table(path, kept, text.lines, read, typed=True, unread=unread)


def alike(tables: Sequence[Table]) -> list[Table]:
    """Returns the files of one folder with the columns of all: a key that a file lacks is missing in its rows.

    A key that is left unread in one file is so in all.
    """
    unread = {name for table in tables for name in table.unread}
    names = tuple(dict.fromkeys(name for table in tables for name in table.columns if name not in unread))

    def filled(table: Table, rejects: Rejects) -> Iterator[pl.DataFrame]:
        for frame in table.read(rejects):
            missing = (pl.lit(None).alias(name) for name in names if name not in table.columns)
            yield frame.drop(unread, strict=False).with_columns(missing)

    return [replace(table, columns=names, read=partial(filled, table)) for table in tables]


def _blocks(path: Path) -> Iterator[list[tuple[int, bytes]]]:
    row = 1
    with path.open("rb") as handle:
        while block := handle.readlines(BLOCK_BYTES):
            if row == 1:
                block[0] = block[0].removeprefix(BOM_UTF8)
            yield [(number, line) for number, line in enumerate(block, start=row) if not line.isspace()]
            row += len(block)


def _array(line: bytes) -> str:
    """What to do if a line that is no object begins an array."""
    return "; one object per line is read: jq -c '.[]' FILE" if line.lstrip().startswith(b"[") else ""


def _loads(line: bytes) -> Any:
    try:
        return orjson.loads(line)
    except orjson.JSONDecodeError:
        return None


class _Columns:
    """Converts objects to columns and remembers each column's first type."""

    def __init__(self, path: Path, names: tuple[str, ...], ids: frozenset[str], rejects: Rejects) -> None:
        self.path, self.names, self.ids, self.rejects = path, names, ids, rejects
        self.types: dict[str, type] = {}
        self.floats: dict[str, bool] = {}  # columns of lists: whether their numbers stay numbers

    def frame(self, block: list[tuple[int, bytes]]) -> pl.DataFrame:
        values = [_loads(line) for _, line in block]
        wrong = [place for place, value in enumerate(values) if not isinstance(value, dict)]
        if wrong:
            rows = pl.Series([block[place][0] for place in wrong])
            texts = pl.Series([block[place][1][:80].decode("utf-8", "replace").rstrip() for place in wrong])
            self.rejects.add(self.path, "", f"not a JSON object{_array(block[wrong[0]][1])}", rows, texts)
            block = [line for line, value in zip(block, values, strict=True) if isinstance(value, dict)]
            values = [value for value in values if isinstance(value, dict)]
        columns = {name: [value.get(name) for value in values] for name in self.names}
        bad: set[int] = set()
        for name, column in columns.items():
            bad |= self._refused(name, column, block, bad)
        if bad:
            keep = [place for place in range(len(block)) if place not in bad]
            columns = {name: [column[place] for place in keep] for name, column in columns.items()}
            block = [block[place] for place in keep]
        # By name: of a list of series polars renames one without a name.
        series = {name: self._series(name, column) for name, column in columns.items()}
        return pl.DataFrame(series | {ROW: pl.Series([row for row, _ in block], dtype=pl.UInt32)})

    def _refused(self, name: str, column: list[Any], block: list[tuple[int, bytes]], before: set[int]) -> set[int]:
        """Rejects the values that do not fit the column's first type and returns their places.

        Those at the places `before` are of rows that another column rejected: a row counts once.
        """
        found = set(map(type, column)) - {type(None)}
        if name not in self.types and found:
            self.types[name] = next(type(value) for value in column if value is not None)
        expected = self.types.get(name)
        if expected is None:
            return set()
        amounts = expected in (int, float) and name not in self.ids
        allowed = {int, float} if amounts else {expected} - {dict}
        reasons: dict[str, list[int]] = {}
        if amounts and expected is int:
            large = [place for place, v in enumerate(column) if type(v) in (int, float) and not -LIMIT <= v < LIMIT]
            reasons[f"wrong type: beyond 64 bits, where the column began with {_NAMES[int]}"] = large
        if not found <= allowed:
            reason = "wrong type: an object; allowed are strings, numbers, booleans and lists"
            if expected is not dict:
                reason = f"wrong type: the column began with {_NAMES[expected]}"
            if expected is not dict and name in self.ids:
                reason += "; ids that differ only by type would be one id"
            reasons[reason] = [
                place for place, value in enumerate(column) if value is not None and type(value) not in allowed
            ]
        reasons = {reason: [place for place in bad if place not in before] for reason, bad in reasons.items()}
        for reason, bad in reasons.items():
            texts = pl.Series([_written(block[place][1], name, column[place]) for place in bad])
            self.rejects.add(self.path, name, reason, pl.Series([block[place][0] for place in bad]), texts)
        return {place for bad in reasons.values() for place in bad}

    def _series(self, name: str, column: list[Any]) -> pl.Series:
        expected = self.types.get(name)
        if expected is None or expected is dict:
            return pl.Series(name, [None] * len(column), dtype=pl.Null)
        if name in self.ids and expected is int:
            # As text, so that ids beyond 64 bits stay exact.
            return pl.Series(name, [None if value is None else str(value) for value in column], dtype=pl.String)
        if expected is list:
            return self._lists(name, column)
        dtype = pl.Float64() if expected is int and float in set(map(type, column)) else _DTYPES[expected]
        return pl.Series(name, column, dtype=dtype, strict=False)

    def _lists(self, name: str, column: list[Any]) -> pl.Series:
        """Lists of text; of numbers if the first block with a filled list has nothing but numbers, one with a point."""
        types = {type(each) for value in column if value is not None for each in value} - {type(None)}
        if types:
            self.floats.setdefault(name, types <= {int, float} and float in types)
        floats = self.floats.get(name, False)
        if floats and types <= {int, float}:
            return pl.Series(name, column, dtype=pl.List(pl.Float64), strict=False)

        def texts(values: list[Any]) -> list[str | None]:
            # Among numbers, a null is a bad row, so it must stay.
            return [None if each is None else _text(each) for each in values if floats or each is not None]

        lists = [None if value is None else texts(value) for value in column]
        return pl.Series(name, lists, dtype=pl.List(pl.String))


def _written(line: bytes, name: str, value: Any) -> str:
    """Returns a value as written in the line; numbers keep all their digits."""
    if type(value) in (int, float):
        return str(json.loads(line, parse_int=str, parse_float=str)[name])
    return orjson.dumps(value).decode()


def _text(value: Any) -> str:
    return value if isinstance(value, str) else orjson.dumps(value).decode()
