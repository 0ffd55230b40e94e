"""Finds the input files of a path and their format: events, items, users, and the split that a folder gives."""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path, PurePath
from typing import Literal, get_args

from pipelines.dataset.arrays import SPLITS
from pipelines.dataset.manifest import Kind
from pipelines.dataset.partition_keys import keys_of
from pipelines.errors import DataError
from pipelines.ingest.formats.benchmark_lists import (
    lightgcn_table,
    looks_like_pairs,
    pairs_table,
    sequences_table,
)
from pipelines.ingest.formats.column_names import may_hold_ids
from pipelines.ingest.formats.copies import Copies, bare_name, copied
from pipelines.ingest.formats.delimited import csv_table
from pipelines.ingest.formats.json_lists import json_lists_table
from pipelines.ingest.formats.jsonl import alike, jsonl_table
from pipelines.ingest.formats.movielens import EVENT_FILES, ITEM_FILES, USER_FILES, movielens_table
from pipelines.ingest.formats.partitions import TRUTH, in_reach, with_keys
from pipelines.ingest.formats.recbole import recbole_table
from pipelines.ingest.formats.table import Table, parquet_table
from towers.config.sections import DataConfig

Format = Literal["auto", "csv", "parquet", "jsonl", "movielens", "recbole", "lightgcn", "sequences", "pairs"]
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
ATTRIBUTES = {**SUFFIXES, ".json": "json"}
ORDERED = ("sequences", "pairs")  # lines in time order
SEQUENCES = "sequences.txt"
MOST_FILES = 2**16  # a file's number is stored in 16 bits
TEXT_TABLES: dict[str, Callable[..., Table]] = {
    "csv": csv_table,
    "movielens": movielens_table,
    "recbole": recbole_table,
    "pairs": pairs_table,
    "json": json_lists_table,
    "lightgcn": lightgcn_table,
    "sequences": sequences_table,
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
    events: Path | str,
    items: Path | str | None,
    users: Path | str | None,
    format: str,
    config: DataConfig,
    copies: Copies,
    *,
    skip: bool,
) -> Source:
    """Finds and opens all input files.

    Raises:
        DataError: a path is missing, a file cannot be read, or the format cannot be detected.
    """
    if format not in FORMATS:
        raise DataError(f"--format {format!r}: allowed are {', '.join(FORMATS)}")
    events = copies.local(events)
    if not events.exists():
        raise DataError(f"{events}: no such file or folder")
    files = _files(events) if events.is_dir() else [events]
    kind = _detect(events, files, copies) if format == "auto" else format
    chosen = [(None, events)] if events.is_file() else _event_files(events, files, kind)
    item_file = copies.local(items) if items else _beside(events, files, kind, "items")
    user_file = copies.local(users) if users else _beside(events, files, kind, "users")
    opened = partial(_open, config=config, copies=copies, skip=skip)
    tables = [opened(path, kind) for _, path in chosen]
    if kind == "jsonl":
        tables = alike(tables)
    if events.is_dir():
        tables = with_keys(tables, [keys_of(_inside(events, path)) for _, path in chosen])
    truth = Path(os.fspath(events)) / TRUTH
    return Source(
        kind,
        tuple(zip((split for split, _ in chosen), tables, strict=True)),
        opened(item_file, _attribute_kind(item_file)) if item_file else None,
        opened(user_file, _attribute_kind(user_file)) if user_file else None,
        truth if truth.is_dir() else None,
    )


def _open(path: Path, kind: str, *, config: DataConfig, copies: Copies, skip: bool) -> Table:
    path, suffix = copies.unpacked(path), bare_name(path).suffix
    if suffix == ".tsv":
        table = csv_table(path, separator="\t", skip=skip)
    elif kind == "parquet":
        table = parquet_table(path)
    elif kind == "jsonl":
        table = jsonl_table(path, partial(may_hold_ids, config.columns), skip=skip)
    else:
        table = TEXT_TABLES[kind](path, skip=skip)
    vectors: dict[str, Kind] = dict.fromkeys(config.vectors, "vector")
    return replace(table, kinds={**table.kinds, **vectors}, separators={**table.separators, **config.lists})


def _attribute_kind(path: Path) -> str:
    if not path.is_file():
        raise DataError(f"{path}: no such file")
    name = bare_name(path)
    kind = "movielens" if name.name in (*ITEM_FILES, *USER_FILES) else ATTRIBUTES.get(name.suffix)
    if kind is None:
        allowed = ", ".join((*ATTRIBUTES, *ITEM_FILES, *USER_FILES))
        raise DataError(f"{path}: cannot tell its format by its name; known are {allowed}, also with .gz")
    return kind


def _files(folder: Path) -> list[Path]:
    """The files directly in a folder and in its partitions, in the order of their names."""
    root = Path(os.fspath(folder))
    found = [path for path in _walk(root) if in_reach(path.relative_to(root))]
    if not found:
        raise DataError(f"{folder}: the folder holds no file")
    return found if root == folder else [copied(f"{folder}/{path.relative_to(root)}", path) for path in found]


def _walk(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.iterdir()):
        if path.is_file():
            yield path
        elif "=" in path.name:
            yield from _walk(path)


def _inside(folder: Path, path: Path) -> PurePath:
    """The path of a file in a folder, from there."""
    return PurePath(str(path)).relative_to(str(folder))


def _detect(events: Path, files: list[Path], copies: Copies) -> str:
    names = {bare_name(path).name for path in files}
    if names & set(EVENT_FILES):
        return "movielens"
    if events.is_dir() and {"train.txt", "test.txt"} <= names:
        return "lightgcn"
    if SEQUENCES in names:
        return "sequences"
    if _ending(files, ".inter"):
        return "recbole"
    kinds = sorted({SUFFIXES[bare_name(path).suffix] for path in _tables(files)})
    texts = _ending(files, ".txt")
    if not kinds and len(texts) == 1:
        return "pairs" if looks_like_pairs(copies.unpacked(texts[0])) else "lightgcn"
    if len(kinds) == 1 and kinds[0] != "recbole":
        return kinds[0]
    found = ", ".join(path.name for path in files[:8])
    raise DataError(f"{events}: cannot tell the format of {found}; name it with --format ({', '.join(FORMATS[1:])})")


def _ending(files: list[Path], suffix: str) -> list[Path]:
    return [path for path in files if bare_name(path).suffix == suffix]


def _tables(files: list[Path]) -> list[Path]:
    """The files of a folder that can hold events: `events.*`, else `train.*` and the like, else all but attributes."""
    tables = [path for path in files if bare_name(path).suffix in SUFFIXES]
    for stems in (("events",), SPLITS):
        if chosen := [path for path in tables if bare_name(path).stem in stems]:
            return chosen
    return [path for path in tables if bare_name(path).stem not in ("items", "users")]


def _event_files(folder: Path, files: list[Path], kind: str) -> list[tuple[str | None, Path]]:
    by_name = {bare_name(path).name: path for path in files}
    if kind == "movielens":
        found = [by_name[name] for name in EVENT_FILES if name in by_name][:1]
    elif kind == "recbole":
        found = _ending(files, ".inter")
    elif kind == "sequences" and SEQUENCES in by_name:
        found = [by_name[SEQUENCES]]
    elif kind in ("lightgcn", "sequences"):
        found = [by_name[f"{split}.txt"] for split in SPLITS if f"{split}.txt" in by_name] or _ending(files, ".txt")
    elif kind == "pairs":
        found = _ending(files, ".txt")
    else:
        found = [path for path in _tables(files) if SUFFIXES[bare_name(path).suffix] == kind]
    names = {str(path) for path in files}
    if twice := [path.name for path in files if path.suffix.lower() == ".gz" and str(path)[:-3] in names]:
        raise DataError(f"{folder}: holds {twice[0]} and the same file without .gz; keep one of them")
    if len(found) > MOST_FILES:
        raise DataError(
            f"{folder}: {len(found):,} files of events; at most {MOST_FILES:,} are read, so join small ones"
        )
    # RecBole's names look like ml.train.inter, others like train.csv.
    splits = [bare_name(path).stem.rpartition(".")[2] for path in found]
    if "train" in splits and set(splits) <= set(SPLITS):
        if "test" not in splits or len(set(splits)) < len(splits):
            raise DataError(f"{folder}: a given split needs one train and one test file, got {', '.join(by_name)}")
        return sorted(zip(splits, found, strict=True), key=lambda pair: SPLITS.index(pair[0]))
    if not found or (len(found) > 1 and kind in ("recbole", "pairs", "lightgcn")):
        raise DataError(f"{folder}: expected one file of {kind} events, got {', '.join(by_name)}")
    return [(None, path) for path in found]


def _beside(events: Path, files: list[Path], kind: str, what: str) -> Path | None:
    """The items or users file in the events' folder; for a single events file, only if its format names it."""
    if events.is_file():
        if kind not in ("movielens", "recbole"):
            return None
        files = _files(Path(os.fspath(events)).parent)
    if kind == "movielens":
        names = ITEM_FILES if what == "items" else USER_FILES
        by_name = {bare_name(path).name: path for path in files}
        return next((by_name[name] for name in names if name in by_name), None)
    if kind == "recbole":
        found = _ending(files, f".{what.removesuffix('s')}")
        if events.is_file():
            found = [path for path in found if bare_name(path).stem == bare_name(events).stem]
    else:
        found = [
            path for path in files if bare_name(path).suffix in ATTRIBUTES and path.name.lower().startswith(f"{what}.")
        ]
    if len(found) > 1:
        raise DataError(f"{events}: several files of {what}: {', '.join(path.name for path in found)}")
    return found[0] if found else None
