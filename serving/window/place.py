"""Where an item is for a query, and what kept it out of the answer."""

from dataclasses import dataclass
from typing import Literal

from serving.window.inquiry import Inquiry, Ranked

Obstacle = Literal["unknown", "deleted", "allow", "filter", "exclude", "seen", "diversity", "k", "index"]


@dataclass(frozen=True)
class KeptOut:
    """One thing that kept an item out; each of the first six would do so alone.

    Attributes:
        by: "unknown" (not in the catalogue), "deleted" (in the bundle, deleted live), "allow" (not in the list),
            "filter", "exclude", "seen", "diversity" (better items used up one of its values), "k" (the k better items
            came), "index" (exact search returns it, the index missed it or, with diversity, an item that it depends on).
        detail: for "filter" the place of the condition that it fails, such as "filter.and.1"; for "diversity" the
            column; otherwise "".
        items: for "diversity" the better items that used up its values; empty otherwise.
    """

    by: Obstacle
    detail: str = ""
    items: tuple[Ranked, ...] = ()


@dataclass(frozen=True)
class Place:
    """Where an item is.

    Attributes:
        id: the item id asked for.
        row: its row; None for an unknown or deleted item, like the next four.
        live: whether it was added or changed since the bundle was made.
        score: its exact score for the query, a popular count if the source is "popular".
        rank: its rank among all items that may be recalled at all, by exact search; 1 is the best, ties by row.
        rank_left: its rank among those that the list, the filter and the exclusions leave; None if one removes it, too.
        answer_rank: its rank in the answer; None if it is not there.
        kept_out: what kept it out; empty if and only if the answer holds it.
    """

    id: str
    row: int | None
    live: bool | None
    score: float | None
    rank: int | None
    rank_left: int | None
    answer_rank: int | None
    kept_out: list[KeptOut]


def place(inquiry: Inquiry, item_id: str) -> Place:
    """Finds an item by exact search over the catalogue."""
    raise NotImplementedError


def missed(inquiry: Inquiry) -> list[Ranked]:
    """The items that exact search returns for the same query, and the answer lacks; ranks are those of exact search."""
    raise NotImplementedError
