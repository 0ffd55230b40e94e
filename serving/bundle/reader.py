"""Opens a bundle: verified, memory-mapped, and nothing in it trusted before it is checked.

docs/project/design.md describes the directory. Anything missing, truncated, altered, of another schema version or of
another dimension is a `BundleError` with path and reason. `serving.bundle.writer` writes bundles.
"""

from functools import cached_property, partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from serving.background import Once, Rest, no_pause
from serving.bundle import arrays as files
from serving.bundle import prior
from serving.bundle.ids import Ids
from serving.bundle.manifest import Manifest, read_manifest
from serving.bundle.profiles import Profiles
from serving.errors import BundleError
from serving.search.index import Floats, Rows
from serving.search.vector_codes import CodedVectors, Vectors, arrays_of

ITEM_ID, QUERY_ID = "item_id", "query_id"


class Bundle:
    """One opened bundle; `open` makes it.

    Attributes:
        path: the directory.
        manifest: its manifest.
        item_names: row -> item id, [N], memory-mapped.
        item_rows: item id -> row.
        item_vectors: [N, D], memory-mapped; float16 and int8 decode to float32 where they are read.
        item_prior: [N, 2], memory-mapped, log shares of the items now and in training; None without a prior.
        recall_vectors: [N, D + 2], like `item_vectors`, what recall searches; `item_vectors` itself without a prior, or
            if its weights are zero.
        popularity: [N], training events of each item.
        popular_counts: [N], the counts that rank popular items; `popularity` if the bundle has no separate ones.
        query_names: row -> user id, [Q], like `item_names`.
        query_rows: user id -> row.
        query_vectors: [Q, D], memory-mapped.
        profiles: row -> request features of a user, [Q], memory-mapped; None if the bundle holds none.
        attribute_schema: the item columns and their types.
        segments: segment of users -> its popular item rows, best first, and their event counts; may be empty.
    """

    def __init__(self, path: Path, manifest: Manifest) -> None:
        items, queries, dimension = manifest.items, manifest.queries, manifest.dimension
        self.path, self.manifest = path, manifest
        # Older bundles lack these tables: build them in memory.
        self.item_names = Ids.open(path, ITEM_ID, items) or Ids.of(self.item_ids)
        self.item_rows = self.item_names.rows
        self.item_vectors = files.open_item_vectors(path, manifest)
        self.item_prior: Floats | None = None
        self.recall_vectors: Vectors = self.item_vectors
        if manifest.prior is not None:
            wide = items, dimension + prior.COLUMNS
            self.item_prior = files.open_array(path, files.ITEM_PRIOR, np.float32, (items, prior.COLUMNS))
            if isinstance(self.item_vectors, CodedVectors):
                join = partial(prior.recall_vectors, prior=manifest.prior)
                self.recall_vectors = self.item_vectors.joined(self.item_prior, join, prior.COLUMNS)
            elif files.RECALL_VECTORS in manifest.files:  # older bundles have it even if the weights are zero
                self.recall_vectors = files.open_array(path, files.RECALL_VECTORS, np.float32, wide)
        self.popularity = files.open_array(path, files.POPULARITY, np.int64, (items,))
        self.popular_counts: NDArray[np.int64] | Floats = self.popularity
        if files.POPULAR_COUNTS in manifest.files:
            self.popular_counts = files.open_array(path, files.POPULAR_COUNTS, np.float32, (items,))
        self.query_names = Ids.open(path, QUERY_ID, queries) or Ids.of(self.query_ids)
        self.query_rows = self.query_names.rows
        self.query_vectors = files.open_array(path, files.QUERY_VECTORS, np.float32, (queries, dimension))
        self.profiles = Profiles.open(path, queries) if files.PROFILE_ROWS in manifest.files else None
        self._seen_offsets = files.open_array(path, files.SEEN_OFFSETS, np.int64, (queries + 1,))
        self._seen_items = files.open_array(path, files.SEEN_ITEMS, np.int32, (None,))
        self._seen_types: NDArray[np.int16] | None = None
        if manifest.event_types:
            self._seen_types = files.open_array(path, files.SEEN_TYPES, np.int16, (len(self._seen_items),))
        self.segments = {} if manifest.segmented_by is None else files.open_segments(path, items)
        # Mapped like the rest: another bundle may take the place of this one before they are first used.
        self._attributes, self.attribute_schema = files.open_attributes(path, items)
        self._check_seen()

    @classmethod
    def open(cls, path: Path, verify: bool = True, rest: Rest = no_pause) -> "Bundle":
        """Opens a bundle.

        Args:
            path: the directory.
            verify: also compare the SHA-256 of every file, look for NaN in every vector and compare the ids with their
                tables; reads every byte. Sizes, shapes, types and counts are always checked.
            rest: called after each step of work.

        Raises:
            BundleError: names the path and the reason.
        """
        manifest = read_manifest(path)
        files.verify_files(path, manifest, content=verify, rest=rest)
        bundle = cls(path, manifest)
        rest()
        if verify:
            vectors = dict(zip((files.ITEM_VECTORS, files.ITEM_SCALES), arrays_of(bundle.item_vectors), strict=False))
            vectors[files.QUERY_VECTORS] = bundle.query_vectors
            if bundle.item_prior is not None:
                vectors[files.ITEM_PRIOR] = bundle.item_prior
                if bundle.adds_prior and isinstance(bundle.recall_vectors, np.ndarray):
                    vectors[files.RECALL_VECTORS] = bundle.recall_vectors
            for name, array in vectors.items():
                files.refuse_not_finite(path / name, array)
            rest()
            # Not through `item_ids`, which would stay in memory.
            for names, name, column in (
                (bundle.item_names, files.ITEM_IDS, ITEM_ID),
                (bundle.query_names, files.QUERY_IDS, QUERY_ID),
            ):
                names.refuse_other(files.open_ids(path, name, column, len(names)), path / name)
                rest()
            if bundle.profiles is not None:
                bundle.profiles.refuse_wrong(manifest.query_features, path / files.PROFILE_BYTES)
                rest()
        return bundle

    @cached_property
    def item_ids(self) -> pl.Series:
        """Row -> item id as a column, [N] strings, for work on whole columns.

        Raises:
            BundleError: the file does not hold such a column.
        """
        return files.open_ids(self.path, files.ITEM_IDS, ITEM_ID, self.manifest.items)

    @cached_property
    def query_ids(self) -> pl.Series:
        """Row -> user id as a column, [Q] strings, like `item_ids`."""
        return files.open_ids(self.path, files.QUERY_IDS, QUERY_ID, self.manifest.queries)

    @cached_property
    def popular_rows(self) -> Rows:
        """Item rows by descending popular count, ties by row, [N]."""
        return np.argsort(-self.popular_counts, kind="stable").astype(np.int64)

    @Once
    def item_attributes(self) -> pl.DataFrame:
        """The item columns for display and filters, in row order; read on first use."""
        return pl.read_parquet(self._attributes.tobytes())

    @property
    def adds_prior(self) -> bool:
        """Whether `recall_vectors`, and so the queries for them, have the prior's columns."""
        return self.recall_vectors is not self.item_vectors

    @property
    def index_path(self) -> Path | None:
        """The directory of the index, or None if search is exact."""
        info = self.manifest.index
        return None if info is None or info.path is None else self.path / info.path

    def profile(self, query_row: int | None) -> dict[str, Any]:
        """The stored request features of a user; empty if none are known."""
        return {} if query_row is None or self.profiles is None else self.profiles[query_row]

    def has_vector(self, query_rows: Rows) -> NDArray[np.bool_]:
        """Which users training learnt something about; the others have a zero vector, but may have seen items."""
        known: NDArray[np.bool_] = np.any(self.query_vectors[query_rows] != 0, axis=1)
        return known

    def recall_queries(self, vectors: Floats, histories: Rows) -> Floats:
        """The vectors to search `recall_vectors` with: query vectors and, with a prior, its weights.

        Args:
            vectors: [B, D].
            histories: [B] lengths of the histories, `serving.bundle.prior.NO_PRIOR` for a query without a prior.

        Returns:
            [B, D + 2], or `vectors` itself if `recall_vectors` has no columns of a prior.
        """
        if self.manifest.prior is None or not self.adds_prior:
            return vectors
        return np.hstack([vectors, prior.query_columns(self.manifest.prior, histories)])

    def sample_queries(self, count: int, seed: int) -> Floats:
        """Samples queries for `recall_vectors` from stored users, or from items if no user has a vector.

        Args:
            count: the most queries; zero vectors, which are answered without a search, are left out.
            seed: seed of the sample.
        """
        for vectors in (self.query_vectors, self.item_vectors):
            rows = _sample(vectors, count, seed)
            of_users = vectors is self.query_vectors
            lengths = self.seen_counts(rows) if of_users else np.full(len(rows), prior.NO_PRIOR)
            queries = self.recall_queries(vectors[rows], lengths)
            if len(queries):
                break
        return np.ascontiguousarray(queries)

    def seen_counts(self, query_rows: Rows) -> Rows:
        """How many items each of these users has seen, repeats included: the lengths of their histories."""
        counts: Rows = self._seen_offsets[query_rows + 1] - self._seen_offsets[query_rows]
        return counts

    def seen(self, query_row: int) -> NDArray[np.int32]:
        """Item rows that a known user has seen, in time order, newest last."""
        return self._seen_items[self._seen_offsets[query_row] : self._seen_offsets[query_row + 1]]

    def seen_types(self, query_row: int) -> NDArray[np.int16] | None:
        """The numbers of the types of these events in `manifest.event_types`, -1 for none; None if none are stored."""
        if self._seen_types is None:
            return None
        return self._seen_types[self._seen_offsets[query_row] : self._seen_offsets[query_row + 1]]

    def seen_sets(self, query_rows: Rows) -> list[Rows]:
        """The distinct item rows that each of these users has seen, ascending: many times faster than one by one."""
        begins, items = self._seen_offsets[query_rows], self.manifest.items
        lengths = self._seen_offsets[query_rows + 1] - begins
        ends = np.cumsum(lengths)
        places = np.arange(ends[-1] if len(ends) else 0) + np.repeat(begins - (ends - lengths), lengths)
        # The pairs come user by user. A merge sort uses that: this function then takes two thirds of the time.
        pairs = np.repeat(np.arange(len(lengths)), lengths) * items + self._seen_items[places]
        pairs.sort(kind="stable")
        # `np.unique` takes ten times as long.
        pairs = pairs[np.diff(pairs, prepend=-1) > 0]
        borders = np.searchsorted(pairs, np.arange(len(lengths) + 1) * items).tolist()
        rows = pairs % items
        return [rows[begin:end] for begin, end in pairwise(borders)]

    def _check_seen(self) -> None:
        offsets, items = self._seen_offsets, self._seen_items
        if offsets[0] != 0 or offsets[-1] != len(items) or (np.diff(offsets) < 0).any():
            raise BundleError(f"{self.path / files.SEEN_OFFSETS}: must rise from 0 to the {len(items)} seen items")
        if len(items) and (items.min() < 0 or items.max() >= self.manifest.items):
            raise BundleError(f"{self.path / files.SEEN_ITEMS}: item rows must lie in 0..{self.manifest.items - 1}")
        types, last = self._seen_types, len(self.manifest.event_types) - 1
        if types is not None and len(types) and (types.min() < -1 or types.max() > last):
            raise BundleError(f"{self.path / files.SEEN_TYPES}: numbers of types must lie in -1..{last}")


def _sample(vectors: Vectors, count: int, seed: int) -> Rows:
    """At most `count` rows [n], ascending, whose vectors are not zero."""
    generator, size = np.random.default_rng(seed), count
    while True:
        rows = np.sort(generator.choice(len(vectors), size=min(size, len(vectors)), replace=False))
        parts = np.array_split(rows, 1 + len(rows) // files.BLOCK_ROWS)
        rows = rows[np.concatenate([np.any(vectors[part] != 0, axis=1) for part in parts])]
        if len(rows) >= count or size >= len(vectors):
            return rows if len(rows) <= count else np.sort(generator.choice(rows, count, replace=False))
        size *= 4
