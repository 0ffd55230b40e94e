"""Figures as the measured table shows them."""

from collections.abc import Mapping
from typing import Any

from benchmarks.harness.machine import load
from pipelines.evaluation.report_table import TITLES
from pipelines.rankers.ranker import KNN, ORDERED
from serving.search.scann_parameters import EXACT_BELOW

# Of `towers report`.
POPULAR = ("popularity", "popularity_users", "popularity_recent")
BASELINES = (*POPULAR, "item_knn", "item_knn_ordered", "ease", "ease_recent")

CHEAP = TITLES | {"gf_cf": "GF-CF"}  # of `benchmarks.baselines`

Result = dict[str, Any]
Rows = list[tuple[str, str, str]]  # what was measured, the figure, the command that measures it again


def repeated(command: str, seeds: int) -> str:
    """The command, with its seeds where there are several."""
    return command if seeds == 1 else f"{command} --seeds {seeds}"


def cheap_baseline(result: Result, split: str) -> tuple[str, dict[str, float], bool]:
    """The cheap baseline with the highest recall@20, of the table of the split's baselines as sets and the item-kNN,
    plain and in order, of the result's own report, which reads the order where the model does.

    Args:
        result: of `benchmarks.quality.public_splits`.
        split: the data set.

    Returns:
        Its title, its figures, and whether it is the report's, which reads what the model reads.
    """
    table = load(f"baselines_{split.replace('-', '_')}")["baselines"]
    found = {name: content["test"] for name, content in table.items()}
    of_report, own = result["runs"]["validation"][0]["metrics"], dict[str, dict[str, float]]()
    for name in (KNN, ORDERED):
        if name in of_report:
            own[name] = {figure: of_report[name][figure]["value"] for figure in result["figures"]["validation"]}
            found[name] = max(found.get(name, own[name]), own[name], key=lambda each: each["recall@20"])
    best = max(found, key=lambda each: found[each]["recall@20"])
    return CHEAP.get(best, best), found[best], found[best] is own.get(best)


def index_of(run: Result) -> str:
    """With what the service of a run searched."""
    if run["counts"]["items"] < EXACT_BELOW:
        return f"which is exact search, too, below {EXACT_BELOW:,} items"
    (target,) = (words.split()[-1] for words in run["commands"] if "--target-recall" in words)
    return f"its index tuned to a recall of {target}, not to the default 0.98"


def best_baseline(figures: Mapping[str, Any]) -> str:
    """The baseline with the highest value of a figure; `figures` hold it by ranker."""
    return max((name for name in BASELINES if name in figures), key=lambda name: figures[name]["value"])


def several(values: list[float], form: str) -> str:
    """Values side by side."""
    return " / ".join(format(value, form) for value in values)
