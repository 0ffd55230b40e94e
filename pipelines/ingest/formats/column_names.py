"""Finds the column of each role: by the recipe's mapping, else by common names.

A column that cannot be found is an error with the file's columns and the nearest name.
"""

import difflib
import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from pipelines.errors import DataError
from towers.config.sections import Columns

# Lower case, letters and digits only, so that user_id, userId and USER-ID are equal. Earlier names win.
# fmt: off
LATE = ("businessid", "newsid", "songid", "animeid", "isbn")  # of items; in an items file after `id`
USUAL: dict[str, tuple[str, ...]] = {
    "user": ("userid", "user", "uid", "customerid", "visitorid", "memberid", "reviewerid", "sessionid", "queryid"),
    "item": (
        "itemid", "item", "iid", "productid", "movieid", "articleid", "trackid", "bookid", "asin", "parentasin",
        *LATE,
    ),
    "time": ("timestamp", "time", "ts", "datetime", "eventtime", "unixreviewtime", "createdat", "date", "tdat"),
    "type": ("eventtype", "event", "type", "action", "behavior", "behaviour"),
    "weight": ("weight", "rating", "score", "stars", "overall"),
}
# fmt: on

# What to do about a column of ids that is not found. `--set` overrides a recipe, so the command names one, too.
NAME_IT = (
    "name it: --config default --set data.columns.{role}=NAME, or "
    '{role} = "NAME" under [data.columns] of the recipe that --config names'
)
# What to do about a column of weights in which no row has one.
NAME_WEIGHTS = (
    "rename the column if it holds no weights, or name the one that does: "
    "--config default --set data.columns.weight=NAME"
)

CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\ufffd]")  # in a name: a terminal obeys some of them
MOST_SHOWN, LONGEST_SHOWN = 30, 100  # columns in a message, and letters of one
VALUE = re.compile(r"-?\d+([.,]\d+)?$|\d{4}-\d\d-\d\d")  # a number or a date: in a header line no likely name
NEAR = 0.75  # difflib's default of 0.6 matches unrelated short names


@dataclass(frozen=True)
class Roles:
    """The columns of an events table by role; `context` holds all others."""

    user: str
    item: str
    time: str | None
    type: str | None
    weight: str | None
    context: tuple[str, ...]

    @property
    def columns(self) -> dict[str, str]:
        """The columns found, by role."""
        return {role: column for role in USUAL if (column := getattr(self, role)) is not None}

    @property
    def shape(self) -> set[str]:
        """What the files of one data set have in common, in words: times, weights, and the names of the context."""
        found = {"times": self.time, "weights": self.weight}
        # Quoted, so that a column of context whose name is one of these words is another.
        return {repr(name) for name in self.context} | {word for word, column in found.items() if column is not None}


def event_roles(path: Path, columns: Sequence[str], wanted: Columns, remedy: str = "") -> Roles:
    """Finds the columns of an events table.

    Args:
        path: for messages.
        columns: those of the table.
        wanted: those that the recipe names.
        remedy: what to do about a missing column; by default `NAME_IT` for ids, nothing for a column that is named.

    Raises:
        DataError: a named column is missing, no user or item column is found, or one column has two roles.
    """
    named = set(wanted.model_dump().values())
    found = {role: find(path, columns, role, getattr(wanted, role), remedy, named) for role in USUAL}
    for role in ("user", "item"):
        if found[role] is None and (column := find(path, columns, role, None)):
            found[role] = column  # another role's by the recipe, which is told below
        if found[role] is None:
            raise DataError(_not_found(path, columns, role, remedy or NAME_IT.format(role=role)))
    by_column: dict[str, str] = {}
    for role, column in found.items():
        if column is not None and by_column.setdefault(column, role) != role:
            raise DataError(f"{path}: column {column!r} cannot be both data.columns.{by_column[column]} and .{role}")
    context = tuple(column for column in columns if column not in by_column)
    user, item = found["user"], found["item"]
    return Roles(str(user), str(item), found["time"], found["type"], found["weight"], context)


def id_column(path: Path, columns: Sequence[str], role: str, of_events: str) -> str:
    """Finds the id column of an items or users table: the name it has in the events, a common name, or ``id``.

    The name in the events may have another spelling, such as business_id for businessId.

    Raises:
        DataError: there is no such column.
    """
    if of_events in columns:
        return of_events
    plain = plain_name(of_events) if of_events.isascii() else ""  # which loses all letters of most other scripts
    if plain and (alike := [column for column in columns if column.isascii() and plain_name(column) == plain]):
        return alike[0]
    name = find(path, columns, role, None)
    if name is None or plain_name(name) in LATE:
        name = next((column for column in columns if column.lower() == "id"), name)
    if name is None:
        # data.columns would rename the events' column, too.
        usual = ", ".join(name for name in (f"{role}_id", "id") if name != of_events)
        remedy = f"rename it to {usual} or {of_events!r}, as in the events"
        raise DataError(_not_found(path, columns, role, remedy))
    return name


def id_columns(wanted: Columns, columns: Iterable[str], *, events: bool) -> set[str]:
    """The columns that may hold ids: those of `wanted` and those with a common name of one.

    One with a name of `LATE` only if no other may hold the ids of the items of `events`, or of a table of attributes.
    """
    plain = {column: plain_name(column) for column in columns}
    early = set(USUAL["item"]).difference(LATE)
    of_item = {column for column, name in plain.items() if column == wanted.item or name in early}
    found = of_item | {c for c, name in plain.items() if c == wanted.user or name in (*USUAL["user"], "id")}
    sure = of_item if events else found
    return found if sure else {column for column, name in plain.items() if name in LATE or column in found}


def attribute_id_columns(wanted: Columns, columns: Collection[str]) -> set[str]:
    """The columns of a table of attributes that may be its ids: one called ``id`` only if there is no other.

    One called ``_id``, as databases add it, is never taken for them.
    """
    named = [column for column in columns if plain_name(column) != "id" or column.lower() == "id"]
    others = [column for column in named if column.lower() != "id"]
    return id_columns(wanted, others, events=False) or id_columns(wanted, named, events=False)


def role_columns(wanted: Columns, columns: Iterable[str]) -> set[str]:
    """The columns of events that may have a role: those of `wanted` and those with a common name of one."""
    usual = {name for names in USUAL.values() for name in names}
    return {column for column in columns if column in wanted.model_dump().values() or plain_name(column) in usual}


def find(
    path: Path,
    columns: Sequence[str],
    role: str,
    wanted: str | None,
    remedy: str = "",
    taken: Collection[str | None] = (),
) -> str | None:
    """Returns the column of a role: the wanted one, else the one with the most common name, else None.

    `remedy` ends the error's message; `taken` are columns that other roles name, of which a common name says nothing.

    Raises:
        DataError: the wanted column does not exist.
    """
    if wanted is not None:
        if wanted in columns:
            return wanted
        free = _free(columns, role)
        near = difflib.get_close_matches(wanted, free, n=1) or _near(free, role)
        hint = (f"; did you mean {near[0]!r}?" if near else "") + (remedy and f"; {remedy}")
        raise DataError(f"{path}: no column {wanted!r} (data.columns.{role}); it has {shown(columns)}{hint}")
    plain = {plain_name(column): column for column in reversed(columns) if column not in taken}
    # Elsewhere than in Amazon's reviews it may be anything.
    if set(map(plain_name, columns)).isdisjoint(("asin", "reviewerid", "unixreviewtime")):
        plain.pop("overall", None)
    return next((plain[name] for name in USUAL[role] if name in plain), None)


def _not_found(path: Path, columns: Sequence[str], role: str, remedy: str) -> str:
    near = _near(_free(columns, role), role)
    hint = f"did you mean {near[0]!r}?; " if near else ""
    if any(VALUE.match(column) for column in columns):
        hint = "if these are values, put a line with the names of the columns before them (user_id, item_id, …), else "
    if any(CONTROL.search(column) for column in columns):
        hint = f"it may be no file of text; if it is, {hint}"
    return f"{path}: no column of {role} ids; it has {shown(columns)}; {hint}{remedy}"


def shown(columns: Sequence[str]) -> str:
    """Column names for a message: the first ones, without characters that a terminal would obey."""
    names = [name[:LONGEST_SHOWN] + "…" * (len(name) > LONGEST_SHOWN) for name in columns[:MOST_SHOWN]]
    more = len(columns) - MOST_SHOWN
    told = ", ".join(repr(name) if CONTROL.search(name) else name for name in names)
    return told + (f" and {more:,} more" if more > 0 else "")


def _free(columns: Sequence[str], role: str) -> list[str]:
    """The columns without the name of another role or a word for time or weight: an item's rating is not its id."""
    others = {name for other, names in USUAL.items() if other != role for name in names}
    amounts = {name for other in ("time", "weight") if other != role for name in USUAL[other]}
    return [each for each in columns if plain_name(each) not in others and amounts.isdisjoint(words(each))]


def _near(columns: Sequence[str], role: str) -> list[str]:
    plain = {plain_name(column): column for column in columns}
    for name in USUAL[role]:
        if near := difflib.get_close_matches(name, plain, n=1, cutoff=NEAR):
            return [plain[near[0]]]
    return [column for column in columns if role in column.lower()][:1]


def words(name: str) -> list[str]:
    """Splits a name into words at punctuation and capitals."""
    return re.findall(r"[a-z]+", re.sub(r"([A-Z])", r" \1", name).lower()) + re.findall(r"[a-z]+", name.lower())


def plain_name(name: str) -> str:
    """Returns a name as `USUAL` writes it."""
    return re.sub(r"[^a-z0-9]", "", name.lower())
