"""The options of `towers train`, by one process, or as one of several workers."""

import os
from pathlib import Path
from typing import Annotated

import typer

from pipelines.cli.exit_codes import sigterm_as_ctrl_c
from pipelines.cli.options import Dataset, Overrides, Overwrite, Recipe, Track
from pipelines.console import next_step, say

TF_CONFIG = "TF_CONFIG"  # names the workers of a training on several machines (`towers.training.workers`)


def train(
    dataset: Dataset,
    config: Recipe,
    out: Annotated[Path, typer.Option(help="The run to write: settings, checkpoints, summary.")],
    overrides: Overrides = [],  # noqa: B006 - Typer copies it
    fresh: Annotated[bool, typer.Option("--fresh", help="Discard the unfinished work of an interrupted run.")] = False,
    workers: Annotated[
        int,
        typer.Option(min=1, help="Processes of this machine that share each batch; of several machines: TF_CONFIG."),
    ] = 1,
    track: Track = None,
    overwrite: Overwrite = False,
) -> int:
    """Train the two towers; an interrupted run goes on where it stopped."""
    from pipelines.launch import tracking

    tracking.refuse_unready(track)
    with sigterm_as_ctrl_c():
        if workers > 1:
            from pipelines.training import local_workers

            if os.environ.get(TF_CONFIG):
                raise typer.BadParameter(
                    f"{TF_CONFIG} names the workers already; leave one out", param_hint="--workers"
                )
            flags = {"--fresh": fresh, "--overwrite": overwrite, "--track=mlflow": track is not None}
            words = ["--dataset", str(dataset), "--config", str(config), "--out", str(out)]
            words += [word for each in overrides for word in ("--set", each)]
            words += [flag for flag, given in flags.items() if given]
            return local_workers.run(workers, ["train", *words])
        _train(dataset, config, out, overrides, fresh=fresh, track=track, overwrite=overwrite)
    return 0


def _train(
    dataset: Path, config: Path, out: Path, overrides: list[str], *, fresh: bool, track: Track, overwrite: bool
) -> None:
    from pipelines.launch import tracking
    from pipelines.training import train as command
    from towers.config.recipe import load_config

    if not os.environ.get(TF_CONFIG):
        recipe = load_config(config, overrides)
        command.run(recipe, dataset, out, resume=not fresh, overwrite=overwrite, compares=True)
    else:
        from towers.training.workers import connect, lost_workers_told

        replicas = connect()
        recipe = load_config(config, overrides)
        with lost_workers_told(replicas):
            command.run(recipe, dataset, out, resume=not fresh, overwrite=overwrite, compares=True, replicas=replicas)
        if replicas.rank:
            return
    say(command.verdict(out, dataset))
    tracking.run(run=out, tracker=track)
    next_step("export --run", out, "--out bundle")
