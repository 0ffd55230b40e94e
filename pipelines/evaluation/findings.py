"""Looks for what is wrong with a model or its vectors: collapse, hubs, duplicates, items that nobody is shown, ties.

A finding is a sentence with its figures. docs/evaluation/report.md names the limits.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from pipelines.console import amount, progress
from pipelines.dataset.heldout import HeldOut
from pipelines.evaluation.examples import names
from pipelines.rankers.bootstrap import FEWEST
from pipelines.rankers.ranker import Served
from towers.evaluation import metrics

PHASE = "findings"
SAMPLE = 20_000  # vectors of which the rank is computed
LEAST_RANK = 0.1  # effective rank, as a share of the dimension
LEAST_COVERAGE = 0.05  # items in the lists of all users, as a share of what these lists could hold
MOST_ALIKE = 0.5  # of all places, filled with the k items that are shown most
MOST_SHOWN = 0.5  # share of the users who are shown one item
# Of fewer lists, places and shares say little, too: one list is always the same k items.
FEWEST_LISTS = FEWEST
MOST_DUPLICATES = 0.01
MOST_NORM = 10.0  # times the median
NAMES_TARGET = "names the target"  # of a column; the finding's name begins with the column's
LATER_PRIOR = "prior of the test's time"
NAMES = (
    "few to judge by",
    "one list for all",
    "hub",
    "items never recommended",
    "item vectors collapsed",
    "query vectors collapsed",
    "item norms",
    "query norms",
    "item duplicates",
    "constant scores",
    "ties at the last place",
    "test events in training",
    LATER_PRIOR,
    "users under two ids",
    "items under two ids",
    NAMES_TARGET,
)
TIED_USERS, SEED = 1_000, 0  # the sample of test users whose scores are compared
MOST_TIED = 0.01  # share of them


@dataclass(frozen=True)
class Finding:
    """Something that is wrong, or may be.

    Attributes:
        name: a word for it.
        text: a sentence with its figures.
        value: the figure that is beyond its limit.
        limit: the limit.
        item: the id of the item that it is about, if it is about one.
    """

    name: str
    text: str
    value: float
    limit: float
    item: str | None = None

    def content(self) -> dict[str, Any]:
        """The entry in `report.json`."""
        return {key: value for key, value in asdict(self).items() if value is not None}


Check = Callable[[], Iterable[Finding]]


def look(checks: Sequence[Check]) -> list[Finding]:
    """Makes each check, under a bar that counts them, and returns what they find."""
    found: list[Finding] = []
    with progress(PHASE, total=len(checks), unit="checks") as advance:
        for check in checks:
            found += check()
            advance(1)
    return found


def checks(
    exposure: NDArray[np.int64],
    asked: int,
    k: int,
    vectors: Mapping[str, NDArray[np.float32]],
    items: pl.DataFrame,
    *,
    side: str = "users",
    dimensions: int | None = None,
) -> list[Check]:
    """Returns the checks of a model that recalls items for users, or neighbours of items.

    Args:
        exposure: [N] how often each item is among the first k of a list.
        asked: number of lists.
        k: length of the lists.
        vectors: "item" -> [M, D] as they are stored, without the items that have none; "query" likewise, if stored.
        items: [N] rows of the data set's items, with `item_id`.
        side: who asks, "users" or "items".
        dimensions: that the vectors need, if fewer than D: those of two classes tell all apart along one line.
    """
    of_vectors = [partial(_of_vectors, name, each, dimensions) for name, each in vectors.items()]
    return [partial(_of_lists, exposure, asked, k, items, side), *of_vectors]


def _of_lists(exposure: NDArray[np.int64], asked: int, k: int, items: pl.DataFrame, side: str) -> Iterator[Finding]:
    if asked < FEWEST_LISTS:
        text = f"only {amount(asked, side)} to judge by: intervals of so few can be too narrow, and prove no difference"
        yield Finding("few to judge by", text, float(asked), float(FEWEST_LISTS))
    many = asked >= FEWEST_LISTS and len(exposure) > 2 * k
    most = float(exposure.max() / max(asked, 1))
    alike = float(np.sort(exposure)[-k:].sum() / max(int(exposure.sum()), 1))
    if many and alike > MOST_ALIKE:
        text = f"{alike:.0%} of all places are filled with the same {k} items: the model hardly tells {side} apart"
        yield Finding("one list for all", text, alike, MOST_ALIKE)
    elif many and most > MOST_SHOWN:
        item = int(exposure.argmax())
        # As a literal: a title may hold anything, and a terminal shows this.
        text = f"one item is in the first {k} of {most:.0%} of the {side}: {names(items)[item]!r}"
        yield Finding("hub", text, most, MOST_SHOWN, str(items["item_id"][item]))
    coverage = metrics.coverage(exposure)
    least = LEAST_COVERAGE * min(asked * k / len(exposure), 1.0)
    if coverage < least:
        whose = "nobody's" if side == "users" else "no item's"
        text = f"{1 - coverage:.1%} of the items are in {whose} first {k}"
        yield Finding("items never recommended", text, coverage, least)


def _of_vectors(side: str, vectors: NDArray[np.float32], dimensions: int | None) -> Iterator[Finding]:
    if len(vectors) < 2:
        return
    dimension = vectors.shape[1]
    rank = effective_rank(vectors)
    least = LEAST_RANK * min(dimension, len(vectors), dimensions or dimension)
    if rank < least:
        text = f"the {side} vectors fill {rank:.1f} of {dimension} dimensions: they have collapsed"
        yield Finding(f"{side} vectors collapsed", text, rank, least)
    norms = np.linalg.norm(vectors, axis=1)
    longest = float(norms.max() / max(float(np.median(norms)), 1e-12))
    if longest > MOST_NORM:
        text = f"the longest {side} vector is {longest:.0f} times as long as the median"
        yield Finding(f"{side} norms", text, longest, MOST_NORM)
    counts = np.unique(vectors, axis=0, return_counts=True)[1] if side == "item" else np.ones(1)
    duplicates = float(counts[counts > 1].sum() / len(vectors))
    if duplicates > MOST_DUPLICATES:
        text = f"{duplicates:.0%} of the {side} vectors equal another one: such items cannot be told apart"
        yield Finding(f"{side} duplicates", text, duplicates, MOST_DUPLICATES)


def effective_rank(vectors: NDArray[np.float32]) -> float:
    """The exponential of the entropy of the normalised singular values of the centred vectors: 1 to D.

    Args:
        vectors: [M, D]; of more than `SAMPLE` an even sample is taken.

    Source: Roy & Vetterli, EUSIPCO 2007.
    """
    step = -(-len(vectors) // SAMPLE)
    part = np.asarray(vectors[::step], np.float64)
    values = np.linalg.svd(part - part.mean(axis=0), compute_uv=False)
    if not values.sum() > 0:
        return 1.0
    share = values / values.sum()
    return float(np.exp(-(share[share > 0] * np.log(share[share > 0])).sum()))


def score_findings(served: Served, held: HeldOut, k: int) -> Iterator[Finding]:
    """Yields what is wrong with the scores of exact search.

    Args:
        served: the bundle.
        held: the test users, of whom a sample with a fixed seed is asked.
        k: length of the lists.
    """
    stored = np.flatnonzero(served.query_rows[held.users] >= 0)
    if len(stored) > TIED_USERS:
        stored = np.sort(np.random.default_rng(SEED).choice(stored, TIED_USERS, replace=False))
    if not len(stored) or k >= len(served.item_numbers):
        return
    scores = served.best_scores(held.of_queries(stored), k + 1)
    longer = np.isfinite(scores[:, k])  # more than k items are left: the last place is a choice
    constant = longer & (scores[:, 0] == scores[:, k])
    tied = longer & ~constant & (scores[:, k - 1] == scores[:, k])
    for name, those, text in (
        ("constant scores", constant, f"the first {k + 1} items have one score: their order means nothing"),
        ("ties at the last place", tied, f"places {k} and {k + 1} have one score: which of them is in is arbitrary"),
    ):
        share = float(those.mean())
        if share > MOST_TIED:
            yield Finding(name, f"for {share:.1%} of the users {text}", share, MOST_TIED)
