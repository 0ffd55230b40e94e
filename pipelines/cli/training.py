"""The options of `towers train` and `towers tune`; `train` runs in one process, on one or several of its devices, or as
one of several workers.
"""

import os
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Annotated

import typer

from pipelines.cli.exit_codes import INTERRUPTED, sigterm_as_ctrl_c
from pipelines.cli.options import Dataset, Overrides, Overwrite, Recipe, Track, WarmFrom
from pipelines.console import free, next_step, say
from serving.files.staging import refuse_existing

TF_CONFIG = "TF_CONFIG"  # names the workers of a training on several machines (`towers.training.workers`)


def train(
    dataset: Dataset,
    config: Recipe,
    out: Annotated[Path, typer.Option(help="The run to write: settings, checkpoints, summary.")],
    overrides: Overrides = [],  # noqa: B006 - Typer copies it
    warm_from: WarmFrom = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Discard the unfinished work of an interrupted run.")] = False,
    workers: Annotated[
        int,
        typer.Option(min=1, help="Processes of this machine that share each batch; of several machines: TF_CONFIG."),
    ] = 1,
    devices: Annotated[int, typer.Option(min=1, help="GPUs of this machine that share each batch in one process.")] = 1,
    track: Track = None,
    overwrite: Overwrite = False,
) -> int:
    """Train the two towers; an interrupted run resumes."""
    from pipelines.launch import tracking

    tracking.refuse_unready(track)
    if devices > 1 and (workers > 1 or os.environ.get(TF_CONFIG)):
        other = "--workers" if workers > 1 else TF_CONFIG
        raise typer.BadParameter(f"a worker uses one device; leave out --devices or {other}", param_hint="--devices")
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
            words += ["--warm-from", str(warm_from)] if warm_from is not None else []
            words += [flag for flag, given in flags.items() if given]
            if (code := local_workers.run(workers, ["train", *words])) == INTERRUPTED:
                raise SystemExit(INTERRUPTED)  # the first worker has said what is kept
            return code
        from pipelines.training import train as command
        from towers.config.recipe import load_config
        from towers.ops.replicas import ALONE

        # Before the workers meet: they wait for one another.
        recipe = load_config(config, overrides)
        replicas = ALONE
        told: AbstractContextManager[None] = nullcontext()
        if os.environ.get(TF_CONFIG):
            from towers.training.workers import connect, lost_workers_told, place_of

            place = place_of(os.environ[TF_CONFIG])
            if place is not None and not place.rank:  # the others may have ended well, and never come
                refuse_existing(out, overwrite=overwrite, marker=command.SUMMARY)
            replicas = connect(say)
            told = lost_workers_told(replicas)
        elif devices > 1:
            from towers.training.devices import local_devices

            replicas = local_devices(devices)
        with told:
            command.run(
                recipe,
                dataset,
                out,
                resume=not fresh,
                overwrite=overwrite,
                compares=True,
                warm_from=warm_from,
                replicas=replicas,
            )
        if not replicas.rank:
            try:
                say(command.verdict(out, dataset))
                tracking.run(run=out, tracker=track)
            except KeyboardInterrupt:
                # Not what an interrupted training is told: the same command would refuse the run that is there.
                say(f"interrupted; {out} is complete, and only what follows the training is cut short")
                raise SystemExit(INTERRUPTED) from None
            next_step("export --run", out, "--out", free("bundle"))
    return 0


def tune(
    dataset: Dataset,
    out: Annotated[Path, typer.Option(help="The recipe to write; a table of the trials is written next to it.")],
    budget_minutes: Annotated[
        float | None, typer.Option(min=0.1, help="Minutes in all; 60 where --trials is not given.", show_default=False)
    ] = None,
    trials: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Maximum number of trials, before the finals, which train the best of them again. Without "
            "--budget-minutes the same seed gives the same recipe.",
            show_default=False,
        ),
    ] = None,
    train_minutes: Annotated[float, typer.Option(min=0.1, help="Minutes that the recipe may train.")] = 15.0,
    config: Annotated[Path | None, typer.Option(help="A recipe; what it names is fixed, the rest is searched.")] = None,
    overrides: Overrides = [],  # noqa: B006
    metric: Annotated[
        str | None, typer.Option(help="What validation maximises; recall@20, or the recipe's.", show_default=False)
    ] = None,
    dimensions: Annotated[
        list[int],
        typer.Option("--dimension", help="Length of the vectors; repeatable to try several; 64.", show_default=False),
    ] = [],  # noqa: B006
    without_starts: Annotated[
        list[str],
        typer.Option(
            help="Leave out the starts made from this public data set: gowalla, ml-1m, ml-100k or beauty; repeatable.",
            show_default=False,
        ),
    ] = [],  # noqa: B006
    seed: Annotated[
        int | None,
        typer.Option(min=0, help="Of the trainings and of what is tried; 0, or the recipe's.", show_default=False),
    ] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Discard an unfinished search.")] = False,
    overwrite: Overwrite = False,
) -> None:
    """Search for the recipe that suits a data set, by its validation events alone."""
    if overrides and config is None:
        raise typer.BadParameter("needs the recipe that it overrides; add --config RECIPE.toml", param_hint="--set")
    if config is not None and config.exists() and out.exists() and out.samefile(config):
        raise typer.BadParameter(
            "is the recipe of --config, which resuming reads again; name another", param_hint="--out"
        )
    with sigterm_as_ctrl_c():
        from pipelines.tuning import tune as command
        from towers.config.recipe import load_config

        rows = command.run(
            dataset,
            out,
            config=load_config(config, overrides) if config else None,
            budget_minutes=budget_minutes,
            trials=trials,
            train_minutes=train_minutes,
            metric=metric,
            dimensions=dimensions,
            without_starts=without_starts,
            seed=seed,
            resume=not fresh,
            overwrite=overwrite,
        )
    typer.echo(command.describe(rows))
    next_step("train --dataset", dataset, "--config", out, "--out", free("run"))
