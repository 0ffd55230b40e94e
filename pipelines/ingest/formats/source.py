"""Opens the input files of a path: events, items, users, each by the reader of its format."""

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from pipelines.console import is_text, say
from pipelines.dataset.manifest import Kind
from pipelines.dataset.partition_keys import keys_of
from pipelines.errors import DataError
from pipelines.ingest.formats import BESIDE
from pipelines.ingest.formats.benchmark_lists import (
    lightgcn_table,
    pairs_table,
    sequences_table,
)
from pipelines.ingest.formats.column_names import attribute_id_columns, id_columns, role_columns
from pipelines.ingest.formats.copies import Copies, Copy, bare_name
from pipelines.ingest.formats.delimited import csv_table
from pipelines.ingest.formats.folder import (
    ATTRIBUTES,
    FORMATS,
    detect,
    event_files,
    file_beside,
    files_of,
    inside,
    tell_unread,
)
from pipelines.ingest.formats.json_lists import holds_lines, json_lists_table
from pipelines.ingest.formats.jsonl import alike, jsonl_table
from pipelines.ingest.formats.movielens import ITEM_FILES, USER_FILES, movielens_table
from pipelines.ingest.formats.partitions import TRUTH, warn_of_table_log, with_keys
from pipelines.ingest.formats.recbole import recbole_table
from pipelines.ingest.formats.table import Table, parquet_table
from towers.config.sections import DataConfig

ORDERED = ("sequences", "pairs")  # lines in time order
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
        DataError: a path is missing, a file cannot be read or would be left out, or the format cannot be detected.
    """
    for given in (events, items, users):
        if given is not None and not is_text(str(given)):
            raise DataError(f"{os.fsencode(str(given))!r}: its name is not UTF-8; rename it")
    if format not in FORMATS:
        raise DataError(f"--format {format!r}: allowed are {', '.join(FORMATS)}")
    events = copies.local(events)
    if not events.exists():
        raise DataError(f"{events}: no such file or folder")
    files = [events]
    if events.is_dir():
        warn_of_table_log(events, (path.name for path in Path(os.fspath(events)).iterdir()))
        files = files_of(events)
        if wrong := [part for path in files for part in inside(events, path).parts if not is_text(part)]:
            raise DataError(f"{events}: the name {os.fsencode(wrong[0])!r} is not UTF-8; rename it")
    kind = detect(events, files, copies) if format == "auto" else format
    chosen = [(None, events)] if events.is_file() else event_files(events, files, kind)
    if isinstance(events, Copy) and events.is_file() and kind in BESIDE and not (items or users):
        say(f"{events}: files of items and users beside it are not read; give its folder, or --items and --users")
    item_file = copies.local(items) if items else file_beside(events, files, kind, "items")
    user_file = copies.local(users) if users else file_beside(events, files, kind, "users")
    if events.is_dir():
        attributes = [path for path in (item_file, user_file) if path]
        tell_unread(events, files, kind, [path for _, path in chosen], attributes)
    opened = partial(_open, config=config, copies=copies, skip=skip)
    tables = [opened(path, kind, events=True) for _, path in chosen]
    if events.is_dir():
        tables = with_keys(tables, [keys_of(inside(events, path)) for _, path in chosen])
    if kind == "jsonl":  # after it: a file may lack a field that is its key
        tables = alike(tables)
    of_items, of_users = (
        opened(path, _attribute_kind(path), events=False) if path else None for path in (item_file, user_file)
    )
    for name, some in ((events, tables), *((each.path, [each]) for each in (of_items, of_users) if each)):
        if unread := {column: None for table in some for column in table.unread}:
            say(f"{name}: not read, because they hold objects: {', '.join(unread)}")
    truth = Path(os.fspath(events)) / TRUTH
    whole = all((truth / f"{side}_vectors.npy").is_file() for side in ("query", "item"))  # else a folder of one's own
    return Source(
        kind,
        tuple(zip((split for split, _ in chosen), tables, strict=True)),
        of_items,
        of_users,
        truth if whole else None,
    )


def _open(path: Path, kind: str, *, events: bool, config: DataConfig, copies: Copies, skip: bool) -> Table:
    path, suffix = copies.unpacked(path), bare_name(path).suffix
    if kind == "csv" and suffix == ".tsv":
        table = csv_table(path, separator="\t", skip=skip)
    elif kind == "parquet":
        table = parquet_table(path)
    elif kind == "jsonl" or (kind == "json" and holds_lines(path)):
        ids = partial(id_columns, config.columns, events=events)
        roles = partial(role_columns if events else attribute_id_columns, config.columns)
        table = jsonl_table(path, ids, roles, skip=skip)
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
