"""One catalogue of rows: the bundle's items and the live items.

Rows below N are the bundle's, searched by its index; rows from N on are live items, searched exactly (see
`serving.catalogue.overlay`). A search returns exactly k rows if k are eligible.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from serving.background import Once
from serving.bundle.reader import Bundle
from serving.catalogue.overlay import Overlay, OverlayView
from serving.catalogue.popular import by_popularity
from serving.catalogue.times import TimeColumn, time_columns
from serving.search.conditions import Condition, kinds
from serving.search.diversity import holding, values_at
from serving.search.exact import ExactIndex
from serving.search.filter_masks import Masks, mask
from serving.search.filtered import search_filtered
from serving.search.index import Floats, Index, Mask, Rows, best_first


@dataclass(frozen=True)
class Wanted:
    """Which items an answer may hold, apart from the exclusions of a single query.

    Attributes:
        allow: only these item ids, or None for all.
        filter: only items whose columns match, or None for all.
    """

    allow: tuple[str, ...] | None = None
    filter: Condition | None = None


class Catalogue:
    """The items of one bundle and the live ones.

    Args:
        bundle: an opened bundle.
        index: searches the bundle's `recall_vectors`.
        item_counts: events per item since the bundle was made.
    """

    def __init__(self, bundle: Bundle, index: Index, item_counts: Mapping[str, int] | None = None) -> None:
        self.bundle, self.index = bundle, index
        self.exact = index if isinstance(index, ExactIndex) else ExactIndex(bundle.recall_vectors)
        self.live = Overlay(bundle, {} if item_counts is None else item_counts)
        self.kinds = kinds(bundle.attribute_schema)
        self.plain_ids = bundle.item_names.plain()

    def snapshot(self) -> "Snapshot":
        """The catalogue at this moment; one answer works with one snapshot."""
        return Snapshot(self, self.live.view)

    @Once
    def masks(self) -> Masks:
        """Masks of the bundle's items by filter; the item columns are read on first use."""
        return Masks(self.bundle.item_attributes)

    @Once
    def times(self) -> Mapping[str, TimeColumn]:
        """The item columns of the bundle that hold times; they are read on first use."""
        return time_columns(self.bundle)


@dataclass(frozen=True)
class Snapshot:
    """An immutable view of a catalogue."""

    catalogue: Catalogue
    view: OverlayView

    @property
    def total(self) -> int:
        """Number of rows, including those that must not be returned."""
        return self.view.base + len(self.view.ids)

    def row_of(self, item_id: str) -> int | None:
        """The row of an item that may be recalled, or None."""
        row = self.view.rows.get(item_id)
        if row is None:
            return self.catalogue.bundle.item_rows.get(item_id)
        return row if row >= 0 else None

    def rows_of(self, item_ids: Sequence[str]) -> list[int]:
        """The rows of the known items, in order."""
        if not item_ids:
            return []
        if self.view.rows:
            return [row for row in map(self.row_of, item_ids) if row is not None]
        return self.catalogue.bundle.item_rows.known(item_ids)

    def current(self, rows: Rows) -> Rows:
        """Bundle rows, with changed items replaced by their live rows and deleted items removed."""
        if self.view.kept is None:
            return rows
        gone = ~self.view.kept[rows]
        moved = self._moved(rows[gone])
        return np.concatenate([rows[~gone], moved[moved >= 0]])

    def names(self, rows: Rows) -> list[str]:
        """The item ids of rows."""
        names, base = self.catalogue.bundle.item_names, self.view.base
        if not self.view.ids:
            return names.at(rows)
        return [names[row] if row < base else self.view.ids[row - base] for row in rows.tolist()]

    def plain_names(self, rows: Rows) -> list[bytes] | None:
        """The item ids of rows as JSON strings without quotes; None if a row is live or `Ids.plain` is None."""
        if self.view.ids and (rows >= self.view.base).any():
            return None
        plain = self.catalogue.plain_ids
        return None if plain is None else plain.take(rows).tolist()

    def vectors(self, rows: Sequence[int], *, recalled: bool = False) -> Floats:
        """The vectors [R, D] of rows; `recalled` gives those that recall searches, [R, D + 2] with a prior."""
        bundle, view, chosen = self.catalogue.bundle, self.view, np.array(rows, np.int64)
        base, own = (bundle.recall_vectors, view.recall_vectors) if recalled else (bundle.item_vectors, view.vectors)
        out = np.empty((len(chosen), own.shape[1]), np.float32)
        live = chosen >= view.base
        out[~live] = base[chosen[~live]]
        out[live] = own[chosen[live] - view.base]
        return out

    def values(self, column: str, rows: Rows) -> list[object]:
        """The values of an item column at rows; None where missing."""
        live = rows >= self.view.base
        base = iter(values_at(self.catalogue.bundle.item_attributes, column, rows[~live]))
        own = iter(values_at(self.view.attributes, column, rows[live] - self.view.base))
        return [next(own) if is_live else next(base) for is_live in live.tolist()]

    def holding(self, column: str, values: Collection[Any]) -> Mask:
        """[total] which rows hold one of the values in a column."""
        frames = self.catalogue.bundle.item_attributes, self.view.attributes
        return np.concatenate([holding(frame[column], values) for frame in frames])

    def search(
        self, queries: Floats, k: int, excluded: Sequence[Rows], wanted: Wanted, hidden: Mask | None = None
    ) -> tuple[Rows, Floats]:
        """The k best items of each query that are wanted and not excluded for it.

        Args:
            queries: [B, D + 2] with a prior, else [B, D]; see `Bundle.recall_queries`.
            k: how many, at least 1.
            excluded: distinct rows per query.
            wanted: which items at all.
            hidden: [total], True for rows that must not be returned for any query; None for none.

        Returns:
            Rows [B, k] and scores [B, k], best first; row -1 with score -inf where fewer are eligible.
        """
        base, own = self.view.base, self._own(wanted, hidden)
        kept = _both(self._fits(wanted, hidden), self.view.kept)
        if wanted.allow is not None:
            some = self._known(wanted.allow)
            some = some if kept is None else some[kept[some]]
            rows, scores = self.catalogue.exact.search_among(queries, some, k, excluded)
        else:
            inside = [rows[rows < base] for rows in excluded] if len(self.view.ids) else excluded
            rows, scores = search_filtered(self.catalogue.index, self.catalogue.exact, queries, k, inside, kept)
        if not len(own):
            return rows, scores
        found, found_scores = self._search_own(own, queries, k, [rows[rows >= base] - base for rows in excluded])
        return best_first(np.concatenate([rows, found], axis=1), np.concatenate([scores, found_scores], axis=1), k)

    def eligible(self, wanted: Wanted) -> Mask:
        """[total] which rows `search` and `popular` choose from, apart from the exclusions of a query."""
        kept, passing = _both(self._fits(wanted, None), self.view.kept), np.zeros(self.total, np.bool_)
        some = np.arange(self.view.base) if wanted.allow is None else self._known(wanted.allow)
        passing[some] = True if kept is None else kept[some]
        passing[self._own(wanted, None) + self.view.base] = True
        return passing

    def _search_own(self, own: Rows, queries: Floats, k: int, excluded: Sequence[Rows]) -> tuple[Rows, Floats]:
        """Searches the overlay positions `own` except the excluded ones; returns rows of the catalogue."""
        view, living = self.view, self.view.living
        left_out = [living.searchsorted(rows) for rows in excluded]
        places, scores = view.index.search_among(queries, living.searchsorted(own), k, left_out)
        found = np.where(places >= 0, living[places], -1)
        return np.where(found >= 0, found + view.base, -1), scores

    def popular(
        self, k: int, excluded: Rows, wanted: Wanted, segment: str | None = None, hidden: Mask | None = None
    ) -> tuple[Rows, Floats]:
        """The k most popular items that are wanted and not excluded, with their popular counts as scores.

        With a user segment, its popular items come first, with their counts there, then the others with 0. A live item
        unknown to the bundle has a count of 0; a changed one keeps its count. Scans only as many items as it takes to
        find k. For `hidden` see `search`.
        """
        view, fits, own = self.view, self._fits(wanted, hidden), self._own(wanted, hidden)
        found, found_counts, left = [], [], k
        allowed = None if wanted.allow is None else self._known(wanted.allow)
        for rows, counts in by_popularity(self.catalogue.bundle, k + len(excluded), allowed, segment):
            kept = np.ones(len(rows), np.bool_) if fits is None else fits[rows]
            if view.kept is not None:
                gone, rows = ~view.kept[rows], rows.copy()
                rows[gone] = self._moved(rows[gone])
                kept[gone] = np.isin(rows[gone] - view.base, own)
            kept &= ~np.isin(rows, excluded)
            found.append(rows[kept][:left])
            found_counts.append(counts[kept][:left])
            left -= len(found[-1])
            if not left:
                break
        if left:
            names, known = self.view.ids, self.catalogue.bundle.item_rows
            fresh = np.array([place for place in own.tolist() if names[place] not in known], np.int64) + view.base
            found.append(fresh[~np.isin(fresh, excluded)][:left])
            found_counts.append(np.zeros(len(found[-1]), np.int64))
        return np.concatenate(found), np.concatenate(found_counts).astype(np.float32)

    def _moved(self, buried: Rows) -> Rows:
        """The current rows of changed bundle items; -1 for deleted ones."""
        return np.array([self.view.rows[name] for name in self.catalogue.bundle.item_names.at(buried)], np.int64)

    def _known(self, item_ids: Sequence[str]) -> Rows:
        """The bundle's rows of the ids it knows, including deleted and changed items, ascending."""
        return np.unique(np.array(self.catalogue.bundle.item_rows.known(item_ids), np.int64))

    def _own(self, wanted: Wanted, hidden: Mask | None) -> Rows:
        """Overlay positions that are alive, wanted and not hidden, ascending."""
        view, own = self.view, self.view.living
        if not len(own):
            return own
        if wanted.allow is not None:
            rows = (view.rows.get(item_id, -1) for item_id in wanted.allow)
            own = np.unique(np.array([row - view.base for row in rows if row >= 0], np.int64))
        if wanted.filter is not None:
            own = own[mask(wanted.filter, view.attributes)[own]]
        return own if hidden is None else own[~hidden[own + view.base]]

    def _fits(self, wanted: Wanted, hidden: Mask | None) -> Mask | None:
        """[N] which of the bundle's rows pass the filter and are not hidden; None if all do."""
        fits = None if wanted.filter is None else self.catalogue.masks.of(wanted.filter)
        return fits if hidden is None else _both(fits, ~hidden[: self.view.base])


def _both(one: Mask | None, other: Mask | None) -> Mask | None:
    """Element-wise `and`; None stands for all True."""
    if one is None or other is None:
        return other if one is None else one
    return one & other
