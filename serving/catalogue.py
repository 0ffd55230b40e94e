"""The items that a service answers with: the bundle's and the live ones as one catalogue of rows.

In: query vectors and what is wanted of the items. Out: rows and scores, exactly k where k are eligible. Rows below N
are the bundle's, found by its index; those from N on are live items, searched exactly (see `serving.live_items`).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from serving.bundle import Bundle
from serving.conditions import Condition, Masks, kinds, mask
from serving.filtering import search_filtered
from serving.index import ExactIndex, Floats, Index, Rows, best_first
from serving.live_items import LiveItems, View

Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class Wanted:
    """Which items an answer may hold, beside those that are excluded for a single query.

    Attributes:
        allow: only these item ids, or None for all.
        filter: only items whose columns fit, or None for all.
    """

    allow: tuple[str, ...] | None = None
    filter: Condition | None = None


class Catalogue:
    """The items of one bundle and the live ones.

    Args:
        bundle: an opened bundle.
        index: searches the bundle's item vectors.
    """

    def __init__(self, bundle: Bundle, index: Index) -> None:
        self.bundle, self.index = bundle, index
        self.exact = index if isinstance(index, ExactIndex) else ExactIndex(bundle.item_vectors)
        self.live = LiveItems(bundle.item_rows, bundle.manifest.dimension, bundle.attribute_schema)
        self.kinds = kinds(bundle.attribute_schema)
        self._masks: Masks | None = None

    def snapshot(self) -> "Snapshot":
        """The catalogue at this moment: what one answer works with."""
        return Snapshot(self, self.live.view)

    @property
    def masks(self) -> Masks:
        """Masks of the bundle's items by filter; the item columns are read when first asked for."""
        if self._masks is None:
            self._masks = Masks(self.bundle.item_attributes)
        return self._masks


@dataclass(frozen=True)
class Snapshot:
    """A catalogue that does not change."""

    catalogue: Catalogue
    view: View

    @property
    def total(self) -> int:
        """Rows that there are, those included that must not come back."""
        return self.view.base + len(self.view.ids)

    def row_of(self, item_id: str) -> int | None:
        """The row of an item that may be recalled, or None."""
        row = self.view.rows.get(item_id)
        if row is None:
            return self.catalogue.bundle.item_rows.get(item_id)
        return row if row >= 0 else None

    def rows_of(self, item_ids: Sequence[str]) -> list[int]:
        """The rows of those that are known, in their order."""
        return [row for row in map(self.row_of, item_ids) if row is not None]

    def current(self, rows: Rows) -> Rows:
        """Rows of the bundle with those of changed items replaced by their live ones; of deleted items, left out."""
        if not len(self.view.buried):
            return rows
        gone = np.isin(rows, self.view.buried)
        names = self.catalogue.bundle.item_names
        moved = (self.view.rows[names[row]] for row in rows[gone].tolist())
        return np.concatenate([rows[~gone], np.array([row for row in moved if row >= 0], np.int64)])

    def names(self, rows: Rows) -> list[str]:
        """The item ids of rows."""
        names, base = self.catalogue.bundle.item_names, self.view.base
        return [names[row] if row < base else self.view.ids[row - base] for row in rows.tolist()]

    def vectors(self, rows: Sequence[int]) -> Floats:
        """The vectors [R, D] of rows."""
        chosen = np.array(rows, np.int64)
        out = np.empty((len(chosen), self.view.vectors.shape[1]), np.float32)
        live = chosen >= self.view.base
        out[~live] = self.catalogue.bundle.item_vectors[chosen[~live]]
        out[live] = self.view.vectors[chosen[live] - self.view.base]
        return out

    def values(self, column: str, rows: Rows) -> list[object]:
        """What a column of the items holds at rows; None where it is missing."""
        live = rows >= self.view.base
        base = iter(self.catalogue.bundle.item_attributes[column].gather(rows[~live]).to_list())
        own = iter(self.view.attributes[column].gather(rows[live] - self.view.base).to_list())
        return [next(own) if is_live else next(base) for is_live in live.tolist()]

    def search(self, queries: Floats, k: int, excluded: Sequence[Rows], wanted: Wanted) -> tuple[Rows, Floats]:
        """The k best items of each query that are wanted and not excluded for it.

        Args:
            queries: [B, D].
            k: how many, at least 1.
            excluded: distinct rows for each query.
            wanted: which items at all.

        Returns:
            Rows [B, k] and scores [B, k], best first; row -1 with score -inf where fewer are eligible.
        """
        base, bundle = self.view.base, self.catalogue.bundle
        own = self._own(wanted)
        if wanted.allow is not None:
            some = self._allowed(wanted)
            rows, scores = _search_some(ExactIndex(bundle.item_vectors[some]), some, queries, k, excluded)
        else:
            inside = [rows[rows < base] for rows in excluded] if len(self.view.ids) else excluded
            rows, scores = search_filtered(
                self.catalogue.index, self.catalogue.exact, queries, k, inside, self._kept(wanted)
            )
        if not len(own):
            return rows, scores
        index = self.view.index if len(own) == len(self.view.living) else ExactIndex(self.view.vectors[own])
        found, found_scores = _search_some(index, own + base, queries, k, excluded)
        return best_first(np.concatenate([rows, found], axis=1), np.concatenate([scores, found_scores], axis=1), k)

    def popular(self, k: int, excluded: Rows, wanted: Wanted, segment: str | None = None) -> tuple[Rows, Floats]:
        """The k most popular items that are wanted and not excluded, and their event counts as scores.

        With a segment of users its own popular items come first, with the counts there, then the others with 0. A
        live item that the bundle does not know has a count of 0; a changed one keeps the count it had.
        """
        bundle = self.catalogue.bundle
        most = k + len(excluded)
        now, fresh = self._now(wanted)
        if segment is None and now is None and most <= self.view.base:
            rows = bundle.popular_rows[:most]
            rows = rows[~np.isin(rows, excluded)][:k]
            return rows, bundle.popularity[rows].astype(np.float32)
        first, counts = bundle.segments.get(segment or "", (np.empty(0, np.int64), np.empty(0, np.int64)))
        then = bundle.popular_rows[~np.isin(bundle.popular_rows, first)] if len(first) else bundle.popular_rows
        scores = np.concatenate([counts, np.zeros(len(then), np.int64) if len(first) else bundle.popularity[then]])
        rows = np.concatenate([now[first], now[then]]) if now is not None else np.concatenate([first, then])
        kept = rows >= 0
        rows = np.concatenate([rows[kept], fresh])
        scores = np.concatenate([scores[kept], np.zeros(len(fresh), np.int64)])
        rows, scores = rows[:most], scores[:most]
        left = ~np.isin(rows, excluded)
        return rows[left][:k], scores[left][:k].astype(np.float32)

    def _now(self, wanted: Wanted) -> tuple[Rows | None, Rows]:
        """[N] the row that each item of the bundle has now, -1 where it is not wanted; and the rows of new items.

        None in the place of the first where every row is as it was.
        """
        kept, own = self._kept(wanted), self._own(wanted) + self.view.base
        if wanted.allow is not None:
            kept = np.zeros(self.view.base, np.bool_)
            kept[self._allowed(wanted)] = True
        known = self.catalogue.bundle.item_rows
        before = [known.get(name, -1) for name in self.names(own)]
        fresh = own[[row < 0 for row in before]] if len(own) else own
        if kept is None:
            return None, fresh
        now = np.where(kept, np.arange(self.view.base), -1)
        for row, live in zip(before, own.tolist(), strict=True):
            if row >= 0:
                now[row] = live
        return now, fresh

    def _own(self, wanted: Wanted) -> Rows:
        """Overlay places that are alive and wanted."""
        own = self.view.living
        if not len(own):
            return own
        if wanted.filter is not None:
            own = own[mask(wanted.filter, self.view.attributes)[own]]
        if wanted.allow is not None:
            allowed = set(wanted.allow)
            own = np.array([place for place in own.tolist() if self.view.ids[place] in allowed], np.int64)
        return own

    def _kept(self, wanted: Wanted) -> Mask | None:
        """[N] which of the bundle's rows are wanted; None where all are."""
        kept = self.view.kept
        if wanted.filter is None:
            return kept
        fits = self.catalogue.masks.of(wanted.filter)
        return fits if kept is None else fits & kept

    def _allowed(self, wanted: Wanted) -> Rows:
        """The bundle's rows among the allowed ones."""
        rows = np.unique(np.array([row for row in self.rows_of(wanted.allow or ()) if row < self.view.base], np.int64))
        kept = self._kept(Wanted(filter=wanted.filter))
        return rows if kept is None else rows[kept[rows]]


def _search_some(
    index: ExactIndex, rows: Rows, queries: Floats, k: int, excluded: Sequence[Rows]
) -> tuple[Rows, Floats]:
    """Searches the vectors of some `rows`, rising, that `index` holds in their order; see `Snapshot.search`."""
    if not len(rows):
        return np.full((len(queries), k), -1, np.int64), np.full((len(queries), k), -np.inf, np.float32)
    hidden = [np.searchsorted(rows, each[np.isin(each, rows)]) for each in excluded]
    found, scores = index.search(queries, k, hidden)
    return np.where(found >= 0, rows[found], -1), scores
