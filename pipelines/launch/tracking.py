"""`towers track`: tells trackers of a run, a report or a gate's result: TensorBoard always, MLflow where asked.

`towers train`, `report` and `gate` end with it. TensorBoard's files lie in or beside the output. A tracker that fails
costs a warning: the output is complete, and `towers track` tells it later. Telling a tracker twice updates its entry.
"""

import os
import shlex
from collections.abc import Callable
from contextlib import nullcontext
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

import tensorflow as tf

from pipelines.console import next_step, phase, phases, say
from pipelines.errors import DataError
from pipelines.evaluation.page import cell
from pipelines.launch.records.outputs import of_report, of_run, read_gate
from pipelines.launch.records.record import Point, Record, mlflow_name
from serving.client.address import without_secrets
from serving.files.staging import staged

Tracker = Literal["mlflow"]

READ, BOARD, MLFLOW = "read", "TensorBoard", "MLflow"
KEY = "identity"  # the file by which a directory of TensorBoard files is known to be ours
URI, EXPERIMENT = "MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME"
IDENTITY = "towers.identity"  # a tag of MLflow's run
# MLflow's own defaults wait minutes for a server that is down, send usage data, and print its URL with any password.
MLFLOW_DEFAULTS = {
    EXPERIMENT: "towers",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "30",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
}
PARAMS_AT_A_TIME, METRICS_AT_A_TIME = 100, 800  # MLflow takes at most 100 and 1,000
LONGEST_VALUE = 6_000


def refuse_unready(tracker: Tracker | None) -> None:
    """Refuses a tracker that cannot work; call it before long work.

    Raises:
        DataError: the package or the address is missing.
    """
    if tracker is None:
        return
    if find_spec("mlflow") is None:
        raise DataError("--track mlflow: the package mlflow is not installed; pip install 'towers-recall[mlflow]'")
    if not os.environ.get(URI):
        raise DataError(
            f"--track mlflow: {URI} is not set; it is the address of the server, for example http://127.0.0.1:5000"
        )


def run(
    *,
    run: Path | None = None,
    report: Path | None = None,
    gate: Path | None = None,
    bundle: Path | None = None,
    tracker: Tracker | None = None,
    alone: bool = False,
) -> list[str]:
    """Tells TensorBoard of one output, and another tracker if one is named.

    Args:
        run, report, gate: the output, exactly one of them.
        bundle: of a report, for the recipe.
        tracker: besides TensorBoard.
        alone: it is all that the command does, which names the phases and says where TensorBoard's files lie.

    Returns:
        The trackers that failed; a warning says of each what to do.

    Raises:
        DataError: the output is not what it should be, or the tracker cannot work.
        BundleError: the bundle cannot be read.
    """
    if sum(each is not None for each in (run, report, gate)) != 1 or (bundle is not None and report is None):
        raise DataError("name one output: --run RUN, --report REPORT (with --bundle BUNDLE) or --gate FILE")
    refuse_unready(tracker)
    if alone:
        phases("track", READ, BOARD, *([MLFLOW] if tracker == "mlflow" else []))
    try:
        with phase(READ) if alone else nullcontext():
            if run is not None:
                record = of_run(run)
            elif report is not None:
                record = of_report(report, bundle)
            elif gate is not None:
                record = read_gate(gate)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise DataError(f"{run or report or gate}: not as its command writes it: {error!r}") from None
    failed = tell(record, tracker, alone=alone, bundle=bundle)
    if alone and BOARD not in failed:
        say(f"{record.board}: settings, figures and a summary for TensorBoard")
        next_step("--logdir", record.board.parent, program="tensorboard")
    return failed


def tell(
    record: Record, tracker: Tracker | None = None, *, alone: bool = False, bundle: Path | None = None
) -> list[str]:
    """Does the work of `run` with a record that is already read."""
    ways: dict[str, tuple[str, Callable[[Record], None]]] = {BOARD: (BOARD, write_board)}
    server = os.environ.get(URI, "").rstrip("/")
    if tracker == "mlflow":
        ways[f"{MLFLOW} at {without_secrets(server)}"] = MLFLOW, write_mlflow
    failed = []
    for name, (of_phase, write) in ways.items():
        try:
            with phase(of_phase) if alone else nullcontext():
                write(record)
        except Exception as error:  # noqa: BLE001 - whatever a tracker raises, the output is complete
            failed.append(name)
            told = str(error).replace(server, without_secrets(server)) if server else str(error)
            reason = " ".join(told.split())[:300] or type(error).__name__
            given = {record.kind: record.output, "bundle": bundle, "track": tracker}
            options = (f"--{name} {shlex.quote(str(value))}" for name, value in given.items() if value is not None)
            again = f"towers track {' '.join(options)}"
            # A gate that refuses leaves no file of which `towers track` could tell.
            whole = record.output.exists()
            then = f"{record.output} is complete; fix it, then: {again}" if whole else "fix it, then judge again"
            say(f"warning: {name} was not told: {reason}; {then}")
    return failed


def write_board(record: Record) -> None:
    """Replaces the TensorBoard files of a record: figures as scalars of step 0, settings and summary as text."""
    with staged(record.board, overwrite=True, marker=KEY) as directory:
        directory.mkdir()
        writer = tf.summary.create_file_writer(str(directory))
        with writer.as_default(step=0):
            for name, value in record.figures.items():
                tf.summary.scalar(name, value)
            rows = "".join(f"| {cell(name)} | {cell(value)} |\n" for name, value in record.params.items())
            tf.summary.text("settings", f"| setting | value |\n|---|---|\n{rows}")
            tf.summary.text(record.kind, record.text)
        writer.close()
        (directory / KEY).write_text(record.identity, encoding="utf-8")


def write_mlflow(record: Record) -> None:
    """Writes a record as a run of MLflow, or updates the run that has its identity.

    Server and experiment are those of MLflow's own variables; the experiment is else `towers`. ``recall@20`` is called
    ``recall_at_20``, because MLflow allows no @.

    Raises:
        MlflowException: the server cannot be reached or refuses it.
    """
    for variable, default in MLFLOW_DEFAULTS.items():
        os.environ.setdefault(variable, default)
    from mlflow import MlflowClient
    from mlflow.entities import Metric, Param

    client = MlflowClient(os.environ[URI])
    name = os.environ[EXPERIMENT]
    existing = client.get_experiment_by_name(name)
    experiment = client.create_experiment(name) if existing is None else existing.experiment_id
    known = client.search_runs([experiment], f"tags.`{IDENTITY}` = '{record.identity}'", max_results=1)
    if known:
        run = known[0]
    else:
        start = min((point.time for point in record.series), default=record.time)
        tags = {IDENTITY: record.identity, "towers.kind": record.kind}
        run = client.create_run(experiment, _ms(start), tags, f"{record.kind} {record.output.absolute().name}")
    number = run.info.run_id
    # MLflow never changes a setting, and keeps every value of a metric: it gets only what is new.
    settings = {mlflow_name(key): value[:LONGEST_VALUE] for key, value in record.params.items()}
    params = [Param(key, value) for key, value in settings.items() if key not in run.data.params]
    for first in range(0, len(params), PARAMS_AT_A_TIME):
        client.log_batch(number, params=params[first : first + PARAMS_AT_A_TIME])
    points = [Point(key, value, 0, record.time) for key, value in record.figures.items()] + record.series
    metrics = [Metric(mlflow_name(each.name), each.value, _ms(each.time), each.step) for each in points]
    latest = {
        (each.key, each.step): each.value
        for key in {metric.key for metric in metrics} & run.data.metrics.keys()
        for each in sorted(client.get_metric_history(number, key), key=lambda each: int(each.timestamp))
    }
    metrics = [each for each in metrics if latest.get((each.key, each.step)) != each.value]
    for first in range(0, len(metrics), METRICS_AT_A_TIME):
        client.log_batch(number, metrics=metrics[first : first + METRICS_AT_A_TIME])
    for file in record.files:
        client.log_artifact(number, str(file))
    client.set_terminated(number, "FINISHED", _ms(record.time))
    say(f"MLflow: {'updated' if known else 'new'} run {number} of experiment {name}")


def _ms(seconds: float) -> int:
    return round(seconds * 1000)
