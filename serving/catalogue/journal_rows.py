"""A journal's items, events and impressions as rows of a database, whichever database it is.

Ids are bytes: text can hold neither a NUL nor a lone surrogate. Lists and mappings are JSON in ASCII.
"""

import json
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from serving.catalogue.journal import Impression, ItemChange, Journal, UserEvent

ItemRow = tuple[bytes, int, str, str]
EventRow = tuple[bytes, bytes, bytes, int]
ImpressionRow = tuple[bytes, bytes, bytes, str, int]


class RowJournal(Journal):
    """A journal in the tables `items`, `events` and `impressions`; a database provides the rest."""

    def put_items(self, items: Sequence[tuple[str, Mapping[str, Any], Mapping[str, Any]]]) -> int:
        """See `Journal`."""
        return self._change(put_rows(items))

    def delete_items(self, item_ids: Sequence[str]) -> int:
        """See `Journal`; rows without features."""
        return self._change(deleted_rows(item_ids))

    def add_events(self, events: Sequence[UserEvent]) -> int:
        """See `Journal`."""
        return self._add("events", event_rows(events))

    def add_impressions(self, impressions: Sequence[Impression]) -> int:
        """See `Journal`."""
        return self._add("impressions", impression_rows(impressions))

    def items_since(self, seq: int) -> list[ItemChange]:
        """See `Journal`."""
        with self._since("items", seq) as rows:
            return [item_change(*row) for row in rows]

    def events_since(self, seq: int, most: int = -1) -> list[tuple[int, UserEvent]]:
        """See `Journal`."""
        with self._since("events", seq, most) as rows:
            return [user_event(*row) for row in rows]

    def impressions_since(self, seq: int, most: int = -1) -> list[tuple[int, Impression]]:
        """See `Journal`."""
        with self._since("impressions", seq, most) as rows:
            return [impression(*row) for row in rows]

    @abstractmethod
    def _change(self, rows: Sequence[ItemRow]) -> int:
        """Writes the latest rows of items in one transaction; returns the number of the last one."""

    @abstractmethod
    def _add(self, table: str, rows: Sequence[EventRow] | Sequence[ImpressionRow]) -> int:
        """Adds the rows whose first column is new to a table in one transaction; returns how many."""

    @abstractmethod
    def _since(self, table: str, seq: int, most: int = -1) -> AbstractContextManager[list[Any]]:
        """Reads the rows above a number, or the first `most`, in order; an unreadable row is a `JournalError`."""


def id_bytes(text: str) -> bytes:
    """An id as it is stored."""
    return text.encode("utf-8", "surrogatepass")


def put_rows(items: Sequence[tuple[str, Mapping[str, Any], Mapping[str, Any]]]) -> list[ItemRow]:
    """Rows (item id, deleted, features, attributes) of items that are put.

    Raises:
        TypeError: a value is not JSON.
    """
    return [(id_bytes(item), 0, json.dumps(features), json.dumps(rest)) for item, features, rest in items]


def deleted_rows(item_ids: Sequence[str]) -> list[ItemRow]:
    """Rows of items that are deleted; otherwise like `put_rows`."""
    return [(id_bytes(item), 1, "{}", "{}") for item in item_ids]


def event_rows(events: Sequence[UserEvent]) -> list[EventRow]:
    """Rows (event id, user id, item id, time)."""
    return [(id_bytes(each.event_id), id_bytes(each.user_id), id_bytes(each.item_id), each.time) for each in events]


def impression_rows(impressions: Sequence[Impression]) -> list[ImpressionRow]:
    """Rows (impression id, request id, user id, item ids, time)."""
    rows = []
    for each in impressions:
        impression_id, request_id, user_id = map(id_bytes, (each.impression_id, each.request_id, each.user_id))
        rows.append((impression_id, request_id, user_id, json.dumps(each.item_ids), each.time))
    return rows


def item_block(items: Sequence[ItemChange]) -> tuple[str, list[tuple[int, bytes, int, str, str]]]:
    """The table of items, and rows with their numbers."""
    return "items", [
        (each.seq, id_bytes(each.item_id), int(each.deleted), json.dumps(each.features), json.dumps(each.attributes))
        for each in items
    ]


def event_block(events: Sequence[tuple[int, UserEvent]]) -> tuple[str, list[tuple[int | bytes, ...]]]:
    """The table of events, and rows with their numbers."""
    rows = event_rows([event for _, event in events])
    return "events", [(seq, *row) for (seq, _), row in zip(events, rows, strict=True)]


def impression_block(shown: Sequence[tuple[int, Impression]]) -> tuple[str, list[tuple[int | bytes | str, ...]]]:
    """The table of impressions, and rows with their numbers."""
    rows = impression_rows([each for _, each in shown])
    return "impressions", [(seq, *row) for (seq, _), row in zip(shown, rows, strict=True)]


def item_change(seq: int, item_id: bytes, deleted: int, features: str, attributes: str) -> ItemChange:
    """The change of a row and its number.

    Raises:
        ValueError: the row is damaged.
    """
    return ItemChange(seq, _text(item_id), bool(deleted), json.loads(features), json.loads(attributes))


def user_event(seq: int, event_id: bytes, user_id: bytes, item_id: bytes, time: int) -> tuple[int, UserEvent]:
    """The event of a row, after its number; otherwise like `item_change`."""
    return seq, UserEvent(_text(event_id), _text(user_id), _text(item_id), time)


def impression(
    seq: int, impression_id: bytes, request_id: bytes, user_id: bytes, item_ids: str, time: int
) -> tuple[int, Impression]:
    """The impression of a row, after its number; otherwise like `item_change`."""
    shown = tuple(json.loads(item_ids))
    return seq, Impression(_text(impression_id), _text(request_id), _text(user_id), shown, time)


def _text(stored: bytes) -> str:
    return stored.decode("utf-8", "surrogatepass")
