"""What each step of a recall removed, and how it moved the items at the top.

The steps, in the order in which they are counted (their order changes no answer): "allow", the filter, each condition of
an outer "and" as a step of its own, "exclude", "seen", "index", "diversity", "k". Only steps that the query asks for
are there; "index" only with an approximate index, and it removes no candidate but what it missed of the answer.
"""

from dataclasses import dataclass
from typing import Literal

from serving.window.inquiry import Inquiry, Ranked

MOST_SHOWN = 50  # items in a list of a trace
StepKind = Literal["allow", "filter", "exclude", "seen", "index", "diversity", "k"]


@dataclass(frozen=True)
class Moved:
    """An item with its ranks before and after a step."""

    item: Ranked
    before: int
    after: int


@dataclass(frozen=True)
class Step:
    """One step.

    Attributes:
        kind: which.
        field: the field of the request that asks for it, "filter.and.1" for one condition; "" for "index" and "seen"
            by default.
        before: how many candidates entered.
        after: how many were left.
        removed: of the `k` best that entered, those that the step removed, with their rank on entry; at most
            `MOST_SHOWN`. For "index" the items that it missed, with their rank among the candidates.
        moved: of the `k` best that were left, those whose rank changed, by rank after; at most `MOST_SHOWN`.
    """

    kind: StepKind
    field: str
    before: int
    after: int
    removed: list[Ranked]
    moved: list[Moved]


@dataclass(frozen=True)
class Trace:
    """The way from the catalogue to an answer.

    Attributes:
        items: how many items may be recalled at all: the bundle's and the live ones, without the deleted ones.
        deleted: how many of the bundle's items were deleted live.
        top: at most `MOST_SHOWN` of the items that would be the best without any step, in order.
        steps: what removed what.
        answered: how many items the answer has.
    """

    items: int
    deleted: int
    top: list[Ranked]
    steps: list[Step]
    answered: int


def trace(inquiry: Inquiry) -> Trace:
    """Traces a query through its steps."""
    raise NotImplementedError
