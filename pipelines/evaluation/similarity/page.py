"""What a report of item neighbours shows, by the templates of all reports: sentences, tables, plots, example items."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from pipelines.console import amount
from pipelines.dataset.dataset import Dataset
from pipelines.evaluation import examples
from pipelines.evaluation.exhibits import Exhibits, of_figures, shown
from pipelines.evaluation.item_map import ItemMaps
from pipelines.evaluation.page import about_any, compared, plots_left_out
from pipelines.evaluation.report_table import before_the_split, interval, of_vectors
from pipelines.evaluation.similarity.figures import HELD, NEARER, TITLES, TRAINED, classes_of
from pipelines.evaluation.similarity.neighbours import Neighbours
from pipelines.rankers.ranker import BEST, EXACT, Served
from pipelines.training.similarity.labels import Labels
from towers.data.item_relations import ByPair
from towers.tasks.similarity import found

GROUPS = {HELD: "held-out items", TRAINED: "training items"}
EXAMPLES = (
    "Items by the share of their nearest items that are like them: the best and the worst, the median, and others by a "
    "fixed seed. Those that are like the item are marked (hit); the list shows the first ten and every hit."
)


def sentence(content: Mapping[str, Any]) -> str:
    """Returns the verdict in a sentence that needs no terms: the model's figure, the baseline's, the difference."""
    verdict, label = content["verdict"], content["label"]
    k, value = verdict["metric"].partition("@")[2], f"{verdict['value']:.1%}"
    seen = "was not trained on" if verdict["group"] == HELD else "was trained on (none was held out)"
    if label["pairs"] is None:
        claim = f"Of the {k} items nearest to an item that the model {seen}, {value} share its {label['column']}"
    else:
        claim = f"Of the items known to be like an item that the model {seen}, {value} are among its {k} nearest"
    return compared(claim, verdict)


def about_neighbours(content: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what the templates of `pipelines.evaluation.page` show of a report of item neighbours."""
    label, labelled = content["label"], amount(content["counts"]["labelled"], "labelled items")
    like = f"are a pair of {label['pairs']}" if label["column"] is None else f"share a class of {label['column']}"
    return about_any(content, content["verdict"]["metric"], ("items",)) | {
        "title": f"Item neighbours of {content['bundle']['model_version']}",
        "sentence": sentence(content),
        "notes": notes(content),
        "size": f"{labelled}; two are alike if they {like}",
        "interval": content["interval"],
        "looks_ahead": (),
        "tables": [_table(content, group) for group in GROUPS if group in content["metrics"]],
        "steps": (),
        "options": (),
        "examples_are": EXAMPLES,
    }


def _table(content: Mapping[str, Any], group: str) -> dict[str, Any]:
    rankers, nearer = content["metrics"][group], content[NEARER][group]
    names = list(rankers[EXACT])
    caption = f"{amount(content['counts']['asked'][group], GROUPS[group])}."
    if "value" in nearer:
        caption += f" Of a like and an unlike item the like one is nearer in {interval(nearer)} of the cases."
    return {
        "k": None,
        "label": f"figures of {GROUPS[group]}",
        "caption": caption,
        "names": names,
        "rows": [
            {"title": TITLES[ranker], "cells": [interval(figures[name]) for name in names]}
            for ranker, figures in rankers.items()
        ],
    }


def notes(content: Mapping[str, Any]) -> list[str]:
    """Returns a sentence for each thing that is left out, and why."""
    counts = content["counts"]
    missing = counts["without_vector"]
    return [
        *([f"{amount(missing, 'labelled items')} without a vector: never a neighbour"] if missing else []),
        *(
            f"{amount(number, GROUPS[group])} without a vector: answered with popular items"
            for group, number in counts["asked_without_vector"].items()
            if number
        ),
        *(
            f"lists of {k:,} are left out: an item has only {amount(counts['labelled'] - 1, 'labelled others')}"
            for k in content["ks_left_out"]
        ),
        *(f"{TITLES[ranker]}: {reason}" for ranker, reason in content["baselines"]["left_out"].items()),
        *of_vectors(content),
        *before_the_split(content),
        *plots_left_out(content),
    ]


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
    return shown(
        [*of_figures(figure, curves, content, titles, "items")],
        content,
        maps,
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
