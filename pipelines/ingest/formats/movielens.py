"""Reads the original MovieLens files: `u.data`, `ratings.dat` and `ratings.csv`, and the movies and users beside them.

Sources: the README files of ml-100k, ml-1m and ml-latest (https://grouplens.org/datasets/movielens/).
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import polars as pl

from pipelines.dataset.manifest import Kind
from pipelines.errors import DataError
from pipelines.ingest.formats.copies import bare_name
from pipelines.ingest.formats.delimited import csv_table
from pipelines.ingest.formats.rejects import ROW, Rejects
from pipelines.ingest.formats.table import Table, lines_table

RATING_COLUMNS = ("user_id", "item_id", "rating", "timestamp")
MOVIE = ("item_id", "title", "release_date")
# fmt: off
GENRES = (
    "unknown", "Action", "Adventure", "Animation", "Children's", "Comedy", "Crime", "Documentary", "Drama", "Fantasy",
    "Film-Noir", "Horror", "Musical", "Mystery", "Romance", "Sci-Fi", "Thriller", "War", "Western",
)
# fmt: on
EVENT_FILES = ("u.data", "ratings.dat", "ratings.csv")
ITEM_FILES = ("u.item", "movies.dat", "movies.csv")
USER_FILES = ("u.user", "users.dat")


def movielens_table(path: Path, *, skip: bool = False) -> Table:
    """Opens a MovieLens file by its name.

    Raises:
        DataError: the name is not one of MovieLens, or the file is empty or not UTF-8 (ratings only: the
            movies of the older sets may be Latin-1 and are then read as such).
    """
    name = str(bare_name(path))
    if name == "u.data":
        return csv_table(path, separator="\t", quote=None, header=RATING_COLUMNS, skip=skip)
    if name == "ratings.dat":
        return lines_table(path, RATING_COLUMNS, partial(_fields, path, RATING_COLUMNS, "::"), skip=skip)
    if name == "ratings.csv":
        return csv_table(path, skip=skip)
    if name == "movies.csv":
        return csv_table(path, kinds={"title": "string", "genres": "list"}, separators={"genres": "|"}, skip=skip)
    if name == "u.item":
        fields = (*MOVIE, "video_release_date", "url", *GENRES)
        return _genres_of_flags(_small_file(path, fields, "|", {"genres": "list"}))
    if name == "movies.dat":
        return _small_file(path, ("item_id", "title", "genres"), "::", {"genres": "list"})
    if name == "u.user":
        kinds: dict[str, Kind] = {"age": "number", "zip_code": "string"}
        return _small_file(path, ("user_id", "age", "gender", "occupation", "zip_code"), "|", kinds)
    if name == "users.dat":
        # Age and occupation are group codes here, not amounts.
        columns = ("user_id", "gender", "age", "occupation", "zip_code")
        return _small_file(path, columns, "::", dict.fromkeys(columns[1:], "string"))
    names = ", ".join((*EVENT_FILES, *ITEM_FILES, *USER_FILES))
    raise DataError(f"{path}: not a MovieLens file; known are {names}")


def _fields(
    path: Path, columns: tuple[str, ...], separator: str, lines: pl.DataFrame, rejects: Rejects
) -> pl.DataFrame:
    # One field more than expected shows lines that are too long.
    fields = pl.col("line").str.split_exact(separator, len(columns)).struct.rename_fields([*columns, "__more__"])
    frame = lines.with_columns(fields.alias("fields")).unnest("fields")
    bad = pl.col(columns[-1]).is_null() | pl.col("__more__").is_not_null()
    frame = rejects.split_off(frame, bad, path, "line", f"expected {len(columns)} values between {separator!r}")
    return frame.select(*(pl.when(pl.col(name) != "").then(pl.col(name)) for name in columns), ROW)


def _genres_of_flags(table: Table) -> Table:
    genres = [pl.when(pl.col(genre) == "1").then(pl.lit(genre)) for genre in GENRES]
    joined = pl.concat_str(genres, separator="|", ignore_nulls=True).alias("genres")

    def read(rejects: Rejects) -> Iterator[pl.DataFrame]:
        for frame in table.read(rejects):
            yield frame.select(*MOVIE, pl.when(joined != "").then(joined), ROW)

    return replace(table, columns=(*MOVIE, "genres"), read=read)


def _small_file(path: Path, columns: tuple[str, ...], separator: str, kinds: dict[str, Kind]) -> Table:
    """Reads a file at once."""
    raw = path.read_bytes()
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = raw.decode("latin-1")
    line = pl.col("line")
    # splitlines would also cut at what is a letter of Windows in a title, byte 0x85.
    lines = pl.DataFrame({"line": text.split("\n")}, {"line": pl.String}).with_row_index(ROW, 1)
    lines = lines.with_columns(line.str.strip_suffix("\r")).filter(line.str.strip_chars() != "")

    def read(rejects: Rejects) -> Iterator[pl.DataFrame]:
        yield _fields(path, columns, separator, lines, rejects)

    return Table(path, columns, lines.height, read, kinds=kinds, separators={"genres": "|"})
