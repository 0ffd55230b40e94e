"""The rankers of a report: the served vectors, searched exactly and through the index, the baselines, the known truth.

A ranker maps held-out users to lists ``[Q, K]`` of the data set's item numbers, best first, without the items the users
have seen, padded with -1. The bundles are those trained on the data set; both are compared with their manifests.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pipelines.console import progress, say
from pipelines.dataset.dataset import Dataset
from pipelines.dataset.digests import refuse_changes
from pipelines.dataset.heldout import HeldOut
from pipelines.rankers.evaluate import Lists, Ranker
from pipelines.rankers.popular import Popular
from pipelines.service.verify import VERIFY, megabytes, verified
from serving.bundle.reader import Bundle
from serving.errors import BundleError
from serving.search.exact import ExactIndex
from serving.search.filtered import search_filtered
from serving.search.index import Floats, Index, Rows
from serving.search.scann import ScannIndex
from towers.data.events import select_lists

EXACT, INDEX, POPULARITY, KNN, BEST = "exact", "index", "popularity", "item_knn", "best_attainable"
USERS_ALIKE, RECENT, ORDERED = "popularity_users", "popularity_recent", "item_knn_ordered"
EASE, EASE_RECENT, FAVOURITES = "ease", "ease_recent", "favourites"
KNOWN = ("train", "valid")  # the splits that make history and mask at the test
Search = Callable[[Floats, list[Rows]], Rows]


@dataclass(frozen=True)
class Served:
    """A bundle's vectors as the service uses them, in the data set's numbers.

    Attributes:
        bundle: the bundle.
        index: its index.
        item_numbers: [rows] the data set's number of each item row.
        item_rows: [N] the item row of each number, -1 if the bundle holds no vector.
        query_rows: [U] the query row of each user number, -1 if the bundle holds no vector.
    """

    bundle: Bundle
    index: Index
    item_numbers: NDArray[np.int32]
    item_rows: NDArray[np.int64]
    query_rows: NDArray[np.int64]

    @classmethod
    def match(cls, bundle: Bundle, index: Index, dataset: Dataset) -> "Served":
        """Finds the bundle's items and users in the data set, which must have all its items."""
        number_of = {name: number for number, name in enumerate(dataset.items["item_id"].to_list())}
        numbers = np.array([number_of[name] for name in bundle.item_ids], dtype=np.int32)
        rows = np.full(len(number_of), -1, dtype=np.int64)
        rows[numbers] = np.arange(len(numbers))
        known = bundle.query_rows
        queries = np.array([known.get(name, -1) for name in dataset.users["user_id"].to_list()], dtype=np.int64)
        stored = np.flatnonzero(queries >= 0)
        queries[stored[~bundle.has_vector(queries[stored])]] = -1
        return cls(bundle, index, numbers, rows, queries)

    def exact(self, k: int) -> Ranker:
        """Returns exact search over the stored vectors; its lists are no longer than the catalogue."""
        k = min(k, len(self.item_numbers))
        return lambda held: self._rank(held, k, lambda queries, masked: self._exact.search(queries, k, masked)[0])

    def best_scores(self, held: HeldOut, k: int) -> Floats:
        """Returns the k highest scores of exact search for each user with a stored vector, [S, k], best first."""
        queries, masked = self._searched(held, np.flatnonzero(self.query_rows[held.users] >= 0))
        return self._exact.search(queries, k, masked)[1]

    def through_index(self, k: int) -> Ranker:
        """Returns search through the bundle's own index, filtered as the service filters."""

        def search(queries: Floats, masked: list[Rows]) -> Rows:
            return search_filtered(self.index, self._exact, queries, k, masked)[0]

        return lambda held: self._rank(held, k, search)

    def tries_less(self, ks: Sequence[int], longest: int) -> list[int]:
        """Returns the lengths for which a search by the index looks at fewer candidates than that for the longest."""
        if not isinstance(self.index, ScannIndex):
            return []
        effort = self.index.effort
        return [k for k in ks if effort(k) != effort(longest)]

    @cached_property
    def unit_vectors(self) -> NDArray[np.float32]:
        """The item vectors scaled to length 1, by item number: [N, D], zeros for an item without a vector."""
        vectors = np.zeros((len(self.item_rows), self.bundle.manifest.dimension), np.float32)
        raw = np.asarray(self.bundle.item_vectors)
        vectors[self.item_numbers] = raw / np.maximum(np.linalg.norm(raw, axis=1, keepdims=True), 1e-12)
        return vectors

    @cached_property
    def _exact(self) -> ExactIndex:
        return self.index if isinstance(self.index, ExactIndex) else ExactIndex(self.bundle.recall_vectors)

    def _rank(self, held: HeldOut, k: int, search: Search) -> Lists:
        rows = self.query_rows[held.users]
        stored, others = np.flatnonzero(rows >= 0), np.flatnonzero(rows < 0)
        lists: Lists = np.full((len(rows), k), -1, np.int32)
        if len(others):  # without a stored vector they get popularity, as from the service
            order = self.item_numbers[self.bundle.popular_rows]
            lists[others] = Popular(order).lists(*select_lists(others, *held.masked), k)
        if len(stored):
            found = search(*self._searched(held, stored))
            lists[stored] = np.where(found >= 0, self.item_numbers[found], -1)
        return lists

    def _searched(self, held: HeldOut, places: NDArray[np.intp]) -> tuple[Floats, list[Rows]]:
        """The vectors of users with a stored one, by their places in `held`, and the item rows that are masked."""
        rows = self.query_rows[held.users[places]]
        vectors, lengths = self.bundle.query_vectors[rows], self.bundle.seen_counts(rows)
        return self.bundle.recall_queries(vectors, lengths), self._rows_of(*select_lists(places, *held.masked))

    def _rows_of(self, offsets: NDArray[np.int64], numbers: NDArray[np.int32]) -> list[Rows]:
        """The distinct item rows of each list of item numbers, ascending."""
        rows, query = self.item_rows[numbers], np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
        known, items = rows >= 0, len(self.item_numbers)
        # One sort for all queries is several times faster than one for each.
        pairs = np.sort(query[known] * items + rows[known])
        pairs = pairs[np.append(True, pairs[1:] != pairs[:-1])[: len(pairs)]]
        ends = np.searchsorted(pairs, np.arange(len(offsets)) * items).tolist()
        rows = pairs % max(items, 1)
        return [rows[start:end] for start, end in pairwise(ends)]


def rankers_of(served: Served, dataset: Dataset, baselines: Mapping[str, Ranker], k: int) -> dict[str, Ranker]:
    """Returns all rankers of a report by name.

    Args:
        served: the bundle.
        dataset: the data set it was trained on.
        baselines: the baselines by name.
        k: length of the lists.
    """
    best = _attainable(dataset, k)
    return {EXACT: served.exact(k), INDEX: served.through_index(k), **baselines} | (
        {} if best is None else {BEST: best}
    )


def _attainable(dataset: Dataset, k: int) -> Ranker | None:
    """Ranks by the true probabilities of a synthetic world, the best attainable ranking; None for other data."""
    truth = dataset.truth()
    if truth is None:
        return None
    queries, items = truth
    index = ExactIndex(items)

    def rank(held: HeldOut) -> Lists:
        offsets, items = held.masked
        masked = np.split(items, offsets[1:-1])
        return index.search(np.asarray(queries[held.users]), k, masked)[0]

    return rank


def open_inputs(bundles: Sequence[Path], data: Dataset) -> list[Bundle]:
    """Opens bundles, and reads every file of them and of their data set behind one bar.

    Raises:
        BundleError: a bundle is damaged or was trained on other data.
        DataError: a file of the data set has changed.
    """
    total = sum(map(megabytes, bundles)) + data.manifest.megabytes
    with progress(VERIFY, total=total, unit="MB") as advance:
        opened = [verified(bundle, advance) for bundle in bundles]
        for bundle in opened:
            refuse_other_data(bundle, data)
            _refuse_strangers(bundle, data)
        refuse_changes(data, advance)
    return opened


def refuse_other_data(bundle: Bundle, data: Dataset) -> None:
    """Refuses a bundle that was trained on another data set; warns of one that does not tell.

    Raises:
        BundleError: it was.
    """
    trained_on = bundle.manifest.lineage.get("dataset")
    if trained_on is None:
        say(f"warning: {bundle.path} does not name its data set; the test events may be among its training events")
    elif trained_on not in data.manifest.fingerprints:
        # Even with the same items, a test event here may have been a training event there.
        raise BundleError(
            f"{bundle.path}: was trained on the data set {str(trained_on)[:12]}, but {data.path} is "
            f"{data.manifest.fingerprint[:12]}; its test events may be that model's training events"
        )


def _refuse_strangers(bundle: Bundle, data: Dataset) -> None:
    """Refuses a bundle with items that are not in the data set."""
    ids = bundle.item_ids
    strange = ids.filter(~ids.is_in(data.items["item_id"].implode()))
    if len(strange):
        raise BundleError(
            f"{bundle.path}: {len(strange):,} of its {len(ids):,} items, {strange[0]!r} for one, are not in "
            f"{data.path}; a bundle is reported on the data set it was trained on"
        )
