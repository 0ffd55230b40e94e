"""Reads files with ids: users of `towers recall`, features of `towers embed`, pairs of similar items.

Accepts csv, tsv, parquet and jsonl files with columns of ids; for users also txt files with one id per line. As for
`towers prepare` they may be packed (``.gz``) or behind a URL.
"""

from collections.abc import Collection, Sequence
from pathlib import Path

import polars as pl

from pipelines.errors import DataError
from pipelines.ingest.formats.column_names import shown
from pipelines.ingest.formats.copies import Copies, bare_name, local_copies
from pipelines.ingest.formats.delimited import csv_table
from pipelines.ingest.formats.jsonl import jsonl_table
from pipelines.ingest.formats.rejects import ROW, Rejects
from pipelines.ingest.formats.table import Table, lines_table, parquet_table

COLUMN = "user_id"
SUFFIXES = (".csv", ".tsv", ".parquet", ".jsonl")
TEXT = ".txt"


def read_users(place: Path | str) -> pl.Series:
    """Reads user ids as strings, without duplicates.

    Raises:
        DataError: the file is missing, of an unknown kind, lacks the column, or has a bad row (an empty id, text that
            is not UTF-8, too many values); names the row.
    """
    with local_copies() as copies:
        path = copies.local(place)
        ids = read_ids(path, (COLUMN,), Rejects(hint=""), copies, (*SUFFIXES, TEXT))
    return ids[COLUMN].unique(maintain_order=True)


def read_ids(
    path: Path, columns: Sequence[str], rejects: Rejects, copies: Copies, suffixes: Sequence[str] = SUFFIXES
) -> pl.DataFrame:
    """Reads id columns as strings.

    Args:
        path: the file, or the copy of one.
        columns: the columns to read; a txt file has only the first.
        rejects: receives rows without an id.
        copies: unpacks the file if it ends with ``.gz``.
        suffixes: the allowed kinds of files.

    Returns:
        `columns` and `ROW`, rows in file order.

    Raises:
        DataError: the file is missing, of an unknown kind, lacks a column, a column holds no ids, or `rejects` refuses
            a bad row.
    """
    if bare_name(path).suffix == TEXT in suffixes and path.is_file() and not copies.unpacked(path).stat().st_size:
        return pl.DataFrame(schema=_schema(columns))
    return ids_of(open_table(path, columns, copies, suffixes), columns, rejects)


def open_table(
    path: Path,
    columns: Sequence[str],
    copies: Copies,
    suffixes: Sequence[str] = SUFFIXES,
    wanted: Collection[str] | None = None,
) -> Table:
    """Opens a file that has some id columns; arguments and errors as of `read_ids`. Keys of JSON Lines that are not
    `wanted`, by default `columns`, may hold anything."""
    suffix = bare_name(path).suffix
    if suffix not in suffixes:
        raise DataError(f"{path}: unknown kind of file {suffix!r}; allowed are {', '.join(suffixes)}, also as .gz")
    if not path.is_file():
        raise DataError(f"{path}: no such file")
    table = _opened(copies.unpacked(path), suffix, columns, columns if wanted is None else wanted)
    for column in columns:
        if column not in table.columns:
            raise DataError(f"{path}: no column {column!r}; it has {shown((*table.columns, *table.unread))}")
    return table


def ids_of(table: Table, columns: Sequence[str], rejects: Rejects) -> pl.DataFrame:
    """Reads the id columns of an open file; arguments, result and errors as of `read_ids`."""
    parts = [pl.DataFrame(schema=_schema(columns))]
    for batch in table.read(rejects):
        for column in columns:
            dtype = batch.schema[column]
            if not (dtype == pl.String or dtype.is_integer() or dtype == pl.Null):
                raise DataError(f"{table.path}: column {column!r} must hold strings or whole numbers, holds {dtype}")
        ids = batch.select(*(pl.col(column).cast(pl.String) for column in columns), pl.col(ROW).cast(pl.Int64))
        for column in columns:
            missing = pl.col(column).is_null() | (pl.col(column).str.strip_chars() == "")
            ids = rejects.split_off(ids, missing, table.path, column, "no id")
        parts.append(ids)
    return pl.concat(parts)


def _schema(columns: Sequence[str]) -> pl.Schema:
    return pl.Schema({**dict.fromkeys(columns, pl.String), ROW: pl.Int64})


def _opened(path: Path, suffix: str, columns: Sequence[str], wanted: Collection[str]) -> Table:
    # Text columns stay text: an id like 007 must not become 7.
    match suffix:
        case ".csv":
            return csv_table(path)
        case ".tsv":
            return csv_table(path, separator="\t")
        case ".parquet":
            return parquet_table(path)
        case ".jsonl":
            kept = set(columns).intersection
            return jsonl_table(path, kept, kept, wanted=wanted)
        case _:
            return lines_table(path, columns[:1], lambda lines, _: lines.rename({"line": columns[0]}))
