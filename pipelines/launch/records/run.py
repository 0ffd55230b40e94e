"""The record of a training run."""

import tomllib
from pathlib import Path

import tensorflow as tf

from pipelines.launch.records.record import BOARD, Point, Record, flat, identity, read_object


def of_run(run: Path) -> Record:
    """Reads a finished run. Two trainings with one recipe on one data set have one identity.

    Raises:
        DataError: it is not a finished run.
    """
    summary = read_object(run / "summary.json", "a finished run")
    recipe = (run / "config.toml").read_text(encoding="utf-8")
    time = (run / "summary.json").stat().st_mtime
    params = {"dataset.fingerprint": summary["dataset"], **flat(tomllib.loads(recipe))}
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
        identity=identity("run", params | {"pairs": summary.get("pairs")}),
        time=max((point.time for point in series), default=time),
        params=params,
        figures=figures,
        series=series,
        text=f"```toml\n{recipe}```\n",
        files=[run / "summary.json", run / "config.toml"],
        board=run / f"{BOARD}_result",
    )


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
