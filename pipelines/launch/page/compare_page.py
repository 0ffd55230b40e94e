"""Writes a comparison for people: `compare.html`, in the style of a report's page, and `compare.md` for a pull request.

Takes the content of `compare.json`.
"""

from collections.abc import Mapping
from typing import Any

from pipelines.evaluation import plots
from pipelines.evaluation.figures import SMALL
from pipelines.evaluation.page import templates
from pipelines.evaluation.report_table import FEW, interval
from pipelines.launch.conclusion import WORSE

PACKAGES = ("pipelines.launch.page", "pipelines.evaluation")


def html(content: Mapping[str, Any]) -> str:
    """Renders `compare.html`: one file that needs nothing else."""
    shown = _comparisons(content)
    for each in shown:
        slices, title = each["slices"], f"{each['name']} minus {content['baseline']}"
        each["plot"] = plots.by_slice([*slices], {title: [*slices.values()]}, title, difference=True)
    return _render("compare.html.j2", content, shown)


def markdown(content: Mapping[str, Any]) -> str:
    """Renders `compare.md`."""
    return _render("compare.md.j2", content, _comparisons(content))


def lines(content: Mapping[str, Any]) -> list[str]:
    """Returns what the command prints below the conclusion: a line for each test, and the notes."""
    shown = [
        f"{other} - {content['baseline']}: {row['metric']} {row['difference']}, p {row['p']} (Holm {row['p_holm']}), "
        f"could have shown {row['detectable']}; better for {row['wins']} users, worse for {row['losses']}"
        for other in content["comparisons"]
        for row in _tests(content, other)
    ]
    return shown + [f"note: {note}" for note in content["notes"]]


def _render(template: str, content: Mapping[str, Any], comparisons: list[dict[str, Any]]) -> str:
    worse = all(each["conclusion"] == WORSE for each in content["comparisons"].values())
    return (
        templates(*PACKAGES)
        .get_template(template)
        .render(
            title=f"{' or '.join(content['sides'])}?",
            tone="better" if content["ship"] != content["baseline"] else "worse" if worse else "",
            content=content,
            comparisons=comparisons,
            sides=[
                {
                    "name": name,
                    "members": ", ".join(each["model_version"] for each in side["members"]),
                    "cells": [interval(estimate) for estimate in side["metrics"].values()],
                    "seeds": " ".join(f"{value:.4f}" for value in side["seeds"][content["primary"]]),
                }
                for name, side in content["sides"].items()
            ],
            metrics=[content["primary"], *content["family"]],
            few=FEW,
            least=SMALL,
        )
    )


def _comparisons(content: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [
        {
            "name": name,
            **each,
            "tests": _tests(content, name),
            "parts": [
                {"name": part, **figures, "difference": interval(figures, sign="+")}
                for part, figures in each["slices"].items()
            ],
        }
        for name, each in content["comparisons"].items()
    ]


def _tests(content: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    return [
        {
            "metric": metric,
            "baseline": f"{content['sides'][content['baseline']]['metrics'][metric]['value']:.4f}",
            "other": f"{content['sides'][name]['metrics'][metric]['value']:.4f}",
            "difference": interval(test, sign="+"),
            "p": f"{test['p']:.2g}",
            "p_holm": f"{test['p_holm']:.2g}",
            "shown": test["shown"],
            "detectable": f"{test['detectable']:.4f}",
            **{key: f"{test[key]:,}" for key in ("wins", "losses", "ties")},
        }
        for metric, test in content["comparisons"][name]["metrics"].items()
    ]
