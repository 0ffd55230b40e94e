"""Formats what `towers report` prints: each ranker's recall and the uncertainty of the differences."""

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich import box
from rich.table import Column, Table

from pipelines.console import amount
from pipelines.evaluation.figures import OF_LISTS
from pipelines.evaluation.slices import TRAINING
from pipelines.rankers.bootstrap import texts
from pipelines.rankers.cuts import of_cuts
from pipelines.rankers.index_curve import AGAINST_FLOAT32, of_codes

K = 20
FEW = "†"  # marks a slice of fewer than `figures.SMALL`
# Of figures of lists: digits and unit.
FORMATS = {"coverage": (".1%", ""), "novelty": (".2f", " bits"), "popularity": (",.1f", "")}
DEFINITIONS = "docs/evaluation/report.md"
TITLES = {
    "exact": "model, exact",
    "index": "model, by index",
    "service": "model, by service",
    "popularity": "popularity",
    "popularity_users": "popularity, users alike",
    "popularity_recent": "recent popularity",
    "item_knn": "item-kNN",
    "item_knn_ordered": "item-kNN in order",
    "ease": "EASE",
    "ease_recent": "EASE, recent popularity",
    "favourites": "own favourites",
    "best_attainable": "best attainable",
}


def figures_table(
    title: str, names: Sequence[str], metrics: Mapping[str, Mapping[str, Any]], titles: Mapping[str, str]
) -> Table:
    """Builds one line per ranker with the figures of `names`; `titles` holds the rankers' display names."""
    columns = [Column("", no_wrap=True), *(Column(name, justify="right", no_wrap=True) for name in names)]
    shown = Table(*columns, title=title, box=box.SIMPLE, collapse_padding=True, pad_edge=False)
    for ranker, figures in metrics.items():
        shown.add_row(titles[ranker], *(f"{figures[name]['value']:.4f}" for name in names))
    return shown


def table(content: dict[str, Any]) -> Table:
    """Builds a table of at most 80 columns: one line per ranker, one column per figure."""
    counts, names = content["counts"], [f"recall@{k}" for k in content["ks"]]
    names.append(f"ndcg@{headline(content['ks'])}")
    title = sizes(counts)
    shown = figures_table(title, names, content["metrics"], TITLES)
    if "share_of_attainable" in content:
        shares = [content["share_of_attainable"].get(name) for name in names]
        shown.add_row("share of attainable", *("" if share is None else f"{share['value']:.1%}" for share in shares))
    return shown


def sizes(counts: Mapping[str, int]) -> str:
    """Says how many test users, targets and items a report is about."""
    return ", ".join(amount(counts[name.split()[-1]], name) for name in ("test users", "targets", "items"))


def head(content: dict[str, Any], dataset: Path) -> list[str]:
    """Returns the verdict, what to do if the model is below the strongest baseline, and what is wrong with it."""
    verdict = content["verdict"]
    shown = [verdict["text"]]
    if verdict["difference"]["value"] < 0:
        shown.append(
            f"towers tune --dataset {shlex.quote(str(dataset))} --budget-minutes 20 --out tuned.toml searches for a "
            "recipe that does better; docs/model/recipes.md says what each setting does"
        )
    return shown + [f"{finding['name']}: {finding['text']}" for finding in content["findings"]]


def lines(content: dict[str, Any]) -> list[str]:
    """Returns the model's headline figure and differences with intervals, the user slices, and the docs path."""
    name = f"recall@{headline(content['ks'])}"
    shown = [f"{name} {interval(content['metrics']['exact'][name])}"]
    for pair, differences in content["differences"].items():
        other = pair.removeprefix("exact_minus_")
        shown.append(f"  minus {ranker_title(content, other)}: {interval(differences[name], sign='+')}")
    for key, figure in OF_LISTS.items():
        of_lists = f"{figure}@{headline(content['ks'])}"
        shown.append(f"{of_lists} {estimate(of_lists, content[key]['exact'][of_lists])}")
    exact, index = content["metrics"]["exact"], content["metrics"]["index"]
    for each in (f"recall@{k}" for k in content["ks"]):
        if index[each]["value"] < exact[each]["low"]:
            shown.append(
                f"warning: the index costs {exact[each]['value'] - index[each]['value']:.4f} of {each}, more than its "
                f"interval: towers index --target-recall 0.995 --target-k {each.removeprefix('recall@')} comes closer"
            )
    shown += [f"warning: {line}" for line in service_warnings(content)] + of_vectors(content) + of_cuts(content["cuts"])
    shown += one_search(content)
    shown.append(f"({intervals(content)})")
    for part, figures in content["slices"].items():
        size = f"{part}: {amount(figures['users'], 'users')}, {amount(figures['targets'], 'targets')}"
        if figures["group"] == TRAINING:
            shown.append(f"{size}: {figures['definition']}")
        elif figures["metrics"]:
            small = ", few users" if figures["small"] else ""
            shown.append(f"{size}: {name} {interval(figures['metrics']['exact'][name])}{small}")
    new = content["new_items"]
    targets, users = amount(new["targets"], "targets"), amount(new["users"], "users")
    shown.append(f"new items: {targets} of {users}: {new['definition']}")
    shown += [f"trained with a feature that looks ahead: {line}" for line in content.get("looks_ahead") or ()]
    shown += [f"protocol: {option}" for option in content["protocol_options"]["words"]]
    return [*shown, f"definitions: {DEFINITIONS}"]


def of_vectors(content: Mapping[str, Any]) -> list[str]:
    """Says what storing item vectors as float16 or int8 costs; nothing of float32."""
    return of_codes(content["bundle"]["vectors"], content[AGAINST_FLOAT32])


def before_the_split(content: Mapping[str, Any]) -> list[str]:
    """Returns what `towers prepare` left out of the data set, so that the test does not have it either."""
    dataset = content["dataset"]
    bad = [f"{amount(dataset['rejected'], 'rows')} that it could not read"] if dataset["rejected"] else []
    rules = [f"{amount(count, 'events')} by {rule}" for rule, count in dataset["dropped"].items()]
    return [f"towers prepare left out {what}" for what in (*bad, *rules)]


def one_search(content: Mapping[str, Any]) -> list[str]:
    """Returns at which k a caller gets other lists from the index than the first k of those here."""
    if not content["index_tries_less"]:
        return []
    shorter, longest = " and ".join(map(str, content["index_tries_less"])), max(content["ks"])
    return [
        f"{TITLES['index']}: the first {shorter} are of a search for {longest}, which looks at more candidates than "
        "one for so few; a report with such a --k alone shows what a caller gets"
    ]


def service_warnings(content: Mapping[str, Any]) -> list[str]:
    """Returns in what the service differs from the bundle; nothing if none was asked."""
    if "service" not in content:
        return []
    service, found = content["service"], []
    for version, users in service["model_versions"].items():
        if version != service["model_version"]:
            found.append(f"another model than this bundle's, {version}, answered {amount(users, 'users')}")
    for why, users in service["failed"].items():
        found.append(f"the service failed {amount(users, 'users')} ({why}); each of their targets is a miss")
    if service["other_source"]:
        sources = ", ".join(f"{name} {users:,}" for name, users in service["sources"].items())
        found.append(
            f"the service answered {amount(service['other_source'], 'users')} from other than their stored vector "
            f"({sources}): it has live events that the bundle lacks"
        )
    for name, lost in content["recall_lost"]["index_to_service"].items():
        if lost["low"] > 0:
            found.append(f"the service loses {interval(lost)} of {name}, which the index finds")
    if unknown := service["unknown_items"]["items"]:
        places = amount(service["unknown_items"]["places"], "places")
        found.append(f"live items that the data set lacks, {unknown:,}, fill {places}; each is a miss")
    return found


def ranker_title(content: Mapping[str, Any], ranker: str) -> str:
    """Returns a ranker's name for readers; that of a baseline tells its settings."""
    baseline = content["baselines"].get(ranker)
    return TITLES[ranker] if baseline is None else str(baseline["title"])


def headline(ks: Sequence[int]) -> int:
    """Returns the k used where one figure stands for all: 20, or the second k if 20 is not among them."""
    return K if K in ks else ks[min(1, len(ks) - 1)]


def interval(estimate: Mapping[str, float], sign: str = "", digits: str = ".4f") -> str:
    """Formats an estimate, or a difference: if `sign` is ``+``, each number gets its sign."""
    value, low, high = (
        texts(estimate, sign) if sign else (format(estimate[name], digits) for name in ("value", "low", "high"))
    )
    return f"{value} ({low} to {high})"


def estimate(name: str, figure: Mapping[str, float] | None) -> str:
    """Formats a figure such as ``recall@20``; one of which there is none, None, is "none"."""
    if figure is None:
        return "none"
    digits, unit = FORMATS.get(name.partition("@")[0], (".4f", ""))
    return interval(figure, digits=digits) + unit


def intervals(content: Mapping[str, Any]) -> str:
    """Says how the intervals of a report were found."""
    return f"{content['interval']}; of coverage and Gini {content['interval_of_lists']}"
