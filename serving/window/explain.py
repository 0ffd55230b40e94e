"""Why an answer holds an item: the items of the history nearest to it, and its score without each of them."""

from dataclasses import dataclass

from serving.window.inquiry import Inquiry, Ranked

MOST_ITEMS = 100  # of the answer
MOST_HISTORY = 100  # items of the history, newest
NEAREST = 5


@dataclass(frozen=True)
class Neighbour:
    """An item of the history, seen from an item of the answer.

    Attributes:
        id: the item of the history.
        similarity: the dot product of the two item vectors, which is the cosine if the bundle's metric is that.
        without: the score of the answer's item if the history did not hold this one; None where it cannot be known,
            see `Explanation.without_reason`.
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
        prior: the part of its score that comes from the prior; None for a bundle without a prior, and for popular items.
        complete: its score by the vector that the tower gives now for the complete history: that of the answer, unless
            the answer came from a stored vector that was made from more than the history; None where `without` is.
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
        metric: "dot" or "cosine": what `Neighbour.similarity` is.
        history: the item ids behind the answer, each once, newest first, at most `MOST_HISTORY` and at most what the
            query tower reads.
        history_length: items of the history, repeats and those left out of `history` included.
        without_reason: why there are no scores without an item; None if there are.
        items: one for each item of the answer, at most `MOST_ITEMS`.
    """

    metric: str
    history: list[str]
    history_length: int
    without_reason: str | None
    items: list[Reason]


def explain(inquiry: Inquiry) -> Explanation:
    """Explains an answer with one call of the tower, for as many queries as the history has items, plus one.

    Raises:
        RequestError: the query became invalid; the bundle itself never changes.
    """
    raise NotImplementedError
