"""What `towers report` prints: the recall of each ranker, and how sure the differences are.

In: the content of `report.json`. Out: a rich table of 80 columns, and lines below it.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from rich import box
from rich.table import Table

TITLES = {
    "exact": "model, exact",
    "index": "model, by index",
    "popularity": "popularity",
    "item_knn": "item-kNN",
    "best_attainable": "best attainable",
}


def figures_table(
    title: str, names: Sequence[str], metrics: Mapping[str, Mapping[str, Any]], titles: Mapping[str, str]
) -> Table:
    """One line per ranker with the figures of `names`; `titles` says what a ranker is called."""
    shown = Table(title=title, box=box.SIMPLE, collapse_padding=True, pad_edge=False)
    shown.add_column("", no_wrap=True)
    for name in names:
        shown.add_column(name, justify="right", no_wrap=True)
    for ranker, figures in metrics.items():
        shown.add_row(titles[ranker], *(f"{figures[name]['value']:.4f}" for name in names))
    return shown


def table(content: dict[str, Any]) -> Table:
    """One line per ranker, one column per figure."""
    counts, names = content["counts"], [f"recall@{k}" for k in content["ks"]]
    names.append(names[_middle(content)].replace("recall", "ndcg"))
    title = f"{counts['users']:,} test users, {counts['targets']:,} targets, {counts['items']:,} items"
    shown = figures_table(title, names, content["metrics"], TITLES)
    if "share_of_attainable" in content:
        shares = [content["share_of_attainable"].get(name) for name in names]
        shown.add_row("share of attainable", *("" if share is None else f"{share['value']:.1%}" for share in shares))
    return shown


def lines(content: dict[str, Any]) -> list[str]:
    """The model's headline figure and its differences, with intervals."""
    name = f"recall@{content['ks'][_middle(content)]}"
    shown = [f"{name} {_interval(content['metrics']['exact'][name])}"]
    for pair, differences in content["differences"].items():
        other = TITLES[pair.removeprefix("exact_minus_")]
        shown.append(f"  minus {other}: {_interval(differences[name], sign='+')}")
    return [*shown, f"({content['interval']})"]


def _middle(content: dict[str, Any]) -> int:
    """The place of the k that stands for the others: the second, 20 by default."""
    return min(1, len(content["ks"]) - 1)


def _interval(estimate: dict[str, float], sign: str = "") -> str:
    low, value, high = (format(estimate[name], f"{sign}.4f") for name in ("low", "value", "high"))
    return f"{value} ({low} to {high})"
