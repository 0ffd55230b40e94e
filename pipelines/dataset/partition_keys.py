"""Reads the keys of partitions from the names of files (`date=2026-11-01/part.parquet`), and tells which are times."""

import re
from collections import defaultdict
from collections.abc import Iterable
from pathlib import PurePath
from urllib.parse import unquote

MISSING = "__HIVE_DEFAULT_PARTITION__"
# From 2026-11 or 202611 to 2026-11-01 07:30:00, and 2026-W45.
CLOCK = r"([-_ T]?([01]\d|2[0-3])([:.]?[0-5]\d){0,2}Z?)?"
DAY = rf"([-_./]?(0[1-9]|[12]\d|3[01]){CLOCK})?"
MOMENT = re.compile(rf"(19|20|21)\d\d([-_./]?(0[1-9]|1[0-2]){DAY}|-?W[0-5]\d)")
# Keys whose plain numbers are a part of a time, as in year=2026/month=11.
PARTS = frozenset({"year", "quarter", "month", "week", "day", "hour", "minute", "yyyy", "mm", "dd", "hh"})


def keys_of(file: PurePath) -> dict[str, str | None]:
    """The partition keys and values of a file, named from the folder given by the user."""
    pairs = (part.partition("=")[::2] for part in file.parts[:-1])
    return {unquote(key): None if value == MISSING else unquote(value) for key, value in pairs}


def keys_of_time(files: Iterable[str]) -> set[str]:
    """The keys whose values are all times, or numbers under the name of a part of one (`event_hour=7`)."""
    values: defaultdict[str, set[str]] = defaultdict(set)
    for file in files:
        for key, value in keys_of(PurePath(file)).items():
            if value is not None:
                values[key].add(value)
    return {key for key, found in values.items() if all(_is_time(key, value) for value in found)}


def _is_time(key: str, value: str) -> bool:
    part = re.split(r"[^a-z]+", key.lower())[-1] in PARTS
    return (part and value.isdecimal()) or MOMENT.fullmatch(value) is not None
