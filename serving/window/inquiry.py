"""One query, asked and kept open for questions: its answer, and the exact order of all items for it.

The answer comes from `Recaller`, as that of `POST /recall` does; nothing asked here is counted in the metrics. Scores of
all N items are summed once, in float64, in blocks: N x D multiplications and 12 bytes an item.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from serving.recall.plan import Plan
from serving.recall.query import Recalled, RecallQuery
from serving.recall.recaller import Recaller
from serving.search.index import Floats, Rows


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


@dataclass(frozen=True)
class Inquiry:
    """A query with its answer.

    Attributes:
        recaller: what answered.
        plan: what the query was answered from, with the source of the answer.
        vector: [D + 2] with a prior, else [D]; what was searched with. Zeros if the source is "popular".
        answer: the answer, as `POST /recall` gives it.
    """

    recaller: Recaller
    plan: Plan
    vector: Floats
    answer: Recalled

    @cached_property
    def scores(self) -> Floats:
        """[total] exact scores of all rows, as `rescore` defines them; popular counts if the source is "popular"."""
        raise NotImplementedError

    @cached_property
    def order(self) -> Rows:
        """All rows that may be recalled at all, best first, ties by row: the list before anything is removed."""
        raise NotImplementedError

    def ranked(self, rows: Rows, first: int = 1) -> list[Ranked]:
        """The rows of a list, which begins at rank `first`, with ids and scores."""
        raise NotImplementedError


def ask(recaller: Recaller, query: RecallQuery) -> Inquiry:
    """Answers a query and keeps it for `explain`, `trace`, `place` and `differences`. Takes a thread: no event loop.

    Raises:
        RequestError: as `Recaller.recall`.
    """
    raise NotImplementedError


def answers(inquiry: Inquiry) -> Sequence[Ranked]:
    """The answer's items with their ranks in the answer."""
    raise NotImplementedError
