"""What a tracker is told of a run, a report or a gate's result: settings, figures, figures by epoch, text, files.

Reads what those commands left on disk, so that an output can be tracked at any later time. Names in `params` are those
of the recipe; names in `figures` and `series` are paths such as ``exact/recall@20`` or ``train/loss``.
"""

import hashlib
import json
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import tensorflow as tf

from pipelines.errors import DataError
from serving.bundle.manifest import read_manifest

BOARD = "tensorboard"
# What makes a report another one: the same again is an update.
PROVENANCE = ("task", "bundle", "dataset", "protocol", "protocol_options", "interval", "label", "ks")
LISTS = ("coverage", "gini", "novelty", "mean_popularity", "similarity")
UNBOUND = ("created_at", "digest")  # of a gate's result, new each time
MODEL = "exact"  # the ranker of the verdict


@dataclass(frozen=True)
class Point:
    """One value of a series: step, and time in seconds since 1970."""

    name: str
    value: float
    step: int
    time: float


@dataclass(frozen=True)
class Record:
    """What a tracker is told of one output.

    Attributes:
        kind: "run", "report" or "gate".
        output: the directory or file.
        identity: SHA-256 of what determines the output; a tracker that knows it updates its entry.
        time: when the output was made, in seconds since 1970.
        params: settings by name.
        figures: final figures by name.
        series: figures by epoch.
        text: a summary in Markdown.
        files: the files to keep with the entry; none of them names a user.
        board: where TensorBoard's files go.
    """

    kind: str
    output: Path
    identity: str
    time: float
    params: dict[str, str]
    figures: dict[str, float]
    text: str
    files: list[Path]
    board: Path
    series: list[Point] = field(default_factory=list)


def of_run(run: Path) -> Record:
    """Reads a finished run. Two trainings with one recipe on one data set have one identity.

    Raises:
        DataError: it is not a finished run.
    """
    summary = _read(run / "summary.json", "a finished run")
    recipe = (run / "config.toml").read_text(encoding="utf-8")
    time = (run / "summary.json").stat().st_mtime
    params = {"dataset.fingerprint": summary["dataset"], **_flat(tomllib.loads(recipe))}
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
        identity=_identity("run", params | {"pairs": summary.get("pairs")}),
        time=max((point.time for point in series), default=time),
        params=params,
        figures=figures,
        series=series,
        text=f"```toml\n{recipe}```\n",
        files=[run / "summary.json", run / "config.toml"],
        board=run / f"{BOARD}_result",
    )


def of_report(report: Path, bundle: Path | None = None) -> Record:
    """Reads a report. Two reports of one bundle, data set and protocol have one identity.

    Args:
        report: what `towers report` wrote.
        bundle: its bundle, which adds the recipe to the settings.

    Raises:
        DataError: it is not a report, or one of another bundle.
        BundleError: the bundle's manifest cannot be read.
    """
    content = _read(report / "report.json", "a report")
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
        identity=_identity("report", provenance),
        time=datetime.fromisoformat(content["created_at"]).timestamp(),
        params=_flat(recipe) | _flat(provenance),
        figures=_report_figures(content),
        text=text,
        files=[file for name in ("html", "md", "json") if (file := report / f"report.{name}").exists()],
        board=report / BOARD,
    )


def read_gate(file: Path) -> Record:
    """Reads the file that a gate wrote; see `of_gate`.

    Raises:
        DataError: it is not such a file.
    """
    content = _read(file, "a gate's result")
    if not isinstance(content.get("judgements"), list):
        raise DataError(f"{file}: not a gate's result: it has no list of judgements, but {', '.join(content)}")
    return of_gate(content, file)


def of_gate(content: Mapping[str, Any], file: Path) -> Record:
    """Makes the record of a gate's result. The same rules, digests and verdict have one identity.

    Args:
        content: texts (digests, names), which become settings; `created_at`, ISO 8601; `judgements`, a list of objects
            with `rule` (its name), `figure` (a number or null), `limit` (text, which becomes a setting) and `passed`.
            The verdict is "passed" if all of them are. Rules of one name are told apart by their limits.
        file: where the result is, or would be had it passed: TensorBoard's files lie beside it.
    """
    judgements = content["judgements"]
    params = {name: value for name, value in content.items() if isinstance(value, str) and name not in UNBOUND}
    params["verdict"] = "passed" if all(each["passed"] for each in judgements) else "refused"
    times = Counter(each["rule"] for each in judgements)
    names = [each["rule"] if times[each["rule"]] == 1 else f"{each['rule']}, {each['limit']}" for each in judgements]
    # As in the slices of a report: a value of a column may be an address.
    rules = [(f"rules/{name.replace('/', '_')}", each) for name, each in zip(names, judgements, strict=True)]
    figures = {f"{rule}/passed": float(each["passed"]) for rule, each in rules}
    figures |= {f"{rule}/figure": float(each["figure"]) for rule, each in rules if each["figure"] is not None}
    cells = [[each["rule"], each["figure"], each["limit"], "yes" if each["passed"] else "no"] for each in judgements]
    rows = "".join(f"| {' | '.join('' if cell is None else str(cell) for cell in row)} |\n" for row in cells)
    return Record(
        kind="gate",
        output=file,
        identity=_identity("gate", params),
        time=datetime.fromisoformat(content["created_at"]).timestamp(),
        params=params | {f"{rule}/limit": each["limit"] for rule, each in rules},
        figures=figures,
        text=f"**{params['verdict']}**\n\n| rule | figure | limit | passed |\n|---|---|---|---|\n{rows}",
        files=[file] if file.exists() else [],
        board=file.with_name(f"{file.stem}.{BOARD}"),
    )


def _read(file: Path, what: str) -> dict[str, Any]:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        raise DataError(f"{file.parent}: not {what} (no {file.name})") from None
    except ValueError as error:
        raise DataError(f"{file}: not {what}: {error}") from None
    if not isinstance(content, dict):
        raise DataError(f"{file}: not {what}: it holds no object")
    return content


def _identity(kind: str, content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps([kind, content], sort_keys=True).encode()).hexdigest()


def _leaves(tree: Any, name: str = "", separator: str = "/") -> Iterator[tuple[str, Any]]:
    if isinstance(tree, Mapping):
        for key, value in tree.items():
            yield from _leaves(value, f"{name}{separator}{key}" if name else key, separator)
    else:
        yield name, tree


def _flat(settings: Mapping[str, Any]) -> dict[str, str]:
    """Settings by dotted name, as text; a list is JSON, None is left out."""
    leaves = _leaves(settings, separator=".")
    return {
        name: value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        for name, value in leaves
        if value is not None
    }


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


def _report_figures(content: Mapping[str, Any]) -> dict[str, float]:
    """The values of all rankers; the model's intervals, its difference to the strongest baseline, slices and lists."""
    every = dict(_leaves(content["metrics"]))
    found = {name: value for name, value in every.items() if name.endswith("/value") or MODEL in name.split("/")}
    trees: dict[str, Any] = {
        "lists": {k: v for name in LISTS if name in content for k, v in content[name][MODEL].items()}
    }
    if verdict := content.get("verdict"):
        trees["verdict/difference"] = verdict["difference"]
        for name, part in content["slices"].items():
            figure = part["metrics"].get(MODEL, {}).get(verdict["metric"], {})
            trees[f"slices/{name.replace('/', '_')}/{verdict['metric']}"] = figure.get("value")
    found |= dict(_leaves(trees))
    return {name.removesuffix("/value"): float(value) for name, value in found.items() if value is not None}
