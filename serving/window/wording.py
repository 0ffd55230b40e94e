"""The words of the page: what answered, what each step did, what keeps an item out, a filter as it is read aloud."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace

from serving.catalogue.times import TimeColumn
from serving.recall.query import RecallQuery, Source
from serving.search.conditions import And, Comparison, Condition, Not, Or
from serving.window.place import KeptOut, Obstacle
from serving.window.trace import Step, StepKind

MOST_VALUES = 10  # of a condition
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
    "exclude": "the listed items are excluded",
    "seen": "seen items, and those of the history, are left out",
    "index": "missed by the index, beside exact search",
    "diversity": "items of one value beyond the limit",
}
OBSTACLES: dict[Obstacle, str] = {
    "unknown": "the catalogue has no such item",
    "deleted": "it was deleted since the bundle was made",
    "allow": "it is not among the items that may come back",
    "exclude": "the request excludes it",
    "seen": "the user has seen it, or it is in the history",
    "index": "exact search finds it, the index missed it",
}
COMPARED = {
    "eq": "=", "in": "is one of", "not_in": "is none of", "has": "has", "lt": "<", "lte": "≤", "gt": ">", "gte": "≥",
}  # fmt: skip


@dataclass(frozen=True)
class Wording:
    """What is said of one query.

    Attributes:
        query: the query.
        times: the item columns that hold times.
    """

    query: RecallQuery
    times: Mapping[str, TimeColumn]

    def step(self, step: Step) -> str:
        """A step of the trace."""
        if step.condition is not None:
            return f"filter: {self.condition(step.condition)}"
        if step.kind == "diversity" and self.query.diversity is not None:
            return f"at most {self.query.diversity.most} of one {self.query.diversity.column}"
        if step.kind == "seen" and self.query.similar_to is not None:
            return "the items asked about are left out"
        return f"the first {self.query.k} come back" if step.kind == "k" else STEPS[step.kind]

    def obstacle(self, kept: KeptOut) -> str:
        """What kept an item out."""
        if kept.condition is not None:
            return f"it fails the filter: {self.condition(kept.condition)}"
        if kept.by == "diversity" and self.query.diversity is not None:
            return f"better items used up its {self.query.diversity.column}"
        if kept.by == "seen" and self.query.similar_to is not None:
            return "the request asks for items like it"
        return f"{self.query.k} better items came" if kept.by == "k" else OBSTACLES[kept.by]

    def condition(self, condition: Condition) -> str:
        """A condition: signs for comparisons, brackets where one holds others."""
        if isinstance(condition, Comparison):
            values = condition.value if isinstance(condition.value, list) else [condition.value]
            texts = [self._value(condition.column, value) for value in values[:MOST_VALUES]]
            if len(values) > MOST_VALUES:
                texts.append(f"{len(values) - MOST_VALUES:,} more")
            return f"{condition.column} {COMPARED[condition.op]} {', '.join(texts)}"
        if isinstance(condition, Not):
            return f"not ({self.condition(condition.condition)})"
        between = " and " if isinstance(condition, And) else " or "
        return between.join(
            f"({self.condition(each)})" if isinstance(each, And | Or) else self.condition(each)
            for each in condition.conditions
        )

    def _value(self, column: str, value: str | float) -> str:
        if column in self.times and not isinstance(value, str):
            return replace(self.times[column], dates=True).text(value) or json.dumps(value)
        return json.dumps(value, ensure_ascii=False)
