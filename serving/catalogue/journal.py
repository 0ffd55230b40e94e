"""The journal: puts and deletes of items, users' events and what they were shown, stored before it is acknowledged.

Any thread of any process can add changes and read those after a sequence number. Items, events and impressions are
numbered separately. A reader that has seen a number has seen every change with a lower one.
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, ClassVar, NamedTuple

from serving.catalogue.journal_rows import (
    UNTYPED,
    Row,
    event_row,
    id_bytes,
    id_text,
    impression_row,
    item_row,
    type_rows,
)

ALL = 2**63 - 1
EVENTS = """SELECT events.seq, event_id, user_id, item_id, time, coalesce(type, ?) FROM {0}events AS events
LEFT JOIN {0}event_types AS types ON types.seq = events.seq WHERE events.seq > ? ORDER BY events.seq LIMIT ?"""


class JournalError(Exception):
    """The journal cannot be opened, read or written; names the place and the reason.

    A failed write left nothing, unless a database took it and its answer was lost.
    """


class ItemChange(NamedTuple):
    """The latest state of one item; a deleted one has neither features nor attributes."""

    seq: int
    item_id: str
    deleted: bool
    features: dict[str, Any]
    attributes: dict[str, Any]


class UserEvent(NamedTuple):
    """One user's interaction with one item; `time` in whole seconds since 1970, UTC; `type` as in the training data."""

    event_id: str
    user_id: str
    item_id: str
    time: int
    type: str = UNTYPED


class Impression(NamedTuple):
    """The items that one user was shown together, in order, and the id of the request that recalled them."""

    impression_id: str
    request_id: str
    user_id: str
    item_ids: tuple[str, ...]
    time: int


class Numbers(NamedTuple):
    """The last sequence number of each kind of change, and how often a user was forgotten."""

    items: int
    events: int
    impressions: int
    forgotten: int


class Journal(ABC):
    """An open journal in the tables `items`, `events` and `impressions`; a database provides the rest.

    Thread-safe; another process, also a fork, must open its own.

    Each method raises `JournalError` if the journal cannot be read or written.

    Attributes:
        identity: random, written at creation; sequence numbers are valid only within one identity.
    """

    identity: str
    _schema: ClassVar[str] = ""  # stands before the name of each table

    def put_items(self, items: Sequence[tuple[str, Mapping[str, Any], Mapping[str, Any]]]) -> int:
        """Puts items, all or none, in order. They are on disk when it returns.

        Args:
            items: (item id, features, attributes) each; values must be valid JSON.

        Returns:
            The sequence number of the last item change.

        Raises:
            JournalError: nothing was put.
            TypeError: a value is not JSON; nothing was put.
        """
        return self._change([item_row(item_id, False, features, rest) for item_id, features, rest in items])

    def delete_items(self, item_ids: Sequence[str]) -> int:
        """Deletes items, including ones unknown to the journal; otherwise like `put_items`."""
        return self._change([item_row(item_id, True, {}, {}) for item_id in item_ids])

    def add_events(self, events: Sequence[UserEvent]) -> int:
        """Adds events, all or none, in order; skips every event id that was ever added before.

        Returns:
            How many were new.

        Raises:
            JournalError: nothing was added.
        """
        # Of an id that comes twice the first event counts.
        first = {each.event_id: each for each in reversed(events)}
        return self._add("events", list(map(event_row, events)), list(type_rows(first.values())))

    def add_impressions(self, impressions: Sequence[Impression]) -> int:
        """Adds impressions as `add_events` adds events."""
        return self._add("impressions", list(map(impression_row, impressions)))

    def items_since(self, seq: int) -> list[ItemChange]:
        """The latest state of every item whose last change has a number above `seq`, in order of change."""
        with self._since("items", seq) as rows:
            return [
                ItemChange(number, id_text(item), bool(deleted), json.loads(features), json.loads(attributes))
                for number, item, deleted, features, attributes in rows
            ]

    def events_since(self, seq: int, most: int = ALL) -> list[tuple[int, UserEvent]]:
        """Every event with a number above `seq`, or the first `most`, in order of adding."""
        with self._reads(EVENTS.format(self._schema), id_bytes(UNTYPED), seq, most) as rows:
            return [
                (number, UserEvent(id_text(event), id_text(user), id_text(item), time, id_text(kind)))
                for number, event, user, item, time, kind in rows
            ]

    def impressions_since(self, seq: int, most: int = ALL) -> list[tuple[int, Impression]]:
        """Every impression with a number above `seq`, or the first `most`, in order of adding."""
        with self._since("impressions", seq, most) as rows:
            return [
                (number, Impression(id_text(shown), id_text(request), id_text(user), tuple(json.loads(items)), time))
                for number, shown, request, user, items, time in rows
            ]

    def counts(self) -> tuple[int, ...]:
        """How many changed items, events and impressions it holds; scans the tables."""
        tables = ("items", "events", "impressions")
        each = ", ".join(f"(SELECT count(*) FROM {self._schema}{table})" for table in tables)
        with self._reads(f"SELECT {each}") as (counts,):
            return tuple(counts)

    def version(self) -> int:
        """A number that grows with every change that answers depend on, by any process; the same in all of them."""
        last = self.numbers()
        return last.items + last.events + last.forgotten

    def forgotten(self) -> int:
        """How often a user was forgotten: events that a reader holds may be gone once this has grown."""
        return self.numbers().forgotten

    @abstractmethod
    def forget(self, user_id: str, *, dry_run: bool = False) -> dict[str, int]:
        """Deletes all events and impressions of a user.

        Args:
            user_id: the user.
            dry_run: only count them.

        Returns:
            How many there were.

        Raises:
            JournalError: nothing was deleted, or traces are left on the disk: call it again.
        """

    @abstractmethod
    def numbers(self) -> Numbers:
        """The last number of each kind."""

    @abstractmethod
    def load(self, identity: str, numbers: Numbers, blocks: Iterable[tuple[str, Sequence[tuple[Any, ...]]]]) -> None:
        """Takes over what another journal holds, all or nothing; an exception of `blocks` ends it, too.

        Args:
            identity: of the other journal, and then of this one.
            numbers: likewise.
            blocks: tables and rows of `serving.catalogue.journal_rows`, under their numbers.

        Raises:
            JournalError: this one has held changes; nothing was taken over.
        """

    @abstractmethod
    def close(self) -> None:
        """Closes it; a second call does nothing."""

    @abstractmethod
    def _change(self, rows: Sequence[Row]) -> int:
        """Writes the latest rows of items in one transaction; returns the number of the last one."""

    @abstractmethod
    def _add(self, table: str, rows: Sequence[Row], types: Sequence[Row] = ()) -> int:
        """Adds the rows whose first column is new to a table in one transaction; returns how many.

        `types` holds the types of some of the new events: id and type.
        """

    @abstractmethod
    def _reads(self, statement: str, *values: int | bytes) -> AbstractContextManager[list[Any]]:
        """Reads rows, with a value for each ``?``; inside it an unreadable row is a `JournalError`."""

    def _since(self, table: str, seq: int, most: int = ALL) -> AbstractContextManager[list[Any]]:
        return self._reads(f"SELECT * FROM {self._schema}{table} WHERE seq > ? ORDER BY seq LIMIT ?", seq, most)
