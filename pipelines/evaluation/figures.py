"""Computes a report's figures from an evaluation: means with intervals, paired differences, slices, new items, lists.

Returns plain dictionaries for `report.json`; an estimate is ``{"value", "low", "high"}``. Of what is recommended,
novelty, popularity and similarity are means, with the interval of every other mean. Coverage and Gini are of all lists
together: a resample holds some users twice and others not at all, so it covers less, and is less even, than as many
different users, and the percentiles of resamples leave out the figure itself. Its interval is therefore the normal one
around the figure, with the bootstrap's standard error.
Source: Efron & Tibshirani, An Introduction to the Bootstrap, 1993, chapters 6 (so few resamples do) and 13.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, pairwise, product
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray
from scipy.sparse import csr_array

from pipelines.console import Advance, progress
from pipelines.evaluation.slices import Slice
from pipelines.rankers.bootstrap import LEVEL, RESAMPLES, Bootstrap, Estimate, resampled
from pipelines.rankers.evaluate import ALIKE, PLACES, SIMILARITY, Evaluation, column, counts_by_user
from pipelines.rankers.ranker import BEST, EXACT, INDEX
from pipelines.rankers.service import SERVICE
from towers.data.events import Int32s, Int64s
from towers.evaluation import metrics

Figures = dict[str, Any]
PHASE = "intervals"
EVERY = {name: name for name in metrics.METRICS}
SMALL = 100  # users: below it a slice's interval is wide, and the report says so
MOST_K = 10**12  # length of lists: beyond any catalogue, and far below what an int64 holds
LIST_RESAMPLES = 100
INTERVAL = f"{LEVEL:.0%} normal, by the standard error of {LIST_RESAMPLES} of these resamples"
NOVELTY, POPULARITY = "novelty", "popularity"
# Key in `report.json` -> name of the figure.
OF_LISTS = {
    "coverage": "coverage",
    "gini": "gini",
    "novelty": NOVELTY,
    "mean_popularity": POPULARITY,
    "similarity": SIMILARITY,
}
# Name of a figure that is a mean -> the column that counts what it is a mean of.
COUNTS = {NOVELTY: PLACES, POPULARITY: PLACES, SIMILARITY: ALIKE}


def is_length(text: str) -> bool:
    """Whether a text is a length of lists, the K of METRIC@K: a whole number from 1 to `MOST_K`."""
    # By its digits first: `int` refuses thousands of them.
    return text.isascii() and text.isdecimal() and len(text) <= len(str(MOST_K)) and 1 <= int(text) <= MOST_K


def figures(
    evaluation: Evaluation, target_offsets: NDArray[np.int64], parts: Sequence[Slice]
) -> tuple[Figures, dict[str, Figures]]:
    """Returns figures of all users, and of each slice by name, under a bar that counts the resamples.

    Those of all users: ``metrics`` of each ranker, exact search's ``differences`` to the others, ``recall_lost`` at
    each step from the vectors to the caller, ``share_of_attainable``, and those of `list_figures`.

    Args:
        evaluation: of all users, with a group of the slice's name for each slice of targets.
        target_offsets: [Q + 1] the users' targets.
        parts: the slices.
    """
    sliced = {part.name: _Sliced.of(part, target_offsets) for part in parts}
    total = RESAMPLES * (1 + sum(each.resampled for each in sliced.values()))
    total += LIST_RESAMPLES * len(evaluation.rankers)
    with progress(PHASE, total=total, unit="resamples") as advance:
        drawn = evaluation.of_all(advance)
        of_lists = list_figures(evaluation, drawn, advance)
        by_slice = {name: _slice_figures(evaluation, drawn, each, advance) for name, each in sliced.items()}
    return _figures_of_all(evaluation, drawn, of_lists), by_slice


def _figures_of_all(evaluation: Evaluation, drawn: Bootstrap, of_lists: Figures) -> Figures:
    content: Figures = {
        "metrics": estimates(drawn, evaluation.rankers, EVERY, evaluation.ks),
        "differences": differences(drawn, evaluation.rankers, metrics.METRICS, evaluation.ks),
        **of_lists,
    }
    steps = [step for step in (EXACT, INDEX, SERVICE) if step in evaluation.rankers]
    content["recall_lost"] = {
        f"{before}_to_{after}": _difference(drawn, before, after, ("recall",), evaluation.ks)
        for before, after in pairwise(steps)
    }
    if BEST in evaluation.rankers:
        content["share_of_attainable"] = {
            f"recall@{k}": drawn.ratio(column(EXACT, "recall", k), column(BEST, "recall", k)) for k in evaluation.ks
        }
    return content


class _Sliced(NamedTuple):
    """A slice, the users who are in it or have a target in it, and each user's number of such targets, [Q]."""

    part: Slice
    users: NDArray[np.intp]
    targets: NDArray[np.int64]

    @classmethod
    def of(cls, part: Slice, offsets: NDArray[np.int64]) -> "_Sliced":
        targets = np.diff(offsets) if part.targets is None else counts_by_user(part.targets, offsets)
        return cls(part, np.flatnonzero(targets if part.users is None else part.users), targets)

    @property
    def resampled(self) -> bool:
        """Whether it needs resamples of its own: not one of nobody, nor one of all targets of all users."""
        return len(self.users) > 0 and (self.part.targets is not None or len(self.users) < len(self.targets))


def _slice_figures(evaluation: Evaluation, of_all: Bootstrap, sliced: _Sliced, advance: Advance) -> Figures:
    """Computes the figures of one slice: all metrics for some users, recall for some targets of those who have any."""
    part, users, targets = sliced
    content: Figures = {
        "group": part.group,
        "definition": part.definition,
        "users": len(users),
        "targets": int(targets[users].sum()),
        "small": len(users) < SMALL,
        "metrics": {},
    }
    if len(users):
        named = EVERY if part.targets is None else {"recall": part.name}
        drawn = evaluation.resampled(named.values(), users, advance) if sliced.resampled else of_all
        content["metrics"] = estimates(drawn, evaluation.rankers, named, evaluation.ks)
    return content


def user_table(about: Mapping[str, Any], evaluation: Evaluation, parts: Sequence[Slice]) -> pl.DataFrame:
    """Builds `per_user.parquet`: a row for each test user, with all that pairs the slices of two reports.

    Args:
        about: columns [Q] that tell of the users.
        evaluation: of all users, with a group for each slice of targets.
        parts: a slice of users gives a column of its name: who is in it. One of targets gives the recall on them, for
            the bundle's own rankers; NaN for a user without one.
    """
    members = {part.name: part.users for part in parts if part.users is not None}
    of_targets = [part.name for part in parts if part.targets is not None]
    names = chain(
        product(evaluation.rankers, metrics.METRICS, evaluation.ks),
        product((EXACT, INDEX), of_targets, evaluation.ks),
    )
    figures = {column(*each): evaluation.of(column(*each)) for each in names}
    return pl.DataFrame({**about, **members, **figures})


def estimates(drawn: Bootstrap, rankers: Sequence[str], named: Mapping[str, str], ks: Sequence[int]) -> Figures:
    """Returns each ranker's estimates; `named` gives the metric of a column for each of the report."""
    return {
        ranker: {f"{name}@{k}": drawn.estimate(column(ranker, metric, k)) for name, metric in named.items() for k in ks}
        for ranker in rankers
    }


def differences(drawn: Bootstrap, rankers: Sequence[str], names: Iterable[str], ks: Sequence[int]) -> Figures:
    """Returns the differences of exact search to the other rankers."""
    others = [each for each in rankers if each not in (EXACT, BEST)]
    return {f"{EXACT}_minus_{other}": _difference(drawn, EXACT, other, names, ks) for other in others}


def _difference(drawn: Bootstrap, one: str, other: str, names: Iterable[str], ks: Sequence[int]) -> Figures:
    return {f"{name}@{k}": drawn.difference(column(one, name, k), column(other, name, k)) for name in names for k in ks}


def numbers(offsets: Int64s, taken: Int32s, items: int) -> dict[str, NDArray[np.float64]]:
    """Returns the numbers of each item, [N], whose means over recommended items are figures: for `evaluate`.

    Args:
        offsets: [U + 1] of every user's events before the test; users without one do not count.
        taken: their items; a user may have taken one again.
        items: size of the catalogue.
    """
    events = np.diff(offsets)
    pairs = np.unique(np.repeat(np.arange(len(events)), events) * items + taken)
    takers, users = np.bincount(pairs % items, minlength=items), int(np.count_nonzero(events))
    popularity = np.bincount(taken, minlength=items).astype(np.float64)
    return {NOVELTY: metrics.self_information(takers, users), POPULARITY: popularity}


def list_figures(evaluation: Evaluation, drawn: Bootstrap, advance: Advance) -> dict[str, Any]:
    """Returns ``coverage``, ``gini``, ``novelty``, ``mean_popularity``, ``similarity``: estimates of each ranker and k.

    Args:
        evaluation: of all users, with `numbers`; a mean of nothing is None.
        drawn: its `of_all`.
        advance: of `pipelines.console.progress`, in resamples: `LIST_RESAMPLES` for each ranker.
    """
    content: dict[str, Any] = {key: {ranker: {} for ranker in evaluation.rankers} for key in OF_LISTS}
    for ranker in evaluation.rankers:
        for k, estimates in zip(evaluation.ks, _of_catalogue(evaluation, ranker, advance), strict=True):
            estimates |= {
                name: drawn.mean(column(ranker, name, k), column(ranker, count, k)) for name, count in COUNTS.items()
            }
            for key, name in OF_LISTS.items():
                content[key][ranker][f"{name}@{k}"] = estimates[name]
    return content


def _of_catalogue(evaluation: Evaluation, ranker: str, advance: Advance) -> list[dict[str, Estimate | None]]:
    """Coverage and Gini at each k."""
    lists, items, ks = evaluation.lists[ranker], evaluation.items, evaluation.ks
    replicates = np.empty((LIST_RESAMPLES, len(ks), 2))
    # No item has more places than there are users; short numbers make the product several times as fast.
    kind = np.min_scalar_type(len(lists))
    # Each part holds the places between one k and the next: counts at a k are those before, and the part's own.
    parts = [_incidence(lists[:, low:high], items, kind) for low, high in pairwise([0, *ks])]
    for rows, drawn in resampled(len(lists), LIST_RESAMPLES, width=items):
        weights = np.ascontiguousarray(drawn.T, dtype=kind)
        counts = np.zeros((items, weights.shape[1]), kind)
        for place, part in enumerate(parts):
            counts += part.T @ weights
            by_resample = np.ascontiguousarray(counts.T)
            replicates[rows, place] = [(metrics.coverage(each), metrics.gini(each)) for each in by_resample]
        advance(len(drawn))
    spread = NormalDist().inv_cdf(0.5 + LEVEL / 2) * replicates.std(axis=0, ddof=1)
    shown = [evaluation.exposure(ranker, k) for k in ks]
    return [
        {"coverage": _around(metrics.coverage(each), half[0]), "gini": _around(metrics.gini(each), half[1])}
        for each, half in zip(shown, spread, strict=True)
    ]


def _incidence(lists: NDArray[np.int32], items: int, kind: np.dtype[Any]) -> csr_array:
    """1 for each item that a list holds, [Q, N]."""
    held = lists >= 0
    ends = np.concatenate([[0], np.cumsum(held.sum(axis=1))])
    return csr_array((np.ones(ends[-1], kind), lists[held], ends), shape=(len(lists), items))


def _around(value: float, half: float) -> Estimate:
    """The interval around a figure from 0 to 1."""
    return {"value": value, "low": max(value - float(half), 0.0), "high": min(value + float(half), 1.0)}
