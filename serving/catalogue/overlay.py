"""Items changed since the bundle was made: an exact overlay of new vectors, and tombstones over bundle rows.

Each answer uses one immutable `OverlayView` from beginning to end. Rows below N are the bundle's, rows from N on the
overlay's. A changed item gets a new overlay row, and its old row dies.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import polars as pl

from serving.background import Pauses
from serving.bundle.prior import log_share, recall_vectors
from serving.bundle.reader import Bundle
from serving.search.exact import ExactIndex
from serving.search.index import Floats, Mask, Rows
from serving.search.vector_codes import rounded


@dataclass(frozen=True)
class Change:
    """The current state of one item.

    Attributes:
        item_id: its id.
        vector: [D], or None if the item was deleted.
        attributes: item columns by name; those left out are missing.
        undone: whether the item goes back to what the bundle has of it; then there is no vector.
    """

    item_id: str
    vector: Floats | None
    attributes: Mapping[str, Any] = field(default_factory=dict)
    undone: bool = False


@dataclass(frozen=True)
class OverlayView:
    """The live items at one moment.

    Attributes:
        base: N, number of bundle rows.
        ids: [M] item ids of the overlay's rows, including dead ones.
        vectors: [M, D].
        recall_vectors: [M, D + 2], or [M, D] (`vectors`) without a prior: what recall searches.
        alive: [M] whether a row is its item's latest.
        attributes: [M] item columns, as in the bundle.
        rows: item id -> its live row, or -1 if an item of the bundle was deleted; holds no other items.
        buried: bundle rows that must not be returned, ascending.
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
        """Overlay positions, from 0, of the rows that are alive."""
        return np.flatnonzero(self.alive).astype(np.int64)

    @cached_property
    def index(self) -> ExactIndex:
        """Exact search over the rows that are alive; its rows are positions in `living`."""
        return ExactIndex(self.recall_vectors[self.living])

    @cached_property
    def kept(self) -> Mask | None:
        """[N] which of the bundle's rows may be returned; None if all may."""
        if not len(self.buried):
            return None
        kept = np.ones(self.base, np.bool_)
        kept[self.buried] = False
        return kept


class Overlay:
    """Applies changes and publishes views: one writer at a time (`CatalogueUpdates`); readers need no lock.

    Args:
        bundle: an opened bundle.
        item_counts: events per item since it was made; a mapping that grows.
    """

    def __init__(self, bundle: Bundle, item_counts: Mapping[str, int]) -> None:
        self._bundle, self._item_counts = bundle, item_counts
        vectors, none = np.empty((0, bundle.manifest.dimension), np.float32), np.empty(0, np.int64)
        recall_vectors = self._recall_vectors([], vectors)
        alive = np.empty(0, np.bool_)
        self.view = OverlayView(bundle.manifest.items, [], vectors, recall_vectors, alive, self._frame([]), {}, none)

    def apply(self, changes: Sequence[Change]) -> None:
        """Publishes a new view with the changes, in order; readers of the old view are not affected."""
        old = self.view
        rows, ids = dict(old.rows), list(old.ids)
        alive = np.concatenate([old.alive, np.ones(len(changes), np.bool_)])
        added: list[Change] = []
        undone: dict[int, bool] = {}  # of these items' rows in the bundle; the others are buried
        for change in changes:
            in_bundle, before = self._bundle.item_rows.get(change.item_id), rows.pop(change.item_id, None)
            if before is not None and before >= 0:
                alive[before - old.base] = False
            if in_bundle is not None:
                undone[in_bundle] = change.undone
                if not change.undone:
                    rows[change.item_id] = -1
            if change.vector is not None:
                rows[change.item_id] = old.base + len(ids)
                added.append(change)
                ids.append(change.item_id)
        vectors = np.array([change.vector for change in added], np.float32).reshape(-1, old.vectors.shape[1])
        # As the bundle stores vectors: a fold changes no score.
        vectors = rounded(vectors, self._bundle.manifest.vectors)
        recall_vectors = self._recall_vectors(ids[len(old.ids) :], vectors)
        changed = np.array([*undone], np.int64)
        restored = changed[np.array([*undone.values()], np.bool_)]
        frame = self._frame([{**change.attributes, "item_id": change.item_id} for change in added])
        view = OverlayView(
            old.base,
            ids,
            np.concatenate([old.vectors, vectors]),
            np.concatenate([old.recall_vectors, recall_vectors]),
            alive[: len(ids)],
            # In one piece: a column in a thousand pieces is fifteen times as slow to filter.
            pl.concat([old.attributes, frame], rechunk=True),
            rows,
            np.setdiff1d(np.union1d(old.buried, changed), restored),
        )
        self.view = _without_dead(view) if len(view.living) * 2 < len(ids) else view

    def recount(self, item_ids: Collection[str]) -> None:
        """Updates the prior of live items after new events; nothing else changes."""
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
        """What recall searches for items [M] with vectors [M, D]: [M, D + 2], or the vectors without a prior.

        An item of the bundle keeps its prior. A new one gets the median of new items, or the share from its events
        since the bundle was made, if that is higher; each of these counts as the mean event of the window.
        """
        bundle, prior = self._bundle, self._bundle.manifest.prior
        if prior is None or bundle.item_prior is None or not bundle.adds_prior:
            return vectors
        shares = np.tile(np.array(prior.new_item, np.float32), (len(item_ids), 1))
        for place, item_id in enumerate(item_ids):
            row = bundle.item_rows.get(item_id)
            if row is not None:
                shares[place] = bundle.item_prior[row]
            elif count := self._item_counts.get(item_id, 0):
                shares[place, 0] = max(shares[place, 0], float(log_share(count * prior.event_weight, prior.mean_count)))
        return recall_vectors(vectors, shares, prior)


class Progress:
    """How far an overlay has taken in the journal, and when it is tried again after a failure; others wait meanwhile.

    Attributes:
        seq: the number of the last change applied.
        behind: whether the last attempt failed.
    """

    def __init__(self, seq: int) -> None:
        self.reach(seq)

    def reach(self, seq: int) -> None:
        """Notes a success."""
        self.seq, self.behind, self._pauses = seq, False, Pauses()

    def fail(self) -> None:
        """Notes a failure."""
        self.behind = True
        self._pauses.fail()

    def waits(self) -> bool:
        """Whether it is too early for another attempt."""
        return self._pauses.waits()


def _without_dead(view: OverlayView) -> OverlayView:
    """The same items without dead rows, which pile up if an item changes every minute."""
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
