"""Why an answer holds an item: the items of the history nearest to it, and its score without each of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from serving.bundle.request_features import history_of
from serving.recall.query import Plan
from serving.search.index import Floats, rescore
from serving.window.inquiry import Inquiry, Ranked, answers
from serving.window.items import known_history

MOST_HISTORY = 100  # items of the history, newest
NEAREST = 5


@dataclass(frozen=True)
class Neighbour:
    """An item of the history, seen from an item of the answer.

    Attributes:
        id: the item of the history.
        similarity: the dot product of the two item vectors, which is the cosine if the bundle's metric is that.
        without: the score of the answer's item if the history did not hold this one; None where it cannot be known:
            see `Explanation.without_reason`, or nothing known is left of the query.
        effect: what this item of the history adds to the score: `complete` of the answer's item minus `without`.
    """

    id: str
    similarity: float
    without: float | None
    effect: float | None


@dataclass(frozen=True)
class Reason:
    """Why one item is in the answer.

    Attributes:
        item: the item with its rank and score in the answer.
        prior: the part of its score that the prior adds; None where the prior has no weight: for a bundle without one,
            for similar items, for popular ones.
        complete: its score by the vector that the tower gives now for the complete history: that of the answer, unless
            the answer came from a stored vector that was made from more than the history; None where
            `Explanation.without_reason` is not.
        nearest: at most `NEAREST` items of the history, most similar first.
        helped: at most `NEAREST` items of the history with an effect above 0, greatest first.
        hurt: at most `NEAREST` items of the history with an effect below 0, least first.
    """

    item: Ranked
    prior: float | None
    complete: float | None
    nearest: list[Neighbour]
    helped: list[Neighbour]
    hurt: list[Neighbour]


@dataclass(frozen=True)
class Explanation:
    """Why an answer is as it is.

    Attributes:
        history: the item ids behind the answer, each once, newest first, at most `MOST_HISTORY` and at most what the
            query tower reads.
        history_length: items of the history, repeats and those left out of `history` included.
        without_reason: why there are no scores without an item; None if there are.
        items: one for each item of the answer.
    """

    history: list[str]
    history_length: int
    without_reason: str | None
    items: list[Reason]


def explain(inquiry: Inquiry) -> Explanation:
    """Explains an answer with at most one call of the tower, for as many queries as `history` has items, plus one."""
    bundle, items = inquiry.recaller.bundle, inquiry.items
    shown, plan, dimension = answers(inquiry), _tower_plan(inquiry), bundle.manifest.dimension
    vectors = items.vectors([item.row for item in shown], recalled=True)
    behind = _behind(inquiry, plan)
    newest_first = [item_id for each in behind.values() for item_id in reversed(each)]
    rows = {item_id: row for item_id in newest_first if (row := _row(inquiry, item_id)) is not None}
    history = list(rows)[:MOST_HISTORY]
    similarities = _products(vectors[:, :dimension], items.vectors([rows[item_id] for item_id in history]))
    reason = _why_not(inquiry, plan, history)
    # One line for each item shown: the score of the whole query, then those without each item of the history.
    scores: list[list[float | None]] = [[None] * (1 + len(history))] * len(shown)
    if reason is None:
        variants, known = _variants(inquiry, plan, behind, history)
        products = _products(vectors, variants).tolist()
        scores = [[score if knows else None for score, knows in zip(line, known, strict=True)] for line in products]
    priors: list[float | None] = [None] * len(shown)
    if inquiry.plan.source != "popular" and inquiry.vector[dimension:].any():
        priors = _products(vectors[:, dimension:], inquiry.vector[np.newaxis, dimension:])[:, 0].tolist()
    reasons = [
        _reason(item, prior, line, dict(zip(history, near, strict=True)))
        for item, prior, line, near in zip(shown, priors, scores, similarities.tolist(), strict=True)
    ]
    return Explanation(history, max(inquiry.plan.history, *map(len, behind.values())), reason, reasons)


def _reason(
    item: Ranked, prior: float | None, scores: Sequence[float | None], similarities: Mapping[str, float]
) -> Reason:
    complete, *without = scores
    neighbours = [
        Neighbour(item_id, similarity, score, None if score is None or complete is None else complete - score)
        for (item_id, similarity), score in zip(similarities.items(), without, strict=True)
    ]
    nearest = sorted(neighbours, key=lambda each: -each.similarity)
    # Python's sort is stable: the newest come first among equals.
    helped, hurt = (
        sorted((each for each in neighbours if sign * (each.effect or 0) > 0), key=lambda each: -abs(each.effect or 0))
        for sign in (1, -1)
    )
    return Reason(item, prior, complete, nearest[:NEAREST], helped[:NEAREST], hurt[:NEAREST])


def _tower_plan(inquiry: Inquiry) -> Plan | None:
    """The plan by which the tower reads the whole history; None if it does not."""
    recaller, plan = inquiry.recaller, inquiry.plan
    if recaller.encoder is None or not recaller.planner.histories.specs:
        return None
    if plan.source == "user":
        plan = recaller.planner.plan(inquiry.query._replace(features=None, history=None), inquiry.items, encoded=True)
    return plan if plan.source in ("features", "history") else None


def _behind(inquiry: Inquiry, plan: Plan | None) -> dict[str, list[str]]:
    """The item ids behind an answer, newest last, by history of the tower as many as it reads; else one list: ""."""
    source, query = inquiry.plan.source, inquiry.query
    if plan is not None:
        specs = inquiry.recaller.planner.histories.specs
        return {spec.name: list(plan.features.get(spec.name) or ())[-(spec.length or 0) :] for spec in specs}
    if source in ("vector", "popular"):
        return {"": []}
    if source == "similar":
        return {"": list(query.similar_to or query.history or _of_user(inquiry))}
    return {"": _of_user(inquiry)}


def _of_user(inquiry: Inquiry) -> list[str]:
    recaller, query = inquiry.recaller, inquiry.query
    return known_history(recaller, recaller.planner.user_id(query, query.features or {}))


def _row(inquiry: Inquiry, item_id: str) -> int | None:
    """The row of an item of a history; the tower also knows those deleted since."""
    row = inquiry.items.row_of(item_id)
    return inquiry.recaller.bundle.item_rows.get(item_id) if row is None else row


def _why_not(inquiry: Inquiry, plan: Plan | None, history: Sequence[str]) -> str | None:
    """Why there are no scores without an item of the history; None if there are."""
    source, recaller = inquiry.plan.source, inquiry.recaller
    if source == "popular":
        return "nothing is known about this query: the most popular items are the answer, whatever the history"
    if source == "vector":
        return "the answer comes from the request's own vector, not from a history"
    if source != "similar" and recaller.encoder is None:
        return "no query tower is loaded: the answer comes from a stored vector"
    if source != "similar" and not recaller.planner.histories.specs:
        return "the query tower of this model takes no history"
    return None if history and (plan or source == "similar") else "no item of a history is known"


def _variants(
    inquiry: Inquiry, plan: Plan | None, behind: Mapping[str, Sequence[str]], history: Sequence[str]
) -> tuple[Floats, list[bool]]:
    """The query, and the query without each of H items of its history.

    Returns:
        What recall would search with, [1 + H, D + 2] with a prior, else [1 + H, D]; and [1 + H] whether anything is
        known, for otherwise popular items would be the answer.
    """
    recaller, bundle = inquiry.recaller, inquiry.recaller.bundle
    rests = [
        {name: [place for place, item_id in enumerate(each) if item_id != left_out] for name, each in behind.items()}
        for left_out in history
    ]
    if plan is None:
        vectors = np.zeros((1 + len(history), bundle.manifest.dimension), np.float32)
        vectors[0] = inquiry.vector[: bundle.manifest.dimension]
        for number, rest in enumerate(rests, 1):
            if rest[""]:
                ids = [behind[""][place] for place in rest[""]]
                similar = inquiry.query.similar_to is not None
                query = inquiry.query._replace(similar_to=ids) if similar else inquiry.query._replace(history=ids)
                mean = recaller.planner.plan(query, inquiry.items).vector
                vectors[number] = 0 if mean is None else mean
        lengths = np.full(len(vectors), inquiry.plan.history)
    else:
        assert recaller.encoder is not None
        owner = {name: name for name in behind} | {name: history_of(name) for name in recaller.planner.histories.times}
        lists = {
            name: list(plan.features[name])[-len(behind[of]) :] for name, of in owner.items() if plan.features.get(name)
        }
        inputs = [
            {**plan.features} | {name: [values[place] for place in rest[owner[name]]] for name, values in lists.items()}
            for rest in rests
        ]
        vectors = recaller.encoder.encode([plan.features, *inputs])
        length = recaller.planner.histories.length
        gone = [length(behind, ()) - length(rest, ()) for rest in rests]
        lengths = np.array([plan.history, *(plan.history - each for each in gone)])
    return bundle.recall_queries(vectors, lengths), np.any(vectors != 0, axis=1).tolist()


def _products(vectors: Floats, queries: Floats) -> Floats:
    """The scores [K, B] of K vectors for B queries, as recall rounds them."""
    return rescore(vectors, queries, np.tile(np.arange(len(vectors)), (len(queries), 1))).T
