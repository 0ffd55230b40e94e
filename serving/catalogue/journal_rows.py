"""A journal's items, events and impressions as rows of a database, whichever database it is.

Ids are bytes: text can hold neither a NUL nor a lone surrogate. Lists and mappings are JSON in ASCII.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

UNTYPED = "event"  # the type of an event that is sent without one
IMPRESSION = "impression"  # the type of one among exported events

Row = tuple[int | bytes | str, ...]
Event = tuple[str, str, str, int, str]


def id_bytes(text: str) -> bytes:
    """An id as it is stored."""
    return text.encode("utf-8", "surrogatepass")


def id_text(stored: bytes) -> str:
    """The id that `id_bytes` was given.

    Raises:
        ValueError: it is damaged.
    """
    return stored.decode("utf-8", "surrogatepass")


def item_row(item_id: str, deleted: bool, features: Mapping[str, Any], attributes: Mapping[str, Any]) -> Row:
    """The row of an item's latest state.

    Raises:
        TypeError: a value is not JSON.
    """
    return id_bytes(item_id), int(deleted), json.dumps(features), json.dumps(attributes)


def event_row(event: Event) -> Row:
    """The row of a `UserEvent`, without its type."""
    event_id, user_id, item_id, time, _ = event
    return id_bytes(event_id), id_bytes(user_id), id_bytes(item_id), time


def type_rows(events: Iterable[Event]) -> Iterator[Row]:
    """The id and type of each `UserEvent` of a type of its own; these lie in a table of their own."""
    return ((id_bytes(event_id), id_bytes(kind)) for event_id, _, _, _, kind in events if kind != UNTYPED)


def impression_row(impression: tuple[str, str, str, tuple[str, ...], int]) -> Row:
    """The row of an `Impression`."""
    impression_id, request_id, user_id, item_ids, time = impression
    return id_bytes(impression_id), id_bytes(request_id), id_bytes(user_id), json.dumps(item_ids), time


def item_block(items: Sequence[tuple[int, str, bool, dict[str, Any], dict[str, Any]]]) -> tuple[str, list[Row]]:
    """The table of items, and the rows of `ItemChange`s."""
    return "items", [
        (seq, *item_row(item_id, deleted, features, rest)) for seq, item_id, deleted, features, rest in items
    ]


def event_blocks(events: Sequence[tuple[int, Event]]) -> Iterator[tuple[str, list[Row]]]:
    """The tables of events and of their types, each with the rows of `UserEvent`s with their numbers."""
    yield "events", [(number, *event_row(event)) for number, event in events]
    yield "event_types", [(number, id_bytes(event[-1])) for number, event in events if event[-1] != UNTYPED]


def impression_block(
    shown: Sequence[tuple[int, tuple[str, str, str, tuple[str, ...], int]]],
) -> tuple[str, list[Row]]:
    """The table of impressions, and the rows of `Impression`s with their numbers."""
    return "impressions", [(number, *impression_row(each)) for number, each in shown]
