"""What each step of a recall removed, and how it moved the items at the top.

The steps, in the order in which they are counted: "allow", the filter, each condition of an outer "and" as a step of
its own, "exclude", "seen", "diversity", "k", all by exact search, each only if the query asks for it, "k" always. With
an approximate index a last step, "index", leads from the answer of exact search to the answer given.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from serving.search.conditions import Condition
from serving.search.index import Rows
from serving.window.inquiry import Inquiry, Ranked

MOST_SHOWN = 50  # items in a list of a trace
StepKind = Literal["allow", "filter", "exclude", "seen", "diversity", "k", "index"]


class Moved(NamedTuple):
    """An item with its rank before a step; `item.rank` is the one after."""

    item: Ranked
    before: int


@dataclass(frozen=True)
class Step:
    """One step.

    Attributes:
        kind: which.
        before: how many candidates entered.
        after: how many were left. Diversity looks no further than the last of the k items that it keeps, and removes
            nothing behind it.
        removed: of the `k` best that entered, those that the step removed, with their rank on entry; at most
            `MOST_SHOWN`. For "index" the items that it missed, with their rank in the answer of exact search.
        moved: of the `k` best that were left, those whose rank changed, by rank after; at most `MOST_SHOWN`.
        condition: of a "filter".
    """

    kind: StepKind
    before: int
    after: int
    removed: list[Ranked]
    moved: list[Moved]
    condition: Condition | None = None


def trace(inquiry: Inquiry) -> list[Step]:
    """The steps from all items that may be recalled to the answer."""
    query, best, answer = inquiry.query, inquiry.best, inquiry.answer.rows
    steps, rows = [], inquiry.order
    for barrier in inquiry.barriers:
        passing = barrier.passing[rows]
        steps.append(_step(inquiry, barrier.kind, rows, np.flatnonzero(passing), condition=barrier.condition))
        rows = rows[passing]
    if query.diversity is not None:
        # Diversity has looked at these and no others.
        looked = len(rows) if len(best) < query.k else int(np.flatnonzero(rows == best[-1])[0]) + 1
        kept = np.concatenate([np.flatnonzero(np.isin(rows[:looked], best)), np.arange(looked, len(rows))])
        steps.append(_step(inquiry, "diversity", rows, kept))
        rows = rows[kept]
    steps.append(_step(inquiry, "k", rows, np.arange(min(query.k, len(rows)))))
    if inquiry.recaller.index is not inquiry.recaller.exact and inquiry.plan.source != "popular":
        found = np.isin(best, answer)
        after = {row: rank for rank, row in enumerate(answer.tolist(), 1)}
        ranks = [after[row] for row in best[found].tolist()]
        steps.append(_step(inquiry, "index", best, np.flatnonzero(found), ranks))
    return steps


def _step(
    inquiry: Inquiry,
    kind: StepKind,
    rows: Rows,
    kept: Rows,
    ranks: Sequence[int] | None = None,
    condition: Condition | None = None,
) -> Step:
    """The step that keeps the places `kept`, ascending, of `rows`; they get the given `ranks`, or 1, 2, ...."""
    top = kept[: inquiry.query.k]
    after = np.arange(1, len(top) + 1) if ranks is None else np.array(ranks, np.int64)
    gone = np.setdiff1d(np.arange(min(inquiry.query.k, len(rows))), top)[:MOST_SHOWN]
    changed = np.flatnonzero(top + 1 != after)[:MOST_SHOWN]
    items = inquiry.ranked(rows[top[changed]], after[changed])
    moved = [Moved(item, int(top[place]) + 1) for item, place in zip(items, changed.tolist(), strict=True)]
    return Step(kind, len(rows), len(kept), inquiry.ranked(rows[gone], gone + 1), moved, condition)
