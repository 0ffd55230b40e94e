"""One bundle's answer with all that the window tells about it: why each item, what each step removed, where one is."""

from collections.abc import Collection
from dataclasses import dataclass

from serving.recall.query import RecallQuery
from serving.recall.recaller import Recaller
from serving.window.explain import Explanation, Reason, explain
from serving.window.inquiry import Inquiry, Ranked, answers, ask
from serving.window.place import Place, missed, place
from serving.window.trace import Step, trace
from serving.window.wording import SOURCES


@dataclass(frozen=True)
class Answer:
    """The answer of one bundle.

    Attributes:
        role: what the bundle is here.
        inquiry: the query and its answer.
        explanation: why each item.
        held_out: ids of the items that the user took in the test; empty if that is not known.
    """

    role: str
    inquiry: Inquiry
    explanation: Explanation
    held_out: frozenset[str]

    @property
    def items(self) -> list[Ranked]:
        """The items, best first."""
        return answers(self.inquiry)

    @property
    def source(self) -> str:
        """What answered, in words."""
        return SOURCES[self.inquiry.answer.source]

    @property
    def hits(self) -> int:
        """Number of items of the answer that the user took in the test."""
        return sum(item.id in self.held_out for item in self.items)

    @property
    def reasons(self) -> dict[str, Reason]:
        """The reasons by item id."""
        return {reason.item.id: reason for reason in self.explanation.items}

    @property
    def ids(self) -> set[str]:
        """The ids of all items that it names."""
        reasons = self.reasons.values()
        behind = {each.id for reason in reasons for each in (*reason.nearest, *reason.helped, *reason.hurt)}
        return behind | {item.id for item in self.items}


@dataclass(frozen=True)
class Details:
    """What the page shows only of the chosen bundle's answer.

    Attributes:
        steps: what each removed.
        missed: what exact search finds and the answer lacks.
        place: where the item is that was asked for, or None.
    """

    steps: list[Step]
    missed: list[Ranked]
    place: Place | None

    @property
    def ids(self) -> set[str]:
        """The ids of all items that it names."""
        steps = [each for step in self.steps for each in (*step.removed, *(moved.item for moved in step.moved))]
        found = {each.id for each in (*steps, *self.missed)}
        if self.place is not None:
            found |= {self.place.id, *(each.id for kept in self.place.kept_out for each in kept.items)}
        return found


def answered(recaller: Recaller, query: RecallQuery, role: str, held_out: Collection[str]) -> Answer:
    """Asks a bundle, and why it answers so.

    Raises:
        RequestError: it cannot answer the query.
    """
    inquiry = ask(recaller, query)
    return Answer(role, inquiry, explain(inquiry), frozenset(held_out))


def details(inquiry: Inquiry, item_id: str) -> Details:
    """What each step removed, what the index missed, and where one item is if an id is given."""
    return Details(trace(inquiry), missed(inquiry), place(inquiry, item_id) if item_id else None)
