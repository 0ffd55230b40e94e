"""Figures as the measured table shows them."""

from collections.abc import Mapping
from typing import Any

from benchmarks.harness.machine import load, results
from pipelines.evaluation.report_table import TITLES

BASELINES = ("popularity", "popularity_users", "popularity_recent", "item_knn", "ease")  # of `towers report`

Result = dict[str, Any]
Rows = list[tuple[str, str, str]]  # what was measured, the figure, the command that measures it again


def repeated(command: str, seeds: int) -> str:
    """The command, with its seeds where there are several."""
    return command if seeds == 1 else f"{command} --seeds {seeds}"


def cheap_baseline(result: Result, name: str) -> tuple[str, dict[str, float]]:
    """The cheap baseline with the highest recall@20: of the set's own table of them, else the report's item-kNN.

    Args:
        result: of `benchmarks.quality.public_splits`.
        name: of the table, as a result.

    Returns:
        Its title, and its figures.
    """
    if name not in results():
        of_report = result["runs"]["validation"][0]["metrics"]["item_knn"]
        return TITLES["item_knn"], {figure: of_report[figure]["value"] for figure in result["figures"]["validation"]}
    found = load(name)["baselines"]
    best = max(found, key=lambda each: found[each]["test"]["recall@20"])
    return TITLES.get(best, best), found[best]["test"]


def best_baseline(figures: Mapping[str, Any]) -> str:
    """The baseline with the highest value of a figure; `figures` hold it by ranker."""
    return max((name for name in BASELINES if name in figures), key=lambda name: figures[name]["value"])


def several(values: list[float], form: str) -> str:
    """Values side by side."""
    return " / ".join(format(value, form) for value in values)
