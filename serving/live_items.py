"""Items that changed since the bundle was made: an exact overlay of new vectors, tombstones over bundle rows.

In: changes with their vectors. Out: a `View`, immutable, which one answer sees from beginning to end. Rows below
N are the bundle's, rows from N on the overlay's. A changed item gets a new overlay row, and its old row dies.
"""

import threading
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from serving.bundle import Bundle
from serving.index import ExactIndex, Floats, Rows
from serving.prior import log_share, recall_vectors

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
        recall_vectors: [M, D + 2], or without a prior [M, D] as they are: what recall searches.
        alive: [M] whether a row is its item's last.
        attributes: [M] item columns, as the bundle's.
        rows: item id -> its live row, or -1 where an item of the bundle was deleted; no others are in it.
        buried: rows of the bundle that must not come back, rising.
    """

    base: int
    ids: list[str]
    vectors: Floats
    recall_vectors: Floats
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
        return ExactIndex(self.recall_vectors[self.living])

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
        bundle: an opened bundle.
        item_counts: how often items were taken since it was made; a mapping that grows.
    """

    def __init__(self, bundle: Bundle, item_counts: Mapping[str, int]) -> None:
        self._bundle, self._item_counts = bundle, item_counts
        vectors, none = np.empty((0, bundle.manifest.dimension), np.float32), np.empty(0, np.int64)
        recall_vectors = self._recall_vectors([], vectors)
        alive = np.empty(0, np.bool_)
        self.view = View(bundle.manifest.items, [], vectors, recall_vectors, alive, self._frame([]), {}, none)
        self._lock = threading.Lock()

    def apply(self, changes: Sequence[Change]) -> None:
        """Makes a new view of the changes, in their order; readers of the old one are not disturbed."""
        with self._lock:
            old = self.view
            rows, ids = dict(old.rows), list(old.ids)
            alive = np.concatenate([old.alive, np.ones(len(changes), np.bool_)])
            added: list[Change] = []
            buried = []
            for change in changes:
                in_bundle, before = self._bundle.item_rows.get(change.item_id), rows.pop(change.item_id, None)
                if before is not None and before >= 0:
                    alive[before - old.base] = False
                if in_bundle is not None:
                    rows[change.item_id] = -1
                    if before is None:
                        buried.append(in_bundle)
                if change.vector is not None:
                    rows[change.item_id] = old.base + len(ids)
                    added.append(change)
                    ids.append(change.item_id)
            vectors = np.array([change.vector for change in added], np.float32).reshape(-1, old.vectors.shape[1])
            recall_vectors = self._recall_vectors(ids[len(old.ids) :], vectors)
            frame = self._frame([{**change.attributes, "item_id": change.item_id} for change in added])
            view = View(
                old.base,
                ids,
                np.concatenate([old.vectors, vectors]),
                np.concatenate([old.recall_vectors, recall_vectors]),
                alive[: len(ids)],
                pl.concat([old.attributes, frame]),
                rows,
                np.unique(np.concatenate([old.buried, np.array(buried, np.int64)])),
            )
            self.view = _without_dead(view) if len(view.living) * 2 < len(ids) else view

    def recount(self, item_ids: Collection[str]) -> None:
        """Takes in that items were taken: the prior of those that live here changes, nothing else."""
        with self._lock:
            old = self.view
            taken = [item_id for item_id in item_ids if old.rows.get(item_id, -1) >= 0]
            without_prior = old.recall_vectors.shape[1] == old.vectors.shape[1]
            if not taken or without_prior:
                return
            places = np.array([old.rows[item_id] for item_id in taken], np.int64) - old.base
            recall_vectors = old.recall_vectors.copy()
            recall_vectors[places] = self._recall_vectors(taken, old.vectors[places])
            self.view = replace(old, recall_vectors=recall_vectors)

    def _frame(self, attributes: Sequence[Mapping[str, Any]]) -> pl.DataFrame:
        schema = self._bundle.attribute_schema
        return pl.DataFrame({name: [each.get(name) for each in attributes] for name in schema}, schema=schema)

    def _recall_vectors(self, item_ids: Sequence[str], vectors: Floats) -> Floats:
        """The vectors that recall searches of items [M] with vectors [M, D]: [M, D + 2], without a prior the vectors.

        An item of the bundle keeps its prior. A new one has the median of new items, or that of its events since the
        bundle was made, where that is more; each counts as the mean event of the window.
        """
        bundle, prior = self._bundle, self._bundle.manifest.prior
        if prior is None or bundle.item_prior is None:
            return vectors
        shares = np.tile(np.array(prior.new_item, np.float32), (len(item_ids), 1))
        for place, item_id in enumerate(item_ids):
            row = bundle.item_rows.get(item_id)
            if row is not None:
                shares[place] = bundle.item_prior[row]
            elif count := self._item_counts.get(item_id, 0):
                shares[place, 0] = max(shares[place, 0], float(log_share(count * prior.event_weight, prior.mean_count)))
        return recall_vectors(vectors, shares, prior)


def _without_dead(view: View) -> View:
    """The same items without the dead rows, which would pile up under an item that changes every minute."""
    living = view.living
    row = np.full(len(view.ids), -1, np.int64)
    row[living] = np.arange(len(living)) + view.base
    return replace(
        view,
        ids=[view.ids[place] for place in living.tolist()],
        vectors=view.vectors[living],
        recall_vectors=view.recall_vectors[living],
        alive=view.alive[living],
        attributes=view.attributes[living],
        rows={item_id: -1 if old < 0 else int(row[old - view.base]) for item_id, old in view.rows.items()},
    )
