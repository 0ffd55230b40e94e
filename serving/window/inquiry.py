"""One query, asked and kept open for questions: its answer, and the exact order of all items for it.

The answer comes from `Recaller`, as that of `POST /recall` does; nothing asked here is counted in the metrics. What is
not asked for is not computed. The exact order needs N x D multiplications in float64, in blocks, one sort, and about 30
bytes an item.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple

import numpy as np

from serving.catalogue.catalogue import Snapshot, Wanted
from serving.recall.query import EVERYTHING, NO_ROWS, Plan, Recalled, RecallQuery
from serving.recall.recaller import Recaller, diverse
from serving.search.conditions import And, Condition
from serving.search.index import RESCORED_NUMBERS, Floats, Mask, Rows, best_first, rescore
from serving.telemetry.metric_buffers import unmeasured

BarrierKind = Literal["allow", "filter", "exclude", "seen"]


@dataclass(frozen=True)
class Ranked:
    """An item in a list.

    Attributes:
        row: its row in `Inquiry.items`, for its columns; see `Snapshot.values`.
        id: the item id.
        rank: its place in the list that the field holding it names; 1 is the best.
        score: as in an answer.
    """

    row: int
    id: str
    rank: int
    score: float


class Barrier(NamedTuple):
    """One condition of a query that each item passes or fails, whatever the other items are.

    Attributes:
        kind: "seen" also stands for the given history and the items of the query itself.
        passing: [total] which rows pass.
        condition: of a "filter".
    """

    kind: BarrierKind
    passing: Mask
    condition: Condition | None = None


@dataclass(frozen=True)
class Inquiry:
    """A query with its answer.

    Attributes:
        recaller: what answered.
        plan: what the query was answered from, with the source of the answer.
        vector: [D + 2] with a prior, else [D]; what was searched with. Not used if the source is "popular".
        answer: the answer, as `POST /recall` gives it.
    """

    recaller: Recaller
    plan: Plan
    vector: Floats
    answer: Recalled

    @property
    def query(self) -> RecallQuery:
        """What was asked."""
        return self.plan.query

    @property
    def items(self) -> Snapshot:
        """The catalogue that answered."""
        return self.answer.items

    @cached_property
    def scores(self) -> Floats:
        """[total] exact scores of all rows, as `rescore` defines them; popular counts if the source is "popular"."""
        return self._popular[1] if self.plan.source == "popular" else self._exact_scores()

    @cached_property
    def order(self) -> Rows:
        """All rows that may be recalled at all, best first, ties by row: the list before anything is removed."""
        if self.plan.source == "popular":
            return self._popular[0]
        rows = np.flatnonzero(self.items.eligible(EVERYTHING))
        order: Rows = best_first(rows[np.newaxis], self.scores[rows][np.newaxis], len(rows))[0][0]
        return order

    @cached_property
    def ranks(self) -> Rows:
        """[total] the rank of each row in `order`, from 1; 0 for rows that may not be recalled at all."""
        ranks = np.zeros(self.items.total, np.int64)
        ranks[self.order] = np.arange(1, len(self.order) + 1)
        return ranks

    @cached_property
    def barriers(self) -> list[Barrier]:
        """What the query asks to leave out, apart from diversity, in the order of `serving.window.trace`."""
        query, items, found = self.query, self.items, list[Barrier]()
        if query.wanted.allow is not None:
            found.append(Barrier("allow", items.eligible(Wanted(allow=query.wanted.allow))))
        if (condition := query.wanted.filter) is not None:
            for each in condition.conditions if isinstance(condition, And) else [condition]:
                found.append(Barrier("filter", items.eligible(Wanted(filter=each)), each))
        if query.exclude:
            found.append(Barrier("exclude", self._without(items.rows_of(query.exclude))))
        if query.exclude_seen:
            seen = self.recaller.planner.plan(query._replace(exclude=()), items).excluded
            found.append(Barrier("seen", self._without(seen)))
        return found

    @property
    def deleted(self) -> int:
        """How many of the bundle's items were deleted live."""
        return sum(row < 0 for row in self.items.view.rows.values())

    @cached_property
    def left(self) -> Rows:
        """The rows of `order` that pass all barriers, best first."""
        passing = np.ones(self.items.total, np.bool_)
        for barrier in self.barriers:
            passing &= barrier.passing
        return self.order[passing[self.order]]

    @cached_property
    def best(self) -> Rows:
        """The rows [at most k] that exact search answers with, best first."""
        if self.query.diversity is None:
            return self.left[: self.query.k]

        def search(k: int, hidden: Mask | None) -> tuple[Rows, Floats]:
            rows = (self.left if hidden is None else self.left[~hidden[self.left]])[:k]
            return rows, self.scores[rows]

        return diverse(search, self.query, self.items)[0]

    def ranked(self, rows: Rows, ranks: Sequence[int] | Rows) -> list[Ranked]:
        """Rows with their ids, given ranks and exact scores."""
        ids, scores = self.items.names(rows), self.scores[rows].tolist()
        return [Ranked(*each) for each in zip(rows.tolist(), ids, map(int, ranks), scores, strict=True)]

    @cached_property
    def _popular(self) -> tuple[Rows, Floats]:
        """All rows that may be recalled, most popular first, and the popular counts [total]."""
        rows, counts = self.items.popular(self.items.total, NO_ROWS, EVERYTHING, self.query.segment)
        scores = np.zeros(self.items.total, np.float32)
        scores[rows] = counts
        return rows, scores

    def _exact_scores(self) -> Floats:
        query, parts = self.vector[np.newaxis], []
        step = max(1, RESCORED_NUMBERS // len(self.vector))  # what stays in a core's cache: several times as fast
        for vectors in (self.recaller.bundle.recall_vectors, self.items.view.recall_vectors):
            for start in range(0, len(vectors), step):
                rows = np.arange(start, min(start + step, len(vectors)))
                parts.append(rescore(vectors, query, rows[np.newaxis])[0])
        return np.concatenate(parts)

    def _without(self, rows: Rows | Sequence[int]) -> Mask:
        passing = np.ones(self.items.total, np.bool_)
        passing[np.asarray(rows, np.int64)] = False
        return passing


def ask(recaller: Recaller, query: RecallQuery) -> Inquiry:
    """Answers a query and keeps it for `explain`, `trace`, `place` and `differences`. Blocks: not for the event loop.

    Raises:
        RequestError: as `Recaller.recall`.
    """
    with unmeasured():
        work = recaller.encoded([query])
        plans, vectors = recaller.searches(work)
        return Inquiry(recaller, plans[0], vectors[0], recaller.answers(work)[0])


def answers(inquiry: Inquiry) -> list[Ranked]:
    """The answer's items with their ranks in the answer."""
    recalled = inquiry.answer
    pairs = zip(recalled.rows.tolist(), recalled.ids, recalled.scores.tolist(), strict=True)
    return [Ranked(row, item_id, rank, score) for rank, (row, item_id, score) in enumerate(pairs, 1)]
