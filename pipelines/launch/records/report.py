"""The record of a report."""

import json
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from pipelines.errors import DataError
from pipelines.launch.records.names import one_part
from pipelines.launch.records.record import BOARD, Record, flat, identity, leaves, read_object
from serving.bundle.manifest import read_manifest

# What makes a report another one: the same again is an update.
PROVENANCE = ("task", "bundle", "dataset", "protocol", "protocol_options", "interval", "label", "ks")
LISTS = ("coverage", "gini", "novelty", "mean_popularity", "similarity")
MODEL = "exact"  # the ranker of the verdict


def of_report(report: Path, bundle: Path | None = None) -> Record:
    """Reads a report. Two reports of one bundle, data set and protocol have one identity.

    Args:
        report: what `towers report` wrote.
        bundle: its bundle, which adds the recipe to the settings.

    Raises:
        DataError: it is not a report, or one of another bundle.
        BundleError: the bundle's manifest cannot be read.
    """
    content = read_object(report / "report.json", "a report")
    recipe: dict[str, Any] = {}
    if bundle is not None:
        manifest, version = read_manifest(bundle), content["bundle"]["model_version"]
        if manifest.model_version != version:
            raise DataError(f"{report}: is of the bundle {version}; {bundle} is {manifest.model_version}")
        recipe = manifest.lineage.get("config", {})
    provenance = {name: content[name] for name in PROVENANCE if name in content}
    page = report / "report.md"
    text = page.read_text(encoding="utf-8") if page.exists() else f"```json\n{json.dumps(content, indent=2)}\n```\n"
    return Record(
        kind="report",
        output=report,
        identity=identity("report", provenance),
        time=datetime.fromisoformat(content["created_at"]).timestamp(),
        params=flat(recipe) | flat(provenance),
        figures=_report_figures(content),
        text=text,
        files=[file for name in ("html", "md", "json") if (file := report / f"report.{name}").exists()],
        board=report / BOARD,
    )


def _report_figures(content: Mapping[str, Any]) -> dict[str, float]:
    """The values of all rankers; the model's intervals, its difference to the strongest baseline, slices and lists."""
    every = dict(leaves(content["metrics"]))
    found = {name: value for name, value in every.items() if name.endswith("/value") or MODEL in name.split("/")}
    trees: dict[str, Any] = {
        "lists": {k: v for name in LISTS if name in content for k, v in content[name][MODEL].items()}
    }
    if verdict := content.get("verdict"):
        trees["verdict/difference"] = verdict["difference"]
        for name, part in content["slices"].items():
            figure = part["metrics"].get(MODEL, {}).get(verdict["metric"], {})
            trees[f"slices/{one_part(name)}/{verdict['metric']}"] = figure.get("value")
    found |= dict(leaves(trees))
    return {name.removesuffix("/value"): float(value) for name, value in found.items() if value is not None}
