"""Finds the input files of a path and their format: events, items, users, and the split that a folder gives."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Literal, get_args

from pipelines.dataset.arrays import SPLITS
from pipelines.dataset.manifest import Kind
from pipelines.errors import DataError
from pipelines.ingest.formats.benchmark_lists import lightgcn_table, looks_like_pairs, pairs_table
from pipelines.ingest.formats.column_names import may_hold_ids
from pipelines.ingest.formats.delimited import csv_table
from pipelines.ingest.formats.jsonl import jsonl_table
from pipelines.ingest.formats.movielens import EVENT_FILES, ITEM_FILES, USER_FILES, movielens_table
from pipelines.ingest.formats.recbole import recbole_table
from pipelines.ingest.formats.table import Table, parquet_table
from towers.config.sections import DataConfig

Format = Literal["auto", "csv", "parquet", "jsonl", "movielens", "recbole", "lightgcn", "pairs"]
FORMATS: tuple[str, ...] = get_args(Format)
SUFFIXES = {
    ".csv": "csv",
    ".tsv": "csv",
    ".parquet": "parquet",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".inter": "recbole",
    ".item": "recbole",
    ".user": "recbole",
}
TEXT_TABLES: dict[str, Callable[..., Table]] = {
    "csv": csv_table,
    "movielens": movielens_table,
    "recbole": recbole_table,
    "pairs": pairs_table,
    "lightgcn": lightgcn_table,
}


@dataclass(frozen=True)
class Source:
    """The opened input.

    Attributes:
        format: the detected or given format.
        events: the tables, each with its split or None.
        items: attributes of items, or None.
        users: attributes of users, or None.
        truth: the folder with a synthetic world's truth, or None.
    """

    format: str
    events: tuple[tuple[str | None, Table], ...]
    items: Table | None
    users: Table | None
    truth: Path | None


def open_source(
    events: Path, items: Path | None, users: Path | None, format: str, config: DataConfig, *, skip: bool
) -> Source:
    """Finds and opens all input files.

    Raises:
        DataError: a path is missing, a file cannot be read, or the format cannot be detected.
    """
    if format not in FORMATS:
        raise DataError(f"--format {format!r}: allowed are {', '.join(FORMATS)}")
    if not events.exists():
        raise DataError(f"{events}: no such file or folder")
    files = _files(events) if events.is_dir() else [events]
    kind = _detect(events, files) if format == "auto" else format
    chosen = [(None, events)] if events.is_file() else _event_files(events, files, kind)
    items = items or _beside(events, kind, "items")
    users = users or _beside(events, kind, "users")
    truth = events / "truth" if (events / "truth").is_dir() else None
    return Source(
        kind,
        tuple((split, _open(path, kind, config, skip=skip)) for split, path in chosen),
        _open_attributes(items, config, skip=skip) if items else None,
        _open_attributes(users, config, skip=skip) if users else None,
        truth,
    )


def _open(path: Path, kind: str, config: DataConfig, *, skip: bool) -> Table:
    if path.suffix.lower() == ".tsv":
        table = csv_table(path, separator="\t", skip=skip)
    elif kind == "parquet":
        table = parquet_table(path)
    elif kind == "jsonl":
        table = jsonl_table(path, partial(may_hold_ids, config.columns), skip=skip)
    else:
        table = TEXT_TABLES[kind](path, skip=skip)
    vectors: dict[str, Kind] = dict.fromkeys(config.vectors, "vector")
    return replace(table, kinds={**table.kinds, **vectors}, separators={**table.separators, **config.lists})


def _open_attributes(path: Path, config: DataConfig, *, skip: bool) -> Table:
    if not path.is_file():
        raise DataError(f"{path}: no such file")
    kind = "movielens" if path.name.lower() in (*ITEM_FILES, *USER_FILES) else SUFFIXES.get(path.suffix.lower())
    if kind is None:
        allowed = ", ".join((*SUFFIXES, *ITEM_FILES, *USER_FILES))
        raise DataError(f"{path}: cannot tell its format by its name; known are {allowed}")
    return _open(path, kind, config, skip=skip)


def _files(folder: Path) -> list[Path]:
    files = sorted(path for path in folder.iterdir() if path.is_file() and not path.name.startswith("."))
    if not files:
        raise DataError(f"{folder}: the folder holds no file")
    return files


def _detect(events: Path, files: list[Path]) -> str:
    names = {path.name.lower() for path in files}
    if names & set(EVENT_FILES):
        return "movielens"
    if events.is_dir() and {"train.txt", "test.txt"} <= names:
        return "lightgcn"
    if _ending(files, ".inter"):
        return "recbole"
    kinds = sorted({SUFFIXES[path.suffix.lower()] for path in _tables(files)})
    texts = _ending(files, ".txt")
    if not kinds and len(texts) == 1:
        return "pairs" if looks_like_pairs(texts[0]) else "lightgcn"
    if len(kinds) == 1 and kinds[0] != "recbole":
        return kinds[0]
    found = ", ".join(path.name for path in files[:8])
    raise DataError(f"{events}: cannot tell the format of {found}; name it with --format ({', '.join(FORMATS[1:])})")


def _ending(files: list[Path], suffix: str) -> list[Path]:
    return [path for path in files if path.suffix.lower() == suffix]


def _tables(files: list[Path]) -> list[Path]:
    """The files of a folder that can hold events: `events.*`, else `train.*` and the like, else all but attributes."""
    tables = [path for path in files if path.suffix.lower() in SUFFIXES]
    for stems in (("events",), SPLITS):
        if chosen := [path for path in tables if path.stem.lower() in stems]:
            return chosen
    return [path for path in tables if path.stem.lower() not in ("items", "users")]


def _event_files(folder: Path, files: list[Path], kind: str) -> list[tuple[str | None, Path]]:
    by_name = {path.name.lower(): path for path in files}
    if kind == "movielens":
        found = [by_name[name] for name in EVENT_FILES if name in by_name][:1]
    elif kind == "recbole":
        found = _ending(files, ".inter")
    elif kind == "lightgcn":
        found = [by_name[f"{split}.txt"] for split in SPLITS if f"{split}.txt" in by_name] or _ending(files, ".txt")
    elif kind == "pairs":
        found = _ending(files, ".txt")
    else:
        found = [path for path in _tables(files) if SUFFIXES[path.suffix.lower()] == kind]
    # RecBole's names look like ml.train.inter, others like train.csv.
    splits = [path.stem.lower().rpartition(".")[2] for path in found]
    if "train" in splits and set(splits) <= set(SPLITS):
        if "test" not in splits or len(set(splits)) < len(splits):
            raise DataError(f"{folder}: a given split needs one train and one test file, got {', '.join(by_name)}")
        return sorted(zip(splits, found, strict=True), key=lambda pair: SPLITS.index(pair[0]))
    if not found or (len(found) > 1 and kind in ("recbole", "pairs", "lightgcn")):
        raise DataError(f"{folder}: expected one file of {kind} events, got {', '.join(by_name)}")
    return [(None, path) for path in found]


def _beside(events: Path, kind: str, what: str) -> Path | None:
    """The items or users file in the events' folder; for a single events file, only if its format names it."""
    folder = events if events.is_dir() else events.parent
    if kind == "movielens":
        names = ITEM_FILES if what == "items" else USER_FILES
        return next((folder / name for name in names if (folder / name).is_file()), None)
    if events.is_file() and kind != "recbole":
        return None
    files = sorted(path for path in folder.iterdir() if path.suffix.lower() in SUFFIXES)
    if kind == "recbole":
        found = _ending(files, f".{what.removesuffix('s')}")
        if events.is_file():
            found = [path for path in found if path.stem == events.stem]
    else:
        found = [path for path in files if path.name.lower().startswith(f"{what}.")]
    if len(found) > 1:
        raise DataError(f"{folder}: several files of {what}: {', '.join(path.name for path in found)}")
    return found[0] if found else None
