"""One bundle's answer with all that the window tells about it: why each item, what each step removed, where one is."""

from collections.abc import Callable, Collection
from dataclasses import dataclass

from serving.errors import RequestError
from serving.recall.query import RecallQuery, Source
from serving.recall.recaller import Recaller
from serving.search.conditions import And, Condition, Not, Or
from serving.search.filter_masks import canonical
from serving.window.explain import Explanation, Reason, explain
from serving.window.inquiry import Inquiry, Ranked, answers, ask
from serving.window.place import KeptOut, Place, missed, place
from serving.window.trace import Step, StepKind, Trace, trace

SOURCES: dict[Source, str] = {
    "user": "the stored vector of this user",
    "features": "the query tower, with the features",
    "history": "the query tower, with the history",
    "similar": "the mean of the items' vectors",
    "vector": "the vector of the request",
    "popular": "the most popular items, because nothing is known about this query; scores are their counts",
}
STEPS: dict[StepKind, str] = {
    "allow": "only the listed items",
    "filter": "filter",
    "exclude": "the listed items are excluded",
    "seen": "seen items, and those of the history, are left out",
    "index": "missed by the index, beside exact search",
    "diversity": "items of one value beyond the limit",
    "k": "beyond the length of the list",
}


@dataclass(frozen=True)
class Answer:
    """The answer of one bundle.

    Attributes:
        role: what the bundle is here.
        inquiry: the query and its answer; None if the bundle cannot answer it.
        explanation: why each item; None without an answer.
        refused: why there is none, or "".
        held_out: ids of the items that the user took in the test; empty if that is not known.
    """

    role: str
    inquiry: Inquiry | None = None
    explanation: Explanation | None = None
    refused: str = ""
    held_out: frozenset[str] = frozenset()

    @property
    def items(self) -> list[Ranked]:
        """The items, best first."""
        return [] if self.inquiry is None else [*answers(self.inquiry)]

    @property
    def source(self) -> str:
        """What answered, in words."""
        return "" if self.inquiry is None else SOURCES[self.inquiry.answer.source]

    @property
    def hits(self) -> int:
        """Number of items of the answer that the user took in the test."""
        return sum(item.id in self.held_out for item in self.items)

    @property
    def reasons(self) -> dict[str, Reason]:
        """The reasons by item id."""
        return {} if self.explanation is None else {reason.item.id: reason for reason in self.explanation.items}

    @property
    def ids(self) -> set[str]:
        """The ids of all items that it names."""
        reasons = self.reasons.values()
        behind = {each.id for reason in reasons for each in (*reason.nearest, *reason.helped, *reason.hurt)}
        return behind | {item.id for item in self.items}


@dataclass(frozen=True)
class Details:
    """What is told about the answer of the chosen bundle alone.

    Attributes:
        trace: what each step removed.
        missed: what exact search finds and the answer lacks.
        place: where the item is that was asked for, or None.
    """

    trace: Trace
    missed: list[Ranked]
    place: Place | None

    @property
    def ids(self) -> set[str]:
        """The ids of all items that it names."""
        steps = [each for step in self.trace.steps for each in (*step.removed, *(moved.item for moved in step.moved))]
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
    return Answer(role, inquiry, explain(inquiry), held_out=frozenset(held_out))


def answered_or_refused(recaller: Recaller, query: RecallQuery, role: str, held_out: Collection[str]) -> Answer:
    """Like `answered`, but a query that does not fit the bundle gives an answer that says so."""
    try:
        return answered(recaller, query, role, held_out)
    except RequestError as error:
        return Answer(role, refused=error.message)


def details(inquiry: Inquiry, item_id: str) -> Details:
    """What each step removed, what the index missed, and where one item is if an id is given."""
    return Details(trace(inquiry), missed(inquiry), place(inquiry, item_id) if item_id else None)


def in_words(query: RecallQuery, step: Step) -> str:
    """A step of the trace."""
    if step.kind == "filter":
        return f"filter: {_condition(query.wanted.filter, step.field)}"
    if step.kind == "diversity" and query.diversity is not None:
        return f"at most {query.diversity.most} of one {query.diversity.column}"
    return f"the first {query.k} come back" if step.kind == "k" else STEPS[step.kind]


def obstacle(query: RecallQuery, kept: KeptOut) -> str:
    """What kept an item out."""
    told: dict[str, Callable[[], str]] = {
        "unknown": lambda: "the catalogue has no such item",
        "deleted": lambda: "it was deleted since the bundle was made",
        "allow": lambda: "it is not among the items that may come back",
        "filter": lambda: f"it fails the filter {_condition(query.wanted.filter, kept.detail)}",
        "exclude": lambda: "the request excludes it",
        "seen": lambda: "the user has seen it, or it is in the history",
        "diversity": lambda: f"better items used up its {kept.detail}",
        "k": lambda: f"{query.k} better items came",
        "index": lambda: "exact search finds it, the index missed it",
    }
    return told[kept.by]()


def _condition(condition: Condition | None, field: str) -> str:
    """The text of the condition at a place such as "filter.and.1"."""
    at = condition
    for part in field.split(".")[1:]:
        if isinstance(at, And | Or) and part.isdecimal():
            at = at.conditions[int(part)]
        elif isinstance(at, Not) and part == "not":
            at = at.condition
    return "" if at is None else canonical(at)
