"""Tells the files of a folder apart: their format, the events, the attributes beside them, and those that are not read.

Partitions count, so two files may have one name. A file that could hold events is read, refused or named to the user.
One that is packed otherwise than by gzip is chosen by its name without that, and then refused by the reader of copies.
"""

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path, PurePath
from typing import get_args

from pipelines.console import say
from pipelines.dataset.arrays import SPLITS
from pipelines.errors import DataError
from pipelines.ingest.formats import BESIDE, Format
from pipelines.ingest.formats.benchmark_lists import kind_of_lists
from pipelines.ingest.formats.copies import Copies, bare_name, copied, packed_otherwise
from pipelines.ingest.formats.movielens import EVENT_FILES, ITEM_FILES, USER_FILES
from pipelines.ingest.formats.partitions import in_reach

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
TABLES = {suffix: kind for suffix, kind in SUFFIXES.items() if kind != "recbole"}
JSON = ".json"  # of events always JSON Lines
ATTRIBUTES = {**SUFFIXES, JSON: "json"}
LISTS = ("lightgcn", "sequences", "pairs")  # formats of .txt files
SEQUENCES = "sequences.txt"
ABOUT = ("readme.txt", "license.txt")  # beside JSON no lists
IMPRESSIONS = "impressions"  # beside the events, as `towers events export` writes all that a service showed
MOST_FILES = 2**16  # a file's number is stored in 16 bits
MOST_NAMES = 8  # in a message
# Words of a path that name a part; no keys.
PART = re.compile(r"(?<![a-z])(train|test)(?:ing)?(?:set|data)?(?![a-z])(?![^/]*=)")
Split = tuple[str | None, Path]


def files_of(folder: Path) -> list[Path]:
    """The files directly in a folder and in its partitions, by name; numbers in names count: part-2, then part-10.

    Without the `.zip` and the like of a file that is there unpacked, or packed by gzip.
    """
    root = Path(os.fspath(folder))
    found = [path for path in _walk(root) if in_reach(path.relative_to(root))]
    there = {path.parent / bare_name(path) for path in found if not packed_otherwise(path)}
    found = [path for path in found if not packed_otherwise(path) or path.parent / bare_name(path) not in there]
    if not found:
        raise DataError(f"{folder}: the folder holds no file")
    return found if root == folder else [copied(f"{folder}/{path.relative_to(root)}", path) for path in found]


def _walk(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.iterdir(), key=_place):
        if path.is_file():
            yield path
        elif "=" in path.name:
            yield from _walk(path)


def _place(path: Path) -> tuple[list[str | int], str]:
    parts = re.split(r"([0-9]+)", path.name)
    return [int(part) if n % 2 else part for n, part in enumerate(parts)], path.name


def inside(folder: Path, path: Path) -> PurePath:
    """The path of a file in a folder, from there."""
    return PurePath(str(path)).relative_to(str(folder))


def detect(events: Path, files: list[Path], copies: Copies) -> str:
    """The format of `events`, a file or a folder of `files`, by names and, for one .txt file, by its lines.

    Raises:
        DataError: the names do not tell.
    """
    plain = [path for path in files if not packed_otherwise(path)]
    if kind := _kind(events, plain, copies) or _kind(events, files, copies):
        return kind
    if not plain:
        copies.unpacked(files[0])  # which says that it cannot be
    if _is_attributes(events) and events.is_file() and (format := TABLES.get(bare_name(events).suffix)):
        told = f"by its name the file of the {bare_name(events).stem}; --events takes the events"
        raise DataError(f"{events}: {told} (if these are the events, --format {format})")
    found = ", ".join(path.name for path in files[:MOST_NAMES])
    raise DataError(f"{events}: cannot tell the format of {found}; name it with --format ({', '.join(FORMATS[1:])})")


def _kind(events: Path, files: list[Path], copies: Copies) -> str | None:
    names = {bare_name(path).name for path in files}
    if names & set(EVENT_FILES):
        return "movielens"
    if events.is_dir() and {"train.txt", "test.txt"} <= names:
        return "lightgcn"
    if SEQUENCES in names:
        return "sequences"
    if _ending(files, ".inter"):
        return "recbole"
    tables = _tables([path for path in files if bare_name(path).suffix in SUFFIXES])
    kinds = sorted({SUFFIXES[bare_name(path).suffix] for path in tables})
    texts = _ending(files, ".txt")
    if not kinds and _ending(files, JSON) and all(bare_name(path).name in ABOUT for path in texts):
        return "jsonl"
    if not kinds and len(texts) == 1:
        return kind_of_lists(texts[0], copies.unpacked(texts[0]))
    return kinds[0] if len(kinds) == 1 and kinds[0] != "recbole" else None


def event_files(folder: Path, files: list[Path], kind: str) -> list[Split]:
    """The files of a folder that hold events, each with its split or None.

    Raises:
        DataError: there is none or more than the format has; a file is there twice, packed and unpacked; or a split is
            incomplete.
    """
    if kind == "movielens":
        found = next((some for name in EVENT_FILES if (some := _named(files, name))), [])
    elif kind == "recbole":
        found = _ending(files, ".inter")
    elif kind in LISTS:
        texts, sequences = _ending(files, ".txt"), _named(files, SEQUENCES) if kind == "sequences" else []
        found = sequences or (texts if kind == "pairs" else _given(texts) or texts)
    else:
        of_kind = [path for path in files if SUFFIXES.get(bare_name(path).suffix) == kind]
        found = _tables(of_kind) or (_tables(_ending(files, JSON)) if kind == "jsonl" else [])
    names = {str(path) for path in files}
    if twice := [path.name for path in files if path.suffix.lower() == ".gz" and str(path)[:-3] in names]:
        raise DataError(f"{folder}: holds {twice[0]} and the same file without .gz; keep one of them")
    if len(found) > MOST_FILES:
        raise DataError(
            f"{folder}: {len(found):,} files of events; at most {MOST_FILES:,} are read, so join small ones"
        )
    # RecBole's names look like ml.train.inter, others like train.csv.
    splits = [bare_name(path).stem.rpartition(".")[2] for path in found]
    if "train" in splits or (len(found) > 1 and set(splits) & set(SPLITS)):
        if not {"train", "test"} <= set(splits) <= set(SPLITS) or len(set(splits)) < len(splits):
            got = _shown(folder, files)
            raise DataError(f"{folder}: a given split needs one train and one test file and no other events, got {got}")
        return sorted(zip(splits, found, strict=True), key=lambda pair: SPLITS.index(pair[0]))
    named = {word: path for path in reversed(found) for word in PART.findall(str(inside(folder, path)).lower())}
    if len(named) > 1 and named["train"] != named["test"]:
        raise DataError(
            f"{folder}: {_shown(folder, [named['train'], named['test']])} would be read as one log, test and all; for "
            "a given split make each part one file, train.*, test.* and perhaps valid.*; else rename them"
        )
    if not found or (len(found) > 1 and kind in ("recbole", "pairs", "lightgcn")):
        raise DataError(f"{folder}: expected one file of {kind} events, got {_shown(folder, files)}")
    return [(None, path) for path in found]


def file_beside(events: Path, files: list[Path], kind: str, what: str) -> Path | None:
    """The items or users file in the events' folder; for a single events file, only if its format names it.

    Args:
        events: the file or folder.
        files: those of the folder.
        kind: the format.
        what: ``items`` or ``users``.

    Raises:
        DataError: there are several.
    """
    if events.is_file():
        if kind not in BESIDE:
            return None
        files = files_of(Path(os.fspath(events)).parent)
    found: list[Path] = []
    if kind == "movielens":
        names = ITEM_FILES if what == "items" else USER_FILES
        found = next((some for name in names if (some := _named(files, name))), [])
    elif kind == "recbole":
        found = _ending(files, f".{what.removesuffix('s')}")
        if events.is_file():
            found = [path for path in found if bare_name(path).stem == bare_name(events).stem]
    if not found and events.is_dir() and kind != "recbole":
        found = [
            path for path in files if bare_name(path).suffix in ATTRIBUTES and path.name.lower().startswith(f"{what}.")
        ]
    if len(found) > 1:
        raise DataError(f"{events}: several files of {what}: {', '.join(path.name for path in found)}")
    return found[0] if found else None


def tell_unread(folder: Path, files: list[Path], kind: str, events: Sequence[Path], attributes: Iterable[Path]) -> None:
    """Names the files that could hold events and are not read.

    Args:
        folder: that of the events.
        files: those of the folder.
        kind: the format.
        events: the files of events that are read.
        attributes: the files of items and users that are read, also from elsewhere.

    Raises:
        DataError: such a file has the format of the events, and only the names of others left it out.
    """
    read = {_full(path) for path in (*events, *attributes)}
    suffixes = {*SUFFIXES, *([".txt"] if kind in LISTS else []), *([JSON] if kind in (*LISTS, "jsonl") else [])}
    left = [path for path in files if bare_name(path).suffix in suffixes and _full(path) not in read]
    others = [path for path in left if not _is_attributes(path) and bare_name(path).stem != IMPRESSIONS]
    formats = SUFFIXES | ({JSON: "jsonl"} if _ending([*events], JSON) else {})
    alike = [path for path in others if formats.get(bare_name(path).suffix) == kind and not packed_otherwise(path)]
    if alike and kind != "recbole":
        raise DataError(
            f"{folder}: {_shown(folder, events)} would be read by name, and {_shown(folder, alike)} not; rename files "
            "so that none is named events, train, valid or test and all are read as one; or name a file, not the folder"
        )
    if left:
        say(f"{folder}: not read: {_shown(folder, left)}")


def _full(path: Path) -> str:
    return os.path.abspath(str(path))  # noqa: PTH100 - what is shown of a copy is no path here


def _shown(folder: Path, files: Sequence[Path]) -> str:
    names = [str(inside(folder, path)) for path in files[:MOST_NAMES]]
    return ", ".join(names) + (f" and {len(files) - MOST_NAMES:,} more" if len(files) > MOST_NAMES else "")


def _ending(files: list[Path], suffix: str) -> list[Path]:
    return [path for path in files if bare_name(path).suffix == suffix]


def _named(files: list[Path], name: str) -> list[Path]:
    return [path for path in files if bare_name(path).name == name]


def _is_attributes(path: Path) -> bool:
    return bare_name(path).stem in ("items", "users")


def _given(files: list[Path]) -> list[Path]:
    """The files of a given split, `train.*` and the like; none without a train file."""
    chosen = [path for path in files if bare_name(path).stem in SPLITS]
    return chosen if any(bare_name(path).stem == "train" for path in chosen) else []


def _tables(tables: list[Path]) -> list[Path]:
    """Those that can hold events: `events.*`, else `train.*` and the like, else all but attributes."""
    events = [path for path in tables if bare_name(path).stem == "events"]
    return events or _given(tables) or [path for path in tables if not _is_attributes(path)]
