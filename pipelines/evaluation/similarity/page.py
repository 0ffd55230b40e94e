"""What `report.html` and `report.md` say of item neighbours, by the templates of all reports."""

from collections.abc import Mapping
from typing import Any

from pipelines.console import amount
from pipelines.evaluation.page import about_any, compared, plots_left_out
from pipelines.evaluation.report_table import interval, of_vectors
from pipelines.evaluation.similarity.figures import HELD, NEARER, TITLES, TRAINED
from pipelines.rankers.ranker import EXACT

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
        *plots_left_out(content),
    ]
