"""Reads the original MovieLens files: `u.data`, `ratings.dat` and `ratings.csv`, and the movies and users beside them.

Sources: the README files of ml-100k, ml-1m and ml-latest (https://grouplens.org/datasets/movielens/).
"""

from collections.abc import Callable, Iterator
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
        DataError: the name is not one of MovieLens, or the file is missing, empty or not UTF-8 (ratings only: the
            movies of the older sets may be Latin-1 and are then read as such).
    """
    name = str(bare_name(path))
    if name == "u.data":
        return csv_table(path, separator="\t", quote=None, header=RATING_COLUMNS, skip=skip)
    if name == "ratings.dat":
        return lines_table(path, RATING_COLUMNS, partial(_ratings, path), skip=skip)
    if name == "ratings.csv":
        return csv_table(path, skip=skip)
    if name == "movies.csv":
        return csv_table(path, kinds={"title": "string", "genres": "list"}, separators={"genres": "|"}, skip=skip)
    if name == "u.item":
        movie = ("item_id", "title", "release_date", "genres")
        return _small_file(path, movie, "|", {"genres": "list"}, 5 + len(GENRES), _movie_100k)
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


def _ratings(path: Path, lines: pl.DataFrame, rejects: Rejects) -> pl.DataFrame:
    # One field more than expected shows lines that are too long.
    names = [*RATING_COLUMNS, "__more__"]
    width = len(RATING_COLUMNS)
    fields = pl.col("line").str.split_exact("::", width).struct.rename_fields(names)
    frame = lines.with_columns(fields.alias("fields")).unnest("fields")
    bad = pl.col(RATING_COLUMNS[-1]).is_null() | pl.col("__more__").is_not_null()
    frame = rejects.split_off(frame, bad, path, "line", f"expected {width} values between '::'")
    values = (pl.when(pl.col(name) != "").then(pl.col(name)) for name in RATING_COLUMNS)
    return frame.select(*values, ROW)


def _movie_100k(fields: list[str]) -> list[str]:
    flags = [genre for genre, flag in zip(GENRES, fields[5:], strict=False) if flag == "1"]
    return [*fields[:3], "|".join(flags)]


def _small_file(
    path: Path,
    columns: tuple[str, ...],
    separator: str,
    kinds: dict[str, Kind],
    width: int | None = None,
    take: Callable[[list[str]], list[str]] = list,
) -> Table:
    """Reads a file at once. Lines have `width` values if these differ from the columns; `take` converts them."""
    width = width or len(columns)
    if not path.is_file():
        raise DataError(f"{path}: no such file")
    raw = path.read_bytes()
    try:
        lines = raw.decode("utf-8").splitlines()
    except UnicodeDecodeError:
        lines = raw.decode("latin-1").splitlines()

    def read(rejects: Rejects) -> Iterator[pl.DataFrame]:
        rows = [(row, line.split(separator)) for row, line in enumerate(lines, start=1) if line.strip()]
        for row, values in rows:
            if len(values) != width:
                reason = f"expected {width} values between {separator!r}"
                rejects.add(path, "", reason, pl.Series([row]), pl.Series([separator.join(values)[:80]]))
        good = [(row, take(values)) for row, values in rows if len(values) == width]
        data = {name: [values[place] or None for _, values in good] for place, name in enumerate(columns)}
        schema: dict[str, type[pl.DataType]] = {**dict.fromkeys(columns, pl.String), ROW: pl.UInt32}
        yield pl.DataFrame({**data, ROW: [row for row, _ in good]}, schema=schema)

    return Table(path, columns, len(lines), read, kinds=kinds, separators={"genres": "|"})
