"""A journal's items, events and impressions as rows of a database, whichever database it is.

Ids are bytes: text can hold neither a NUL nor a lone surrogate. Lists and mappings are JSON in ASCII.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

Row = tuple[int | bytes | str, ...]


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


def event_row(event: tuple[str, str, str, int]) -> Row:
    """The row of a `UserEvent`."""
    event_id, user_id, item_id, time = event
    return id_bytes(event_id), id_bytes(user_id), id_bytes(item_id), time


def impression_row(impression: tuple[str, str, str, tuple[str, ...], int]) -> Row:
    """The row of an `Impression`."""
    impression_id, request_id, user_id, item_ids, time = impression
    return id_bytes(impression_id), id_bytes(request_id), id_bytes(user_id), json.dumps(item_ids), time


def item_block(items: Sequence[tuple[int, str, bool, dict[str, Any], dict[str, Any]]]) -> tuple[str, list[Row]]:
    """The table of items, and the rows of `ItemChange`s."""
    return "items", [
        (seq, *item_row(item_id, deleted, features, rest)) for seq, item_id, deleted, features, rest in items
    ]


def event_block(events: Sequence[tuple[int, tuple[str, str, str, int]]]) -> tuple[str, list[Row]]:
    """The table of events, and the rows of `UserEvent`s with their numbers."""
    return "events", [(number, *event_row(event)) for number, event in events]


def impression_block(
    shown: Sequence[tuple[int, tuple[str, str, str, tuple[str, ...], int]]],
) -> tuple[str, list[Row]]:
    """The table of impressions, and the rows of `Impression`s with their numbers."""
    return "impressions", [(number, *impression_row(each)) for number, each in shown]
