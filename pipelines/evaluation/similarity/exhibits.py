"""Collects what the page of item neighbours shows beyond the figures: plots, example items, nearest items."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from pipelines.dataset.dataset import Dataset
from pipelines.evaluation import examples
from pipelines.evaluation.exhibits import Exhibits, of_figures, of_index, of_items, of_training, shown
from pipelines.evaluation.item_map import ItemMaps
from pipelines.evaluation.similarity.figures import TITLES, classes_of
from pipelines.evaluation.similarity.neighbours import Neighbours
from pipelines.rankers.ranker import BEST, EXACT, Served
from pipelines.training.similarity_labels import Labels
from towers.data.item_relations import ByPair
from towers.tasks.similarity import found


def exhibits(
    content: Mapping[str, Any],
    group: Neighbours,
    labels: Labels,
    served: Served,
    data: Dataset,
    popularity: NDArray[np.int64],
    maps: ItemMaps | str,
) -> Exhibits:
    """Returns ``plots``, ``examples`` and ``neighbours`` of the page.

    Args:
        content: of `report.json`.
        group: the items that the verdict is about.
        labels: the labelled items.
        served: the bundle.
        data: the data set.
        popularity: [N] events of each item before the test.
        maps: of `pipelines.evaluation.item_map.item_maps`.
    """
    verdict, called = content["verdict"], examples.names(data.items)
    figure, ks = verdict["metric"], content["ks"]
    metric = figure.partition("@")[0]
    curves = {
        TITLES[ranker]: [figures[f"{metric}@{k}"] for k in ks]
        for ranker, figures in content["metrics"][verdict["group"]].items()
        if ranker != BEST
    }
    titles = {ranker: TITLES[ranker] for ranker in (EXACT, content["strongest"]["ranker"])}
    drawn = [
        *of_figures(figure, ks, curves, content["slices"], titles, "items"),
        *of_index(content["index_curve"]),
        *of_items(maps),
        *of_training(content),
    ]
    return shown(
        drawn,
        examples=partial(item_examples, group, labels, called, figure),
        neighbours=partial(examples.neighbours, served, called, popularity),
    )


def item_examples(group: Neighbours, labels: Labels, called: pl.Series, figure: str) -> list[dict[str, Any]]:
    """Returns the item of the best, of the median and of the worst figure, and some by a fixed seed, with neighbours.

    Args:
        group: the items and their neighbours.
        labels: the labelled items.
        called: [N] of `pipelines.evaluation.examples.names`.
        figure: such as "precision@20".
    """
    values, k = group.columns[f"{EXACT}_{figure}"], int(figure.partition("@")[2])
    content = []
    for what, row in examples.example_rows(values).items():
        place, nearest = int(group.places[row]), group.nearest[row, :k]
        nearest = nearest[nearest >= 0]
        hits = found(labels.relation, group.places[row : row + 1], nearest[np.newaxis])[0]
        shown: dict[str, Any] = {
            "title": f"{what}: {_described(labels, called, place)}: {hits.sum()} of the first {k} are like it "
            f"({figure} {values[row]:.2f})",
            "recalled_are": "Nearest labelled items",
            "recalled": [
                {"rank": rank, "name": _described(labels, called, int(other)), "hit": bool(hit)}
                for rank, (other, hit) in enumerate(zip(nearest, hits, strict=True), start=1)
                if hit or rank <= examples.SHOWN
            ],
        }
        if isinstance(labels.relation, ByPair):
            partners = labels.relation.matrix[[place]].indices
            shown["targets_are"] = "Its partners"
            shown["targets"] = [
                {"name": _described(labels, called, int(other)), "hit": bool(hit)}
                for other, hit in zip(partners, np.isin(partners, nearest), strict=True)
            ][: examples.SHOWN]
        content.append(shown)
    return content


def _described(labels: Labels, called: pl.Series, place: int) -> str:
    """An item's name, and its classes if it has any."""
    name, classes = called[int(labels.items[place])], classes_of(labels, place)
    return f"{name} [{', '.join(classes)}]" if classes else str(name)
