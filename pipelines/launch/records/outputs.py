"""Reads the outputs of commands as records: a training run, a report, a gate's result."""

import json
import tomllib
from collections import Counter
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import tensorflow as tf
import tomli_w

from pipelines.errors import DataError
from pipelines.evaluation.page import cell
from pipelines.launch.records.record import BOARD, Point, Record, flat, identity, leaves, one_part, read_object
from serving.bundle.manifest import read_manifest
from serving.client.address import shown_place

# What makes a report another one: the same again is an update.
PROVENANCE = ("task", "bundle", "dataset", "protocol", "protocol_options", "interval", "label", "ks")
LISTS = ("coverage", "gini", "novelty", "mean_popularity", "similarity")
MODEL = "exact"  # the ranker of the verdict
UNBOUND = ("created_at", "digest")  # of a gate's result: new each time


def of_run(run: Path) -> Record:
    """Reads a finished run. Two trainings with one recipe on one data set have one identity, if they start alike.

    Raises:
        DataError: it is not a finished run.
    """
    summary = read_object(run / "summary.json", "a finished run")
    recipe = (run / "config.toml").read_text(encoding="utf-8")
    time = (run / "summary.json").stat().st_mtime
    settings = tomllib.loads(recipe)
    others = {"dataset.fingerprint": summary["dataset"]}
    if "warm_from" in summary:
        others["warm_from"] = summary["warm_from"]
    public = _without_secrets(settings)
    shown = recipe if public == settings else tomli_w.dumps(public)
    stages = summary["stages"]
    series = []
    for number, stage in enumerate(stages):
        # Only the last stage writes to `tensorboard`.
        times = _epoch_times(run / (BOARD if number == len(stages) - 1 else f"{BOARD}_choose"))
        for record in stage["history"]:
            epoch = int(record["epoch"])
            values = {name: value for name, value in record.items() if name != "epoch"}
            series += [
                Point(f"{stage['stage']}/{name}", value, epoch, times.get(epoch, time))
                for name, value in values.items()
            ]
    figures = {"seconds": summary["seconds"]}
    for stage in stages:
        figures |= {f"{stage['stage']}/{name}": stage[name] for name in ("epochs", "best_epoch", "examples")}
        if stage["metric"]:
            figures[f"{stage['stage']}/best_{stage['metric']}"] = stage["best_metric"]
    return Record(
        kind="run",
        output=run,
        identity=identity("run", others | flat(settings) | {"pairs": summary.get("pairs")}),
        time=max((point.time for point in series), default=time),
        params=others | flat(public),
        figures=figures,
        series=series,
        text=f"```toml\n{shown}```\n",
        files=[run / "summary.json", *([run / "config.toml"] if shown == recipe else [])],
        board=run / f"{BOARD}_result",
    )


def _without_secrets(recipe: dict[str, Any]) -> dict[str, Any]:
    """A recipe as a tracker, which others read, may show it: an address of pairs may hold a password or a signature."""
    similarity = recipe.get("similarity", {})
    if similarity.get("pairs") is None:
        return recipe
    return recipe | {"similarity": similarity | {"pairs": shown_place(similarity["pairs"])}}


def _epoch_times(board: Path) -> dict[int, float]:
    """When each epoch ended, from the training's own TensorBoard files."""
    times = {}
    for file in sorted(board.glob("events.out.tfevents.*")):
        try:
            for line in tf.data.TFRecordDataset(str(file)).as_numpy_iterator():
                event = tf.compat.v1.Event.FromString(line)
                if any(value.tag == "loss" for value in event.summary.value):
                    times[int(event.step)] = float(event.wall_time)
        except tf.errors.DataLossError:
            continue  # A kill cut the file short; the next one goes on.
    return times


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
        params=flat(_without_secrets(recipe)) | flat(provenance),
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


def read_gate(file: Path) -> Record:
    """Reads the file that a gate wrote; see `of_gate`.

    Raises:
        DataError: it is not such a file.
    """
    content = read_object(file, "a gate's result")
    if not isinstance(content.get("judgements"), list):
        raise DataError(f"{file}: not a gate's result: it has no list of judgements, but {', '.join(content)}")
    return of_gate(content, file)


def of_gate(content: Mapping[str, Any], file: Path) -> Record:
    """Makes the record of a gate's result. The same rules, digests and verdict have one identity.

    Args:
        content: texts (digests, names), which become settings; `created_at`, ISO 8601; `judgements`, a list of objects
            with `rule` (its name), `figure` (a number or null), `limit` (text, which becomes a setting), `passed` and
            maybe `note`. The verdict is "passed" if all of them are. Rules of one name are told apart by their limits.
        file: where the result is, or would be had it passed: TensorBoard's files lie beside it.
    """
    judgements = content["judgements"]
    params = {name: value for name, value in content.items() if isinstance(value, str) and name not in UNBOUND}
    params["verdict"] = "passed" if all(each["passed"] for each in judgements) else "refused"
    times = Counter(each["rule"] for each in judgements)
    names = [each["rule"] if times[each["rule"]] == 1 else f"{each['rule']}, {each['limit']}" for each in judgements]
    rules = [(f"rules/{one_part(name)}", each) for name, each in zip(names, judgements, strict=True)]
    figures = {f"{rule}/passed": float(each["passed"]) for rule, each in rules}
    figures |= {f"{rule}/figure": float(each["figure"]) for rule, each in rules if each["figure"] is not None}
    rows = [
        (each["rule"], each["figure"], each["limit"], "yes" if each["passed"] else "no", each.get("note"))
        for each in judgements
    ]
    table = "".join(f"| {' | '.join('' if value is None else cell(value) for value in row)} |\n" for row in rows)
    return Record(
        kind="gate",
        output=file,
        identity=identity("gate", params),
        time=datetime.fromisoformat(content["created_at"]).timestamp(),
        params=params | {f"{rule}/limit": each["limit"] for rule, each in rules},
        figures=figures,
        text=f"**{params['verdict']}**\n\n| rule | figure | limit | passed | note |\n|---|---|---|---|---|\n{table}",
        files=[file] if file.exists() else [],
        board=file.with_name(f"{file.stem}.{BOARD}"),
    )
