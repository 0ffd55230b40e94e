"""Divides the test users, or their targets, into slices: by training, activity, popularity, age, or a column."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from pipelines.dataset.dataset import Dataset
from pipelines.dataset.heldout import HeldOut, seen
from pipelines.errors import DataError
from pipelines.evaluation.bands import MISSING, Mask, Part, bands
from pipelines.evaluation.protocol.asked import AGE, Asked, event_column, item_ages, target_events

TRAINING = "training"  # the group of the next four
WARM, COLD = "warm", "cold"
COLD_WITH, COLD_WITHOUT = "cold_with_history", "cold_without_history"
DEFINITIONS = {
    WARM: "users with training events",
    COLD: "users without training events",
    COLD_WITH: "cold users with an event before the test, which training did not see",
    COLD_WITHOUT: "cold users without an event before the test",
}
NEW_ITEM = "items without training events"
ITEMS = "items"  # the group of new and of known items
SOMETIMES = (ITEMS, AGE)  # groups that a report lacks where all targets are alike
NEW = "new_items"  # the group of them alone
ACTIVITY, POPULARITY = "activity", "popularity"
OF_TARGETS = (POPULARITY, ITEMS, AGE, NEW)  # groups of slices of targets, whose only metric is this
RECALL = "recall"
GROUPS = (TRAINING, ACTIVITY, *OF_TARGETS)  # of a report that is asked for no column
OTHERS = "others"
MOST_VALUES = 10  # of a column of categories that get a slice; the rest are one
THIRDS = ("most popular items", "items of middle popularity", "least popular items")


@dataclass(frozen=True)
class Slice:
    """Some of the test users, or some of their targets.

    Attributes:
        group: what divides them; the slices of a group are compared.
        name: of the slice.
        definition: which users or targets are in it.
        users: [Q] which users; None for a slice of targets.
        targets: [T] which targets; None for a slice of users.
    """

    group: str
    name: str
    definition: str
    users: Mask | None = None
    targets: Mask | None = None


@dataclass(frozen=True)
class Trained:
    """What the model was trained on.

    Attributes:
        users: [users] whether training saw an event of each.
        items: [N] whether training saw an event of each.
    """

    users: Mask
    items: Mask

    @classmethod
    def of(cls, data: Dataset, splits: Sequence[str]) -> "Trained":
        """Counts the events of these splits; an event of weight 0 is an impression and does not count."""
        offsets, items = seen(data, splits)
        return cls(np.diff(offsets) > 0, np.bincount(items, minlength=data.manifest.items) > 0)

    @property
    def new_items(self) -> Mask:
        """[N] items without a training event."""
        return ~self.items

    def about(self, held: HeldOut) -> dict[str, NDArray[Any]]:
        """Returns columns of `per_user.parquet`, [Q]: targets, events before the test, and whether warm or cold."""
        return {
            "targets": np.diff(held.target_offsets),
            "history": np.diff(held.seen_offsets),
            "slice": np.where(self.users[held.users], WARM, COLD),
        }

    def slices(self, held: HeldOut) -> list[Slice]:
        """Returns the slices of warm and cold users."""
        warm, known = self.users[held.users], np.diff(held.seen_offsets) > 0
        masks = {WARM: warm, COLD: ~warm, COLD_WITH: ~warm & known, COLD_WITHOUT: ~warm & ~known}
        return [Slice(TRAINING, name, DEFINITIONS[name], users=mask) for name, mask in masks.items()]


def slices_of(
    data: Dataset, asked: Asked, trained: Trained, popularity: NDArray[np.int64], columns: Sequence[str]
) -> list[Slice]:
    """Returns all slices of a report.

    Args:
        data: the data set.
        asked: its test users and their targets.
        trained: what the model was trained on.
        popularity: [N] events of each item before the test.
        columns: names of columns of users, items or events, "users.NAME" where two of them have it.

    Raises:
        DataError: there is no such column, or it holds vectors.
    """
    held = asked.held
    new = trained.new_items[held.target_items]
    items = [("new", NEW_ITEM, new), ("known", "items with training events", ~new)]
    return [
        *trained.slices(held),
        *activity_slices(np.diff(held.seen_offsets)),
        *_popularity_thirds(popularity, held.target_items),
        *(_slices(ITEMS, items, by_user=False) if new.any() and not new.all() else ()),
        *_slices(AGE, ((label, *band) for label, band in item_ages(data, asked).items()), by_user=False),
        *(each for name in columns for each in _column_slices(data, asked, name)),
    ]


def activity_slices(history: NDArray[np.int64]) -> list[Slice]:
    """Returns slices of the users by the number of their events before the test, [Q]."""
    return _slices(ACTIVITY, bands(ACTIVITY, "events before the test", history), by_user=True)


def _slices(group: str, parts: Iterable[Part], *, by_user: bool) -> list[Slice]:
    """Returns the parts of a group that are not empty."""
    side = "users" if by_user else "targets"
    return [Slice(group, f"{group}: {label}", text, **{side: mask}) for label, text, mask in parts if mask.any()]


def _popularity_thirds(popularity: NDArray[np.int64], targets: NDArray[np.int32]) -> list[Slice]:
    order = np.argsort(-popularity, kind="stable")
    before = np.cumsum(popularity[order]) - popularity[order]
    third = np.empty(len(order), np.int64)
    third[order] = np.minimum(3 * before // max(int(popularity.sum()), 1), 2)
    return [
        Slice(
            POPULARITY,
            f"{POPULARITY}: {name}",
            f"targets that are {name}: items by events before the test, cut where each part has a third of the events",
            targets=third[targets] == place,
        )
        for place, name in enumerate(THIRDS)
    ]


def _column_slices(data: Dataset, asked: Asked, name: str) -> Iterator[Slice]:
    table, column = find_column(data, name)
    held = asked.held
    if table == "users":
        values = data.users[column].gather(held.users)
    elif table == "items":
        values = data.items[column].gather(held.target_items)
    else:
        values = event_column(data, column).gather(target_events(data, held, asked.window))
    # Beside the group that the report has of this name anyway.
    yield from slices_of_values(f"{table}.{column}" if name in GROUPS else name, values, by_user=table == "users")


def find_column(data: Dataset, name: str, of: Sequence[str] = ("users", "items", "events")) -> tuple[str, str]:
    """Returns the table and the column that `name` of `--slice` means.

    Raises:
        DataError: none of the tables `of` has such a column, or several have.
    """
    every = {
        "users": [column for column in data.users.columns if column != "user_id"],
        "items": [column for column in data.items.columns if column not in ("item_id", "train_count")],
        "events": [*data.manifest.event_columns, *filter(None, [data.manifest.type_column])],
    }
    tables = {table: every[table] for table in of}
    found = [
        (table, column)
        for table, columns in tables.items()
        for column in columns
        if name in (column, f"{table}.{column}")
    ]
    if len(found) == 1:
        return found[0]
    if found:
        several = " and ".join(f"{table}.{column}" for table, column in found)
        raise DataError(f"--slice {name}: {several} have this name; give one of these")
    allowed = ", ".join(f"{table}.{column}" for table, columns in tables.items() for column in columns)
    where = "" if len(of) > 1 else f" of {of[0]}"
    kinds = f"{', '.join(of[:-1])} or {of[-1]}" if len(of) > 1 else of[0]
    raise DataError(f"--slice {name}: no such column{where}; the data set has {allowed or f'no columns of {kinds}'}")


def slices_of_values(group: str, values: pl.Series, *, by_user: bool) -> list[Slice]:
    """Returns slices by a column: bands of a number, the most frequent values of anything else.

    Args:
        group: the name of the column.
        values: one for each user or target.
        by_user: whether they are of users.

    Raises:
        DataError: the column holds vectors.
    """
    if values.dtype.is_numeric():
        numbers = values.cast(pl.Float64).fill_null(np.nan).to_numpy()
        return _slices(group, bands(group, group, numbers), by_user=by_user)
    lists = isinstance(values.dtype, pl.List)
    if isinstance(values.dtype, pl.List | pl.Array) and values.dtype != pl.List(pl.String):
        raise DataError(f"--slice {group}: holds {values.dtype}; allowed are numbers, texts and lists of texts")
    texts = (values if lists else values.cast(pl.String)).alias("value")  # polars counts no values of a "count"
    each = texts.explode() if lists else texts
    # By value, too, where counts tie: the slices of two reports are compared.
    counts = each.drop_nulls().value_counts().sort(["count", "value"], descending=[True, False])
    names = counts.head(MOST_VALUES)["value"].sort().to_list()
    parts: list[Part] = [
        (
            repr(value) if value.strip("'\"") in (OTHERS, MISSING) else value,
            f"{group} {'contains' if lists else 'is'} {value!r}",
            ((texts.list.contains(value) if lists else texts == value).fill_null(False)).to_numpy(),
        )
        for value in names
    ]
    missing = (texts.is_null() | (texts.list.len() == 0) if lists else texts.is_null()).fill_null(True).to_numpy()
    rest = ~np.any([missing, *(mask for *_, mask in parts)], axis=0)
    parts.append((OTHERS, f"{group}: another value than the {len(names)} most frequent", rest))
    parts.append((MISSING, f"{group}: no value", missing))
    return _slices(group, parts, by_user=by_user)
