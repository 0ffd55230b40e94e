"""Writes a report for people: `report.html`, one file that needs nothing else, and `report.md`."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import polars as pl
from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined, select_autoescape

from pipelines.console import amount
from pipelines.evaluation.figures import OF_LISTS, SMALL
from pipelines.evaluation.protocol.asked import notes
from pipelines.evaluation.report_json import REPORT, write_report
from pipelines.evaluation.report_table import (
    FEW,
    TITLES,
    before_the_split,
    estimate,
    headline,
    interval,
    intervals,
    of_vectors,
    one_search,
    ranker_title,
    service_warnings,
    sizes,
)
from pipelines.rankers.baselines import BETTER, WORSE
from pipelines.rankers.bootstrap import FEWEST, digits
from pipelines.rankers.cuts import of_cuts
from pipelines.rankers.ranker import EXACT
from serving.files.staging import staged
from towers.evaluation.metrics import METRICS

EXAMPLES = (
    "Test users by their recall: the best and the worst of them, the median, and others by a fixed seed. Hits are "
    "marked; the list shows the first ten and every hit."
)
LEFT_OUT = {"index_curve": "plot of the index", "map": "map of the item vectors"}


def sentence(content: Mapping[str, Any]) -> str:
    """Returns the verdict in a sentence that needs no terms: recall, the baseline's, the difference in points."""
    verdict = content["verdict"]
    k = verdict["metric"].partition("@")[2]
    return compared(
        f"Of the items that a user goes on to take, the model has {verdict['value']:.1%} among its first {k}", verdict
    )


def compared(claim: str, verdict: Mapping[str, Any]) -> str:
    """Goes on from a claim with the model's value: the difference to the baseline, and whether it may be chance."""
    points = 100 * abs(verdict["difference"]["value"])
    more = "more" if verdict["difference"]["value"] >= 0 else "less"
    sure = "is more than chance" if verdict["conclusion"] in (BETTER, WORSE) else "may be chance"
    bounds = {name: 100 * verdict["difference"][name] for name in ("low", "high")}
    simple = verdict["kind"].replace("baseline", "simple method")
    # "Between +0.0 and +2.3 points" would not look like more than chance.
    low, high = (f"{bound:+.{digits(bounds, 1)}f}" for bound in bounds.values())
    how_sure = f"between {low} and {high} points with 95 % confidence"
    if verdict["users"] < FEWEST:  # whose interval may be too narrow
        how_sure = f"there are only {verdict['users']} to judge by"
    return (
        f"{claim}, {points:.1f} points {more} than the {simple}, {verdict['baseline_title']} "
        f"({verdict['baseline_value']:.1%}). The difference {sure}: {how_sure}."
    )


def write(
    out: Path,
    content: dict[str, Any],
    about: Mapping[str, Any],
    exhibits: Mapping[str, Any],
    tables: Mapping[str, pl.DataFrame],
    *,
    overwrite: bool,
) -> None:
    """Writes REPORT.

    Args:
        out: REPORT.
        content: of `report.json`, which gets the digests.
        about: what the templates show of it.
        exhibits: what `report.html` shows besides.
        tables: by the name of the file.
        overwrite: replace an existing REPORT.
    """
    pages = {"html": rendered("html", {**about, **exhibits}), "md": rendered("md", about)}
    with staged(out, overwrite=overwrite, marker=REPORT) as directory:
        directory.mkdir()
        for kind, text in pages.items():
            (directory / f"report.{kind}").write_text(text, encoding="utf-8")
        for name, table in tables.items():
            table.write_parquet(directory / name)
        write_report(content, directory, *tables)


def templates(*packages: str) -> Environment:
    """Returns the templates of these packages; those for HTML escape all values and can extend `page.html.j2`."""
    environment = Environment(
        loader=ChoiceLoader([PackageLoader(package) for package in packages]),
        autoescape=select_autoescape(("html.j2",)),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["thousands"] = "{:,}".format
    environment.filters["amount"] = amount
    environment.filters["cell"] = cell
    return environment


def cell(value: object) -> str:
    """Returns a value as a cell of a Markdown table: in one line, with no | that would end the cell, and no HTML."""
    text = str(value).replace("&", "&amp;").replace("<", "&lt;")
    return " ".join(text.replace("\\", "\\\\").replace("|", "\\|").splitlines())


def rendered(kind: Literal["html", "md"], about: Mapping[str, Any]) -> str:
    """Renders `report.html` or `report.md`; reports of recall and of item neighbours give it different values."""
    return templates("pipelines.evaluation").get_template(f"report.{kind}.j2").render(about)


def about_recall(content: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what the templates show of a report of recall."""
    return about_any(content, f"recall@{headline(content['ks'])}", ("users", "targets")) | {
        "title": f"Recall of {content['bundle']['model_version']}",
        "sentence": sentence(content),
        "notes": _notes(content),
        "size": sizes(content["counts"]),
        "interval": intervals(content),
        "looks_ahead": content["looks_ahead"] or (),
        "tables": _tables(content),
        "steps": _steps(content),
        "service": content.get("service"),
        "warnings": service_warnings(content),
        "options": content["protocol_options"]["words"],
        "examples_are": EXAMPLES,
    }


def about_any(content: Mapping[str, Any], figure: str, counted: Sequence[str]) -> dict[str, Any]:
    """Returns what the templates show of any report.

    Args:
        content: of `report.json`.
        figure: the one by slice.
        counted: what slices count: keys of theirs.
    """
    split, strongest = content["dataset"]["split"], content["strongest"]["ranker"]
    return {
        "tone": {BETTER: "better", WORSE: "worse"}.get(content["verdict"]["conclusion"], ""),
        "verdict": content["verdict"],
        "findings": content["findings"],
        "chosen": content.get("chosen_on_validation"),
        "ks": content["ks"],
        "headline": figure,
        "few": FEW,
        "least": SMALL,
        "counted": counted,
        "slices": [
            {
                "name": part,
                "definition": figures["definition"],
                "counts": [f"{figures[each]:,}" for each in counted],
                "small": figures["small"],
                "model": interval(figures["metrics"][EXACT][figure]),
                "baseline": interval(figures["metrics"][strongest][figure]),
            }
            for part, figures in content["slices"].items()
            if figures["metrics"]
        ],
        "protocol": content["protocol"],
        "provenance": {
            "made": content["created_at"],
            "bundle": ", ".join(f"{name} {value}" for name, value in content["bundle"].items()),
            "data set": f"{content['dataset']['fingerprint'][:12]}, split by {split.get('kind', split)}",
            "libraries": ", ".join(f"{name} {version}" for name, version in content["libraries"].items()),
        },
    }


def _tables(content: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Recall at each k, then for each k all figures: a row for each ranker."""
    every = [f"recall@{k}" for k in content["ks"]]
    tables: list[tuple[int | None, list[str]]] = [(None, every)]
    tables += [(k, [f"{name}@{k}" for name in (*METRICS, *OF_LISTS.values())]) for k in content["ks"]]
    rows = []
    for ranker in content["metrics"]:
        figures = dict(content["metrics"][ranker])
        for name in OF_LISTS:
            figures |= content[name][ranker]
        rows.append((ranker_title(content, ranker), figures))
    return [
        {
            "k": k,
            "label": "recall of all rankers" if k is None else f"figures of the first {k}",
            "caption": "",
            "names": names,
            "rows": [
                {"title": title, "cells": [estimate(name, figures[name]) for name in names]} for title, figures in rows
            ],
        }
        for k, names in tables
    ]


def _steps(content: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The rows of the table of where recall is lost: each step with its recall, and what it lost of the step before."""
    lost = {pair.partition("_to_")[2]: figures for pair, figures in content["recall_lost"].items()}
    return [
        {
            "title": TITLES[step],
            "cells": [
                (f"{content['metrics'][step][name]['value']:.4f}", interval(lost[step][name]) if step in lost else "")
                for name in (f"recall@{k}" for k in content["ks"])
            ],
        }
        for step in (EXACT, *lost)
    ]


def _notes(content: Mapping[str, Any]) -> list[str]:
    counts = content["counts"]
    sentences = {
        "users_without_vector": (
            "test users",
            "{} without a stored vector: answered with popular items, as by the service",
        ),
        "items_without_vector": ("items", "{} without a vector: never recommended"),
        "targets_without_vector": ("targets", "{} without a vector: each is a miss"),
    }
    left_out = {**content["baselines"]["left_out"], **content["baselines"]["fixed"]}
    return [
        *(text.format(amount(counts[name], nouns)) for name, (nouns, text) in sentences.items() if counts[name]),
        *notes(content["left_out"]),
        *before_the_split(content),
        *one_search(content),
        *(f"{TITLES[ranker]}: {reason}" for ranker, reason in left_out.items()),
        *of_vectors(content),
        *of_cuts(content["cuts"]),
        *plots_left_out(content),
    ]


def plots_left_out(content: Mapping[str, Any]) -> list[str]:
    """Returns why the plot of the index and the map are missing, where they are."""
    return [f"{what}: {content[name]['left_out']}" for name, what in LEFT_OUT.items() if "left_out" in content[name]]
