"""What the window shows of items and users: titles and columns by row, and those that a few letters find."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from serving.catalogue.catalogue import Snapshot
from serving.catalogue.item_columns import title_name
from serving.catalogue.times import TimeColumn
from serving.recall.recaller import Recaller
from serving.search.index import Rows

MOST_COLUMNS, MOST_CHARACTERS = 8, 120
MOST_FOUND = 20
EXACT = 1e15  # whole numbers below it are shown in full


class ShownValue(NamedTuple):
    """A value of a column as it is shown; a time in ISO 8601."""

    text: str
    is_time: bool = False


@dataclass(frozen=True)
class ShownItem:
    """One item of a list.

    Attributes:
        id: its id.
        title: its title, or None if it has none.
        attributes: other columns with a value, in short.
        known: whether the catalogue holds it.
    """

    id: str
    title: str | None = None
    attributes: Mapping[str, ShownValue] | None = None
    known: bool = True


def shown_rows(items: Snapshot, rows: Rows) -> list[ShownItem]:
    """The items at rows, in their order."""
    columns = [name for name in items.catalogue.kinds if name != "item_id"]
    title = title_name(columns)
    others = [name for name in columns if name != title][:MOST_COLUMNS]
    values = {name: items.values(name, rows) for name in ([title] if title else []) + others}
    times = items.catalogue.times
    return [
        ShownItem(
            item_id,
            _text(values[title][place], " ") if title else None,
            {name: value for name in others if (value := _shown(values[name][place], times.get(name))) is not None},
        )
        for place, item_id in enumerate(items.names(rows))
    ]


def shown_ids(items: Snapshot, item_ids: Sequence[str]) -> list[ShownItem]:
    """The items of ids, in their order; unknown ones are marked."""
    rows = {item_id: row for item_id in item_ids if (row := items.row_of(item_id)) is not None}
    known = dict(zip(rows, shown_rows(items, np.array([*rows.values()], np.int64)), strict=True))
    return [known.get(item_id, ShownItem(item_id, known=False)) for item_id in item_ids]


def known_history(recaller: Recaller, user_id: str | None) -> list[str]:
    """What the service knows that a user took, newest last: the stored items, then later ones."""
    bundle, row = recaller.bundle, recaller.planner.row_of(user_id)
    stored = [] if row is None else bundle.item_names.at(bundle.seen(row))
    return stored + [taken.item_id for taken in recaller.planner.live(user_id, row)]


def found_users(recaller: Recaller, prefix: str) -> list[str]:
    """The first users of the bundle whose ids begin with a text, at most `MOST_FOUND`; the most active come first."""
    names = recaller.bundle.query_names
    return names.at(names.starting(prefix, MOST_FOUND))


def found_items(items: Snapshot, text: str) -> list[ShownItem]:
    """Items whose id begins with a text, then those whose title holds it in any case; at most `MOST_FOUND`."""
    bundle, view = items.catalogue.bundle, items.view
    rows = bundle.item_names.starting(text, MOST_FOUND + len(view.buried)).tolist()
    rows += [view.base + place for place, item_id in enumerate(view.ids) if item_id.startswith(text)]
    title = title_name(bundle.item_attributes.columns)
    if title is not None:
        for start, frame in ((0, bundle.item_attributes), (view.base, view.attributes)):
            column = frame[title]
            words = (
                column.cast(pl.List(pl.String)).list.join(" ") if column.dtype == pl.List else column.cast(pl.String)
            )
            holding = words.str.to_lowercase().str.contains(text.lower(), literal=True).fill_null(False)
            rows += (holding.arg_true().to_numpy().astype(np.int64) + start).tolist()
    found = [row for row in dict.fromkeys(rows) if _may_come_back(items, row)]
    return shown_rows(items, np.array(found[:MOST_FOUND], np.int64))


def _may_come_back(items: Snapshot, row: int) -> bool:
    view = items.view
    if row >= view.base:
        return bool(view.alive[row - view.base])
    return view.kept is None or bool(view.kept[row])


def _shown(value: Any, time: TimeColumn | None) -> ShownValue | None:
    moment = time.text(value) if time is not None and value is not None else None
    if moment is not None:
        return ShownValue(moment, is_time=True)
    return None if (text := _text(value)) is None else ShownValue(text)


def _text(value: Any, between: str = ", ") -> str | None:
    if isinstance(value, list):  # RecBole stores a title as a list of words.
        value = between.join(map(str, value)) or None
    if value is None:
        return None
    if isinstance(value, float):
        value = int(value) if value.is_integer() and abs(value) < EXACT else f"{value:.7g}"
    text = str(value)
    return text if len(text) <= MOST_CHARACTERS else f"{text[:MOST_CHARACTERS]}…"
