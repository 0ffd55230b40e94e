"""Where an item is for a query, and what kept it out of the answer."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

from serving.search.conditions import Condition
from serving.search.diversity import values_of
from serving.window.inquiry import Inquiry, Ranked

MOST_SHOWN = 20  # items that used up a value
Obstacle = Literal["unknown", "deleted", "allow", "filter", "exclude", "seen", "diversity", "k", "index"]


@dataclass(frozen=True)
class KeptOut:
    """One thing that kept an item out; each of the first six would do so alone.

    Attributes:
        by: "unknown" (not in the catalogue), "deleted" (in the bundle, deleted live), "allow" (not in the list),
            "filter", "exclude", "seen", "diversity" (better items used up one of its values), "k" (k better items
            came), "index" (exact search returns it; the index missed it or, with diversity, one that it depends on).
        condition: for "filter" the one that it fails.
        items: for "diversity" the better items that used up its values, at most `MOST_SHOWN`, with their ranks in the
            answer of exact search; empty otherwise.
    """

    by: Obstacle
    condition: Condition | None = None
    items: tuple[Ranked, ...] = ()


@dataclass(frozen=True)
class Place:
    """Where an item is.

    Attributes:
        id: the item id asked for.
        kept_out: what kept it out; empty if and only if the answer holds it.
        live: whether it was added or changed since the bundle was made; None for an unknown or deleted item, like the
            next four.
        score: its exact score for the query, a popular count if the source is "popular".
        rank: its rank among all items that may be recalled at all, by exact search; 1 is the best, ties by row.
        rank_left: its rank among those that the list, the filter and the exclusions leave; None if one removes it, too.
        answer_rank: its rank in the answer; None if it is not there.
    """

    id: str
    kept_out: list[KeptOut]
    live: bool | None = None
    score: float | None = None
    rank: int | None = None
    rank_left: int | None = None
    answer_rank: int | None = None


def place(inquiry: Inquiry, item_id: str) -> Place:
    """Finds an item by exact search over the catalogue."""
    items = inquiry.items
    row = items.row_of(item_id)
    if row is None:
        return Place(item_id, [KeptOut("deleted" if item_id in items.view.rows else "unknown")])
    kept_out = [KeptOut(each.kind, each.condition) for each in inquiry.barriers if not each.passing[row]]
    in_answer = np.flatnonzero(inquiry.answer.rows == row)
    answer_rank = int(in_answer[0]) + 1 if len(in_answer) else None
    rank_left = None
    if not kept_out:
        rank_left = int(np.flatnonzero(inquiry.left == row)[0]) + 1
        if answer_rank is None:
            kept_out = list(_beaten(inquiry, row, rank_left)) or [KeptOut("index")]
    live, score, rank = row >= items.view.base, float(inquiry.scores[row]), int(inquiry.ranks[row])
    return Place(item_id, kept_out, live, score, rank, rank_left, answer_rank)


def missed(inquiry: Inquiry) -> list[Ranked]:
    """The items that exact search returns for the same query, and the answer lacks; ranks are those of exact search."""
    places = np.flatnonzero(~np.isin(inquiry.best, inquiry.answer.rows))
    return inquiry.ranked(inquiry.best[places], places + 1)


def _beaten(inquiry: Inquiry, row: int, rank_left: int) -> Iterator[KeptOut]:
    """Why exact search does not return an item that passes all barriers; nothing if it does."""
    best, query = inquiry.best, inquiry.query
    if row in best:
        return
    if query.diversity is not None:
        column, most = query.diversity.column, query.diversity.most
        better = best[np.isin(best, inquiry.left[: rank_left - 1])]
        values = [values_of(each) for each in inquiry.items.values(column, better)]
        used = Counter(value for each in values for value in each)
        own = values_of(inquiry.items.values(column, np.array([row]))[0])
        used_up = {value for value in own if used[value] >= most}
        if used_up:
            places = np.array([place for place, each in enumerate(values) if each & used_up][:MOST_SHOWN])
            yield KeptOut("diversity", items=tuple(inquiry.ranked(better[places], places + 1)))
        if len(better) < query.k:
            return
    yield KeptOut("k")
