"""Items that changed since the bundle was made: an exact overlay of new vectors, tombstones over bundle rows.

In: changes with their vectors. Out: a `View`, immutable, which one answer sees from beginning to end. Rows below
N are the bundle's, rows from N on the overlay's. A changed item gets a new overlay row, and its old row dies.
"""

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from serving.index import ExactIndex, Floats, Rows

Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class Change:
    """One item as it is now.

    Attributes:
        item_id: its id.
        vector: [D], or None: the item is gone.
        attributes: item columns by name; those left out are missing.
    """

    item_id: str
    vector: Floats | None
    attributes: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class View:
    """The live items at one moment.

    Attributes:
        base: N, rows of the bundle.
        ids: [M] item ids of the overlay's rows, dead ones too.
        vectors: [M, D].
        alive: [M] whether a row is its item's last.
        attributes: [M] item columns, as the bundle's.
        rows: item id -> its live row, or -1 where an item of the bundle was deleted; no others are in it.
        buried: rows of the bundle that must not come back, rising.
    """

    base: int
    ids: list[str]
    vectors: Floats
    alive: Mask
    attributes: pl.DataFrame
    rows: Mapping[str, int]
    buried: Rows

    @cached_property
    def living(self) -> Rows:
        """Overlay places, from 0, of the items that are alive."""
        return np.flatnonzero(self.alive).astype(np.int64)

    @cached_property
    def index(self) -> ExactIndex:
        """Exact search over the living overlay; its rows are places in `living`."""
        return ExactIndex(self.vectors[self.living])

    @cached_property
    def kept(self) -> Mask | None:
        """[N] which of the bundle's rows may come back; None where all may."""
        if not len(self.buried):
            return None
        kept = np.ones(self.base, np.bool_)
        kept[self.buried] = False
        return kept


class LiveItems:
    """Takes changes in, one thread at a time, and shows them as views.

    Args:
        item_rows: item id -> row of the bundle, [N].
        dimension: D.
        schema: the item columns and their types.
    """

    def __init__(self, item_rows: Mapping[str, int], dimension: int, schema: Mapping[str, pl.DataType]) -> None:
        self._item_rows = item_rows
        self._schema = pl.Schema(dict(schema))
        self._lock = threading.Lock()
        empty = np.empty((0, dimension), np.float32)
        self.view = View(len(item_rows), [], empty, np.empty(0, np.bool_), self._frame([]), {}, np.empty(0, np.int64))

    def apply(self, changes: Sequence[Change]) -> None:
        """Makes a new view of the changes, in their order; readers of the old one are not disturbed."""
        with self._lock:
            old = self.view
            rows, ids = dict(old.rows), list(old.ids)
            alive = np.concatenate([old.alive, np.zeros(len(changes), np.bool_)])
            added: list[Change] = []
            buried = []
            for change in changes:
                if (before := rows.get(change.item_id, -1)) >= 0:
                    alive[before - old.base] = False
                if change.item_id not in rows and (row := self._item_rows.get(change.item_id)) is not None:
                    buried.append(row)
                if change.item_id in self._item_rows:
                    rows[change.item_id] = -1
                else:
                    rows.pop(change.item_id, None)
                if change.vector is not None:
                    rows[change.item_id] = old.base + len(ids)
                    alive[len(ids)] = True
                    added.append(change)
                    ids.append(change.item_id)
            vectors = np.array([change.vector for change in added], np.float32)
            frame = self._frame([{**change.attributes, "item_id": change.item_id} for change in added])
            view = View(
                old.base,
                ids,
                np.concatenate([old.vectors, vectors]) if added else old.vectors,
                alive[: len(ids)],
                pl.concat([old.attributes, frame]) if added else old.attributes,
                rows,
                np.unique(np.concatenate([old.buried, np.array(buried, np.int64)])),
            )
            self.view = _without_dead(view) if len(view.living) * 2 < len(ids) else view

    def _frame(self, attributes: Sequence[Mapping[str, Any]]) -> pl.DataFrame:
        columns = {name: [each.get(name) for each in attributes] for name in self._schema}
        return pl.DataFrame(columns, schema=self._schema)


def _without_dead(view: View) -> View:
    """The same items without the dead rows, which would pile up under an item that changes every minute."""
    living = view.living
    row = np.full(len(view.ids), -1, np.int64)
    row[living] = np.arange(len(living)) + view.base
    rows = {item_id: -1 if old < 0 else int(row[old - view.base]) for item_id, old in view.rows.items()}
    return View(
        view.base,
        [view.ids[place] for place in living.tolist()],
        view.vectors[living],
        np.ones(len(living), np.bool_),
        view.attributes[living],
        rows,
        view.buried,
    )
