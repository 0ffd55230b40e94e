"""Computes the figures of item neighbours: means with intervals, paired differences, the verdict, slices of items.

Returns plain dictionaries for `report.json`; an estimate is ``{"value", "low", "high"}``.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from pipelines.console import Advance, no_bar
from pipelines.dataset.dataset import Dataset
from pipelines.evaluation.figures import SMALL, differences, estimates
from pipelines.evaluation.similarity.neighbours import CHANCE, Neighbours
from pipelines.evaluation.slices import Slice, find_column, slices_of_values
from pipelines.rankers.baselines import STRONGEST, report_verdict
from pipelines.rankers.bootstrap import RESAMPLES, bootstrap
from pipelines.rankers.ranker import BEST, EXACT, KNN, POPULARITY
from pipelines.training.similarity.labels import Labels
from towers.data.item_relations import ByClass

TITLES = {EXACT: "model", KNN: "item-kNN", POPULARITY: "popularity", CHANCE: "chance", BEST: "best attainable"}
NEARER = "within_below_between"
TRAINED, HELD = "training", "held_out"  # groups of items; the verdict is about the last that is there
ACTIVITY = "events before the test"

Figures = dict[str, Any]


def resamples(measured: Mapping[str, Neighbours]) -> int:
    """How many resamples `figures` counts."""
    return sum(RESAMPLES * (1 + bool((~np.isnan(group.nearer)).any())) for group in measured.values())


def figures(measured: Mapping[str, Neighbours], metric: str, ks: Sequence[int], advance: Advance = no_bar) -> Figures:
    """Returns ``metrics``, exact search's ``differences`` to the other rankers, and ``within_below_between``.

    Args:
        measured: group -> its neighbours.
        metric: "precision" or "recall".
        ks: list lengths.
        advance: of `pipelines.console.progress`, in resamples.
    """
    content: Figures = {"metrics": {}, "differences": {}, NEARER: {}}
    for name, group in measured.items():
        drawn = bootstrap(np.stack(list(group.columns.values()), axis=1), list(group.columns), advance=advance)
        rankers = _rankers(group, metric, ks)
        content["metrics"][name] = estimates(drawn, rankers, {metric: metric}, ks)
        content["differences"][name] = differences(drawn, rankers, [metric], ks)
        shares = group.nearer[~np.isnan(group.nearer)]
        counted = {"anchors": len(shares), "triples": group.triples}
        content[NEARER][name] = (
            bootstrap(shares[:, np.newaxis], [NEARER], advance=advance).estimate(NEARER) if len(shares) else {}
        ) | counted
    return content


def verdict(content: Mapping[str, Any], figure: str) -> Figures:
    """Compares the model with the baseline that is strongest for training items, which no baseline was fitted to.

    Args:
        content: of `figures`, with the report's `counts`.
        figure: such as "precision@20".

    Returns:
        ``strongest`` and ``verdict``, which is of held-out items where there are some.
    """
    of_training = content["metrics"][TRAINED]
    candidates = [ranker for ranker in of_training if ranker not in (EXACT, BEST)]
    strongest = max(candidates, key=lambda ranker: of_training[ranker][figure]["value"])
    group = group_of(content["metrics"])
    of_group = {key: content[key][group] for key in ("metrics", "differences")}
    titles = {ranker: TITLES[ranker] for ranker in candidates}
    kind, asked = f"{STRONGEST} on the training items", content["counts"]["asked"][group]
    compared = report_verdict(of_group, figure, strongest, titles, kind, asked)
    return {
        "strongest": {"ranker": strongest, "chosen_on": "the training items"},
        "verdict": compared.content() | {"group": group},
    }


def group_of(groups: Mapping[str, Any]) -> str:
    """Returns the group that the verdict is about: held-out items where there are some."""
    return HELD if HELD in groups else TRAINED


def item_columns(data: Dataset, names: Sequence[str]) -> list[pl.Series]:
    """Returns columns of items, [N] each, to slice by.

    Raises:
        DataError: there is no such column of items, or it holds vectors.
    """
    columns = [data.items[find_column(data, name, ["items"])[1]].alias(name) for name in names]
    for each in columns:
        slices_of_values(each.name, each.head(0), by_user=True)  # refuses vectors
    return columns


def item_slices(
    labels: Labels,
    group: Neighbours,
    popularity: NDArray[np.int64],
    classes: str | None,
    columns: Sequence[pl.Series],
) -> list[Slice]:
    """Returns slices of the items of a group, [Q]: by class, by events before the test, and by columns of items.

    Args:
        labels: the labelled items.
        group: whose items.
        popularity: [N] events of each item before the test.
        classes: what the classes of the labels are called; None for pairs.
        columns: of `item_columns`.
    """
    items = labels.items[group.places]
    values = [pl.Series(ACTIVITY, popularity[items])]
    if classes is not None:
        values.append(pl.Series(classes, [classes_of(labels, place) for place in group.places], pl.List(pl.String)))
    values += [column.gather(items) for column in columns]
    return [part for each in values for part in slices_of_values(each.name, each, by_user=True)]


def classes_of(labels: Labels, place: int) -> list[str]:
    """Returns the names of an item's classes; none for pairs."""
    if not isinstance(labels.relation, ByClass):
        return []
    matrix = labels.relation.labels
    return [labels.classes[each] for each in matrix.indices[matrix.indptr[place] : matrix.indptr[place + 1]]]


def slice_figures(group: Neighbours, part: Slice, metric: str, ks: Sequence[int], advance: Advance) -> Figures:
    """Returns the figures of all rankers on the items of one slice, with `RESAMPLES` resamples."""
    assert part.users is not None
    rows = np.flatnonzero(part.users)
    values = np.stack([each[rows] for each in group.columns.values()], axis=1)
    drawn = bootstrap(values, list(group.columns), advance=advance)
    return {
        "group": part.group,
        "definition": part.definition,
        "items": len(rows),
        "small": len(rows) < SMALL,
        "metrics": estimates(drawn, _rankers(group, metric, ks), {metric: metric}, ks),
    }


def _rankers(group: Neighbours, metric: str, ks: Sequence[int]) -> list[str]:
    return [each for each in TITLES if f"{each}_{metric}@{ks[0]}" in group.columns]
